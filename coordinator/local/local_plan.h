// A plan for this process alone, made like the plan of a cluster: weights that fit stay in memory,
// the rest streams. It is made before anything is allocated, so a budget that is too small is
// refused with the numbers.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/calibration.h"
#include "planner/demand/route_curve.h"
#include "planner/neuron_places.h"
#include "planner/one_device.h"
#include "planner/plan/device/backend_names.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/model/block_parts.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan/sparse_parts.h"
#include "planner/problem/memory_budget.h"
#include "planner/snapshot_choice.h"
#include "planner/unit_places.h"

namespace lime {

// Prompt tokens that are computed together if everything is resident: enough to use the matrices
// well, few enough to delay other requests little.
inline constexpr int64_t kUsualChunk = 512;

struct LocalPlanRequest {
  std::string model_name;                               // for people; opens every error
  Bytes budget = 0;                                     // of the process; 0: derived
  MemoryPriority priority = MemoryPriority::kBalanced;  // for a derived budget
  int64_t context = 2048;                               // positions of each sequence
  // Positions per sequence that the first KV level reserves, at least the prompt. KV grows by
  // levels, and more parts stream then (planner/kv/kv_levels.h). 0: all. All of it is also reserved
  // if nothing streams, if a placement, ring or share is asked for, or if the first level would be
  // no faster.
  int64_t kv_tokens = 0;
  // If memory has no room for all KV even with the fewest resident weights, the disk takes the rest
  // (planner/plan/kv_spill.h). KV then grows by levels, also without `kv_tokens`. Not if a
  // placement, ring or share is asked for.
  bool spills_kv = true;
  int32_t ahead_places = 0;  // of each layer with experts on demand (PlanRequest)
  // How many experts of every layer have a place in memory; the others are loaded on demand. 0: none
  // are on demand. nullopt: if experts would stream, as many as make the plan fastest
  // (planner/unit_places.h), but 0 if a placement, ring or share is asked for. A plan with experts on
  // demand reserves all KV.
  std::optional<int64_t> unit_places;
  // Sparse MLPs: by layer, its neurons if these have bundles (BundleStore::SparseNeurons), else 0. Empty:
  // no MLP is sparse. kAuto: they are if there is a calibration, the plan is predicted faster with them,
  // and no placement, ring or share is asked for. A plan with sparse MLPs reserves all KV.
  //
  // Memory has rows for `neuron_rows` neurons in every layer. nullopt: with a calibration, the rows that
  // make the plan fastest (planner/neuron_places.h). Without one, as many as the rest of the model leaves
  // room for; if the rest streams, an eighth, halved until it fits.
  SparsityWish sparsity = SparsityWish::kOff;
  // Whether these MLPs use the copies of their deciders. kAuto: with a calibration, and rows that are not
  // asked for, layers use those with which the plan is fastest.
  DeciderWish decider = DeciderWish::kAuto;
  std::vector<int64_t> neurons;
  std::optional<int64_t> neuron_rows;
  // By layer, the copy of the decider that its bundles have (SparseModel::copies); empty: none has any.
  std::vector<DeciderForm> copies;
  int32_t window_masks = kUsualWindowMasks;  // PlanRequest::window_masks
  bool bundles_on_path = true;               // PlanRequest
  std::shared_ptr<const Calibration> calibration;
  // kPredicted: PlanRequest. The calibration is of the neurons that the predictor names.
  std::string predictor;
  std::vector<int32_t> predictor_ranks;
  RouteCurve routes;               // what decode steps hit in memory; empty: a generic curve
  int64_t expected_positions = 0;  // mean of a sequence, for predictions; 0: the whole context
  int32_t sequences = 1;           // that run together
  SnapshotWish snapshots;          // of each sequence; none if memory has no room for them
  int64_t prompt_tokens = 1;       // of the longest prompt
  int64_t chunk = 0;               // maximum prompt tokens computed together; 0: best for the work
  int64_t all_prompt_tokens = 0;   // the work: tokens of all prompts; 0: of one
  int64_t new_tokens = 0;          // the work: decode steps, the first of which find no neurons in memory
  int64_t logit_rows = 0;          // rows of a chunk that may ask for logits; at least `sequences`

  // Used if not everything stays in memory.
  Placement placement = Placement::kAuto;
  std::optional<Bytes> ring;             // for streamed parts; else chosen
  std::optional<int64_t> ring_parts;     // the same, in parts of the largest size
  std::optional<double> resident_share;  // maximum, 0 to 1, of the weights; else as much as fits
  Bytes part_bytes = kPartBytes;         // maximum bytes of a streamed part
  Bytes beside = 0;                      // other memory of the process: spans of a trace, masks of answers

  // Receives the current work of the search if it may take many seconds. May be empty.
  std::function<void(const std::string& what)> at;

  int num_threads = 0;  // compute threads; 0: one per core that this process may use
  std::string backend = kCpuBackend;
  std::string numerics = "auto";
  const DeviceProfile* profile = nullptr;  // of this machine; missing rates are assumed
};

struct LocalPlan {
  Plan plan;                   // one device, "local"; its memory by kind adds up to the budget
  std::string budget_text;     // how the budget was derived; empty if it was given
  bool disk_profiled = false;  // false: the planned disk rate is an assumption
  std::string sparsity_why;    // why kAuto has chosen this plan; empty if it has not compared
};

// Errors: InvalidArgument for a context that the model does not have; ResourceExhausted if the
// budget is too small for any plan; the backend's error for a model that it does not support.
// ResourceExhausted states the numbers by kind and a budget that is enough with all KV in memory.
// If that is much more, it also states the least budget with KV on the disk. KV counts in full,
// although its memory is allocated only as it is written.
absl::StatusOr<LocalPlan> PlanForThisProcess(const ModelSpec& spec, const LocalPlanRequest& request);

// The numbers of such a plan that users see.
//
// Memory by kind adds up to the budget: weights include the embedding and the pinned tensors of
// streamed parts; activations include embedding rows that are read, and unused space at the ring's
// end.
struct LocalPlanSummary : PlanMemory {
  int blocks = 0;            // of the model
  int resident_blocks = 0;   // blocks with all parts resident
  Bytes resident_bytes = 0;  // of weights, without pinned tensors
  Bytes streamed_bytes = 0;  // read in every step
  UnitUse units;             // experts on demand
  double ms_per_step = 0;    // with one decoded token per sequence
  // Planned rate; 0: nothing streams or loads on demand, and no KV goes to the disk.
  double disk_bytes_per_second = 0;

  bool streams() const { return disk_bytes_per_second > 0; }
};
LocalPlanSummary Summarize(const Plan& plan);

}  // namespace lime
