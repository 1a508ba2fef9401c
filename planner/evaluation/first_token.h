// Computes the time to the first token. A prompt goes through the stages of a plan in chunks, as
// micro-batches. Chunks that share a sweep read streamed blocks once, and need a pool for all
// blocks that one stage streams.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/evaluation/evaluator.h"
#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"

namespace lime {

// A possible chunk length.
struct PrefillChunk {
  int32_t rows = 0;  // tokens of the prompt
  // The plan's blocks and devices, with the compute and hop times of one chunk. Its micro-batches
  // are ignored.
  Instance instance;
};

struct FirstTokenProblem {
  int32_t prompt_tokens = 1;
  // The last chunk of a prompt counts as a whole one.
  std::vector<PrefillChunk> chunks;
  int32_t max_chunks_per_sweep = kMaxMicrobatches;  // limit of activations and protocols

  // The error names the problem. All instances must have the blocks and devices of `decode`.
  absl::Status Validate(const Instance& decode) const;
};

// A limit for the time to the first token.
struct FirstTokenBound {
  FirstTokenProblem problem;
  double most_ms = 0;
};

struct FirstToken {
  bool feasible = false;
  // From an idle start with empty pools, by the exact schedule. Infinity if nothing fits.
  double ms = 0;
  int32_t chunk_rows = 0;
  int32_t chunks = 0;
  int32_t chunks_per_sweep = 0;
};

// Reuses its memory between calls.
//
// Thread: any, one at a time.
class FirstTokenPredictor {
 public:
  // REQUIRES: problem.Validate().ok(); `problem` outlives this unchanged.
  explicit FirstTokenPredictor(const FirstTokenProblem& problem);

  // Finds the best chunk length, and the best of 1, 2, 4, 8 ... and all chunks per sweep. Tries the
  // previous best first, and ends at a time of at most `good_enough_ms`. REQUIRES: plan.Validate()
  // for every instance
  FirstToken Predict(const StagePlan& plan, double good_enough_ms = 0);

  // Work of the last call, in units of SearchBudget.
  double work() const { return work_; }

 private:
  struct Way {
    size_t chunk = 0;  // index in the problem
    int32_t chunks = 0;
    int32_t per_sweep = 0;
  };

  const FirstTokenProblem& problem_;
  std::vector<Evaluator> evaluators_;  // by size of chunk
  std::vector<Way> ways_;              // the previous best first
  double work_ = 0;
};

}  // namespace lime
