// How long the first token takes: a prompt goes through the stages of a plan in chunks, which flow as micro-batches. Chunks that share a
// sweep over the weights read streamed blocks once, and need a pool for all that a stage streams.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/base/status.h"
#include "planner/evaluator.h"
#include "planner/plan/instance.h"
#include "planner/plan/stage_plan.h"

namespace lime {

// A size of chunk that may be chosen.
struct PrefillChunk {
  int32_t rows = 0;   // tokens of the prompt
  Instance instance;  // blocks and devices of the plan, with the computing and the hand-over of one chunk; its micro-batches do not matter
};

struct FirstTokenProblem {
  int32_t prompt_tokens = 1;
  std::vector<PrefillChunk> chunks;                 // the last chunk of a prompt counts in full
  int32_t max_chunks_per_sweep = kMaxMicrobatches;  // what activations and protocols allow

  // Names what is wrong; the instances must have the blocks and devices of `decode`.
  absl::Status Validate(const Instance& decode) const;
};

// "The first token after at most so long."
struct FirstTokenBound {
  FirstTokenProblem problem;
  double most_ms = 0;
};

struct FirstToken {
  bool feasible = false;
  double ms = 0;  // from an idle start with empty pools, by the exact schedule; infinity where no way fits
  int32_t chunk_rows = 0;
  int32_t chunks = 0;
  int32_t chunks_per_sweep = 0;
};

// Keeps its memory between calls.
//
// Thread: any one at a time.
class FirstTokenPredictor {
 public:
  // REQUIRES: problem.Validate().ok(), and `problem` outlives this unchanged.
  explicit FirstTokenPredictor(const FirstTokenProblem& problem);

  // The best size of chunk, and the best of 1, 2, 4, 8 ... and all chunks per sweep. It ends at a way of at most `good_enough_ms`, and
  // looks first at the one that was best before.
  // REQUIRES: plan.Validate() of every instance
  FirstToken Predict(const StagePlan& plan, double good_enough_ms = 0);

  // What the last call took, in units of SearchBudget.
  double work() const { return work_; }

 private:
  struct Way {
    size_t chunk = 0;  // of the problem
    int32_t chunks = 0;
    int32_t per_sweep = 0;
  };

  const FirstTokenProblem& problem_;
  std::vector<Evaluator> evaluators_;  // by size of chunk
  std::vector<Way> ways_;              // the one that was best before first
  double work_ = 0;
};

}  // namespace lime
