// A plan for this process alone, made as a cluster's is: what fits stays in memory, the rest
// streams.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/block_pieces.h"
#include "planner/plan/device_profile.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"

namespace lime {

struct LocalPlanRequest {
  std::string model_name;  // for people
  Bytes budget = 0;        // of the whole process
  int64_t context = 2048;  // positions of each sequence, prompt and answer
  int32_t sequences = 1;   // at a time
  int64_t prompt_tokens = 1;
  int64_t chunk = 512;                   // of them, that are computed together at most
  int64_t logit_rows = 0;                // of a chunk, rows that may ask for logits, to score prompts; at least one for each sequence can
  std::optional<double> resident_share;  // of the weights, 0 to 1, that stay, evenly spread, beside a small ring; nothing: as much as fits
  Bytes piece_bytes = kPieceBytes;       // longest streamed piece

  int num_threads = 0;  // that compute; 0: one for every core this process may use
  std::string backend = kCpuBackend;
  std::string numerics = "auto";
  const DeviceProfile* profile = nullptr;  // of this machine; null: a small one is assumed
};

// The plan, of one device named "local". Everything is resident where the budget has room for it,
// without any search. ResourceExhausted where the budget is too small for any plan; what the
// backend says where it does not know the model.
absl::StatusOr<Plan> PlanForThisProcess(const ModelSpec& spec, const LocalPlanRequest& request);

}  // namespace lime
