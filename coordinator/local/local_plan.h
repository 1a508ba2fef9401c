// A plan for this process alone, made as a cluster's is: what fits stays in memory, the rest
// streams. It is made before anything is allocated, so that a budget that is too small is refused
// with the numbers.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/memory_budget.h"
#include "planner/one_device.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/block_pieces.h"
#include "planner/plan/device_profile.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

// Tokens of a prompt that are computed together where everything is resident: enough for the
// matrices, few enough for others to wait beside.
inline constexpr int64_t kUsualChunk = 512;

struct LocalPlanRequest {
  std::string model_name;                               // for people; opens every error
  Bytes budget = 0;                                     // of the whole process; 0: derived from what the machine has
  MemoryPriority priority = MemoryPriority::kBalanced;  // then
  int64_t context = 2048;                               // positions of each sequence, prompt and answer
  // Of them, those that KV is reserved for at first, and at least those of a prompt; the rest comes by levels as parts stream instead
  // (planner/kv_levels.h). 0: all. All of it is reserved where nothing streams beside it, where a placement, ring or share is asked for,
  // and where the first level would be no faster.
  int64_t kv_tokens = 0;
  // Where memory has no room for all KV beside the least of the weights, the disk takes the rest (planner/plan/kv_spill.h), and KV grows
  // by levels whatever `kv_tokens` says. Not where a placement, ring or share is asked for.
  bool spills_kv = true;
  int64_t expected_positions = 0;  // of them, those of a sequence on average, for predictions; 0: all
  int32_t sequences = 1;           // at a time
  int64_t prompt_tokens = 1;       // of the longest prompt
  int64_t chunk = 0;               // of a prompt, that are computed together at most; 0: as many as is best for the work
  int64_t all_prompt_tokens = 0;   // the work: of all prompts; 0: of one
  int64_t new_tokens = 0;          // and steps of decoding
  int64_t logit_rows = 0;          // of a chunk, rows that may ask for logits, to score prompts; at least one for each sequence can

  // Where not everything stays in memory.
  Placement placement = Placement::kAuto;
  std::optional<Bytes> ring;             // of streamed pieces; else chosen
  std::optional<int64_t> ring_pieces;    // the same in pieces of the largest kind
  std::optional<double> resident_share;  // of the weights, 0 to 1, that stay at most; else as much as fits
  Bytes piece_bytes = kPieceBytes;       // longest streamed piece
  Bytes beside = 0;                      // that the process will take beside the plan, a trace for instance

  int num_threads = 0;  // that compute; 0: one for every core this process may use
  std::string backend = kCpuBackend;
  std::string numerics = "auto";
  const DeviceProfile* profile = nullptr;  // of this machine; null, or without a rate: that of a small one is assumed
};

struct LocalPlan {
  Plan plan;                   // of one device, named "local"; its memory by kind adds up to the budget
  std::string budget_text;     // how the budget was derived; empty where it was asked for
  bool disk_profiled = false;  // else the rate that is planned with is an assumption
};

// InvalidArgument for a context that the model has not; ResourceExhausted, with the numbers by kind
// and a budget that suffices, where that is too small for any plan; what the backend says where it
// does not know the model. KV counts in full, also where its memory comes as it is written.
absl::StatusOr<LocalPlan> PlanForThisProcess(const ModelSpec& spec, const LocalPlanRequest& request);

// What people are told of such a plan.
struct LocalPlanSummary {
  // By kind; together the budget.
  Bytes weights = 0;  // with the embedding, and what is kept of parts that stream
  Bytes ring = 0;
  Bytes kv = 0;
  Bytes activations = 0;  // with rows of an embedding that is not resident, and what the ring may leave unused at its end
  Bytes runtime = 0;
  Bytes margin = 0;

  int blocks = 0;                    // of the model
  int resident_blocks = 0;           // all of whose parts stay
  Bytes resident_bytes = 0;          // of weights, but for what is kept whatever streams
  Bytes streamed_bytes = 0;          // read in every step
  double ms_per_step = 0;            // every sequence decodes one token
  double disk_bytes_per_second = 0;  // that it is planned with; 0: nothing streams, and no KV goes to the disk

  Bytes total() const { return weights + ring + kv + activations + runtime + margin; }
  bool streams() const { return disk_bytes_per_second > 0; }
};
LocalPlanSummary Summarize(const Plan& plan);

}  // namespace lime
