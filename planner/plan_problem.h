// From a model, devices and a request to the planning problem, and from the search's answer to the plan that is installed.
//
//   PlanProblem problem = MakePlanProblem(spec, devices, request)
//   BatchedPlan best    = PlanBatches(strategy, problem.instance, options with problem.granularity)
//   Plan plan           = MakePlan(problem, choice)
//
// Where KV is evicted, a decode step is one at the end of the context, and a chunk of a prompt has what all of them have ahead of them on
// average, though those go one after another and so take longer than predicted. Chunks are to be a page shorter than what is kept, and of
// at most kEvictedRows tokens.
//
// Memory is exact: parts, KV pages and what is kept are counted in bytes, and a plan that the Evaluator finds to fit fits to the byte.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "planner/base/status.h"
#include "planner/first_token.h"
#include "planner/plan/device_profile.h"
#include "planner/plan/instance.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan/stage_plan.h"

namespace lime {

// How weights are read: as many requests of this size in flight as keep a disk busy.
inline constexpr Bytes kDiskRead = 1 * kMiB;
inline constexpr int64_t kDiskDepth = 8;

// A device as far as planning goes.
struct ClusterDevice {
  std::string name;         // to which other profiles' links refer
  std::string numerics_id;  // of its kernels
  Bytes budget = 0;
  Bytes runtime = 0;      // the process and its libraries
  Bytes activations = 0;  // workspaces and hidden states, for the largest of PlanRequest's chunks and batches
  Bytes margin = 0;       // to be left free
  DeviceProfile profile;  // measured, or with rates alone: then blocks take RooflineMs
};

struct PlanRequest {
  std::string model_name;  // for people
  int64_t context = 2048;  // tokens of each sequence, prompt and answer
  int64_t kv_tokens = 0;   // of them, KV is reserved for at first (planner/kv_levels.h); 0: all
  // Of them, those that attention reads of a sequence in a step that is predicted; 0: all, as where KV is evicted.
  int64_t expected_positions = 0;
  int64_t kept_positions = 0;        // of them, KV is kept of the newest (planner/plan/kv_eviction.h); 0: all
  int32_t sequences = 1;             // at a time
  std::vector<int32_t> batches;      // sequences in a micro-batch, to choose among; empty: 1, 2, 4 .. and all of them
  Bytes piece_bytes = kPieceBytes;   // longest streamed piece; 0: whole blocks
  bool embedding_with_head = false;  // a tied embedding may be counted once, with its head: where all of that stays, and no KV will grow
  int64_t prompt_tokens = 0;         // 0: the time to the first token does not matter
  std::vector<int64_t> chunks = {128, 256, 512, 1024, 2048};                             // lengths of prompt chunks to choose among
  LinkPoint default_link = {.peer = "", .bytes_per_second = 12.5e6, .latency_ms = 0.3};  // where no profile has one between two devices
  bool embedding_by_rows = true;  // whether it may be read by rows, where there is a disk
};

struct PlanProblem {
  // Decode; what StagePlans refer to. In MB what head.parts says in bytes, less half a byte of every device, so that no sum of rounded
  // numbers is taken for a byte more or less than it is. A block's `kv_mb` is all that is in memory with it whatever streams: pages, and
  // what is kept of it.
  Instance instance;
  std::optional<FirstTokenProblem> first_token;  // where there is a prompt: one instance for each size of chunk
  // By device and batch, what of the decode times is no computing of evicted KV; empty where none is evicted.
  std::vector<std::map<int32_t, std::vector<double>>> kept_ms;
  bool tied_embedding = false;  // it is the head's tensor
  // The plan without stages: model, request, a part for each block of the instance, devices as far as they are known.
  Plan head;
};

// InvalidArgument where devices or request are out of bounds: no device, a name twice, negative numbers, a context beyond what a model's
// KV can be counted for. A device too small for anything is none of these: it gets no memory, and the search leaves it out.
//
// Net: an Instance has one rate and one latency. Here they are the worst of all links between devices of the list, so that the prediction
// holds whatever neighbours the plan gives a device; RefineNet then narrows them down to the links in use.
absl::StatusOr<PlanProblem> MakePlanProblem(const ModelSpec& spec, std::span<const ClusterDevice> devices, const PlanRequest& request);

// Sets the net of all instances to the worst of the links that `stages` uses. The plan can be searched, or predicted, once more with it.
void RefineNet(std::span<const ClusterDevice> devices, const ModelSpec& spec, const PlanRequest& request, const StagePlan& stages,
               PlanProblem& problem);

// As MakePlanProblem takes it: told by either end, else the fallback.
LinkPoint LinkBetween(const ClusterDevice& from, const ClusterDevice& to, const LinkPoint& fallback);

// Sets what a message of the plan takes to the worst of the links that it uses as they are now; devices are found by name.
// REQUIRES: `devices` has all that the plan has stages on
void SetLinks(std::span<const ClusterDevice> devices, const ModelSpec& spec, const PlanRequest& request, Plan& plan);

// What a search answers.
struct PlanChoice {
  StagePlan stages;
  int32_t microbatches = 1;
  int32_t batch = 0;  // sequences in a micro-batch; 0: all in as many micro-batches
  ReadsPerStep reads = ReadsPerStep::kOnce;
  FirstToken first_token;  // FirstTokenPredictor's answer for `stages`; where a prompt is planned
  double lower_bound_ms = 0;
  int64_t epoch = 1;
};

// Whether the embedding is the head's memory where `stages` are: one tensor, and all of the head stays on the first stage's device.
// MakePlan then says so, and has no memory for it beside; an Instance cannot, so that `stages` that read it by rows are tried where memory
// is short.
bool EmbeddingIsWithHead(const PlanProblem& problem, const StagePlan& stages);

// The plan, valid, with its ms_per_step by the Evaluator. ResourceExhausted, with Evaluator's reason, where it does not fit.
absl::StatusOr<Plan> MakePlan(const PlanProblem& problem, const PlanChoice& choice);

}  // namespace lime
