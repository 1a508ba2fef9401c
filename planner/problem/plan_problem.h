// Makes a planning problem from a model, devices and a request, and a Plan from the search's
// answer.
//
//   PlanProblem problem = MakePlanProblem(spec, devices, request)
//   BatchedPlan best    = PlanBatches(strategy, problem.instance, options with problem.granularity)
//   Plan plan           = MakePlan(problem, choice)
//
// Memory is exact: parts, KV pages and pinned tensors are counted in bytes. A plan that fits by the
// Evaluator fits to the byte.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "planner/base/status.h"
#include "planner/demand/calibration.h"
#include "planner/demand/unit_policy.h"
#include "planner/evaluation/first_token.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/instance/instance.h"
#include "planner/plan/instance/stage_plan.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan.h"
#include "planner/plan/sparse_parts.h"

namespace lime {

// Weights are read in requests of this size, with enough in flight to keep a disk busy.
inline constexpr Bytes kDiskRead = 1 * kMiB;
inline constexpr int64_t kDiskDepth = 8;

// A device as the planner sees it.
struct ClusterDevice {
  std::string name;         // links of other profiles refer to it
  std::string numerics_id;  // of its kernels
  Bytes budget = 0;
  Bytes runtime = 0;  // the process and its libraries
  // Workspaces and hidden states for the largest chunk and batch of PlanRequest.
  Bytes activations = 0;
  Bytes margin = 0;       // must stay free
  DeviceProfile profile;  // measured; or only rates, then blocks take RooflineMs
};

// What one device has of the experts of every layer, if they are divided over devices.
struct UnitShare {
  int64_t units = 0;   // of each layer
  int64_t places = 0;  // memory for this many of them

  friend bool operator==(const UnitShare&, const UnitShare&) = default;
};

struct PlanRequest {
  std::string model_name;  // for people
  int64_t context = 2048;  // tokens of each sequence, prompt and completion
  int64_t kv_tokens = 0;   // tokens with KV at the start (planner/kv/kv_levels.h); 0: all
  // Positions that attention reads per sequence in the predicted step. 0: all. A plan that does not
  // keep all KV ignores it.
  int64_t expected_positions = 0;
  // The newest positions, whose KV stays (planner/plan/plan_rows.h). 0: all.
  int64_t retained_positions = 0;
  int32_t sequences = 1;  // running at the same time
  // Plan::state_snapshots; ignored if the model keeps no state, and no layer gives pages back.
  int32_t state_snapshots = 0;
  // Layers with a window give no pages back, because KV may leave memory (CutForKv).
  bool keeps_all_pages = false;
  // Sequences per micro-batch to choose from. Empty: 1, 2, 4 .. and all of them.
  std::vector<int32_t> batches;
  Bytes part_bytes = kPartBytes;  // largest streamed part; 0: whole blocks
  // Whether a tied embedding may use the head's memory, if the whole head is resident and KV never
  // grows.
  bool embedding_with_head = false;
  // 0: the time to the first token does not matter.
  int64_t prompt_tokens = 0;
  std::vector<int64_t> chunks = {128, 256, 512, 1024, 2048};  // chunk lengths to choose from
  // For two devices without a link in a profile.
  LinkPoint default_link = {.peer = "", .bytes_per_second = 12.5e6, .latency_ms = 0.3};
  bool embedding_by_rows = true;  // whether rows may be read one by one, if there is a disk
  // Experts on demand: as many of a layer's places may have experts that were read ahead (PlanPart);
  // at most all but one. 0: no read-ahead.
  int32_t ahead_places = 0;
  // Experts on demand: every layer has memory for this many of them on its device. 0: blocks with
  // experts are resident or stream like others. With it, all KV is reserved and kept.
  int64_t unit_places = 0;
  // Experts on demand that are divided over devices (PlanPart::host), by device: every device of a
  // stage has some. Empty: a layer's experts are on the device of the layer. With it, unit_places
  // only says that experts are on demand.
  std::vector<UnitShare> unit_shares;
  // The share of one row's experts in memory for each number of places, from 1; empty: a generic
  // curve (planner/problem/unit_demand.h).
  std::vector<double> unit_hits;
  // Sparse MLPs: by layer, memory for this many of its neurons (PlanPart::window_masks). 0, and for
  // layers that it does not name: the MLP is resident or streams like others. Only layers that have
  // bundles and no experts may have any. With it, all KV is reserved and kept.
  std::vector<int64_t> neuron_rows;
  // By layer, what decides in its sparse MLP; those that it does not name have no copy.
  std::vector<DeciderForm> deciders;
  int32_t window_masks = kUsualWindowMasks;
  // What a text activates of sparse MLPs. It has every layer that neuron_rows names. Null: nothing is
  // known of zeros, so every neuron counts as active, and those in memory as any. So it is in layers with
  // copies of which the calibration says nothing.
  std::shared_ptr<const Calibration> calibration;
  bool bundles_on_path = true;  // bundles lie on the path of the calibration; else by number
  // BesideNeurons and PredictorMemory of a part are memory of the device that has it. False:
  // ClusterDevice::activations has them, of all layers.
  bool counts_beside_neurons = false;
  // Decode steps of a run that begins without neurons in memory, for predictions of sparse MLPs. 0: so many
  // that its beginning does not matter.
  int64_t new_tokens = 0;
  // Plan::predictor; and by layer, the rank of its predictor, 0 in layers that it does not name.
  std::string predictor;
  std::vector<int32_t> predictor_ranks;
  // The policy to which unit_hits belongs, for each number of places, from 1; the last one also for
  // more places. Empty: LRU. Plans name it (PlanPart::policy).
  std::vector<UnitPolicy> unit_policies;
};

// The expected times of a part on demand for one micro-batch.
struct PartDemand {
  int32_t part = 0;
  double compute_ms = 0;
  double read_ms = 0;  // that no computation hides
  double chosen_units = 0;
  double active_units = 0;  // PlanPart::active_units
  double hit_share = 0;
  // Of a sparse part, with PlanRequest::calibration: the reads in all.
  double reads = 0, read_bytes = 0, io_ms = 0;
  // With PlanRequest::unit_shares: the numbers above are of the device's own experts, and this is
  // the expected time until those of all devices are computed if the layer is on this device.
  double all_ms = 0;
};
// Of all parts on demand, ascending; by sequences of a decode step's micro-batch, and by rows of a
// prompt's chunk.
struct DeviceDemand {
  std::map<int32_t, std::vector<PartDemand>> decode, prefill;
};

struct PlanProblem {
  // The decode step, to which StagePlans refer. It has the bytes of head.parts in MB, and each
  // device has half a byte less, so that rounding never changes a comparison. `kv_mb` of a block is
  // all its pinned memory: pages, states, norms and biases. A part on demand has no other memory: its
  // places are pinned. Its time includes its expected reads; without a disk, it is prohibitive.
  Instance instance;
  std::optional<FirstTokenProblem> first_token;  // with a prompt: one instance per chunk length
  // By device and batch: decode times without computing KV again. Empty if all KV stays.
  std::vector<std::map<int32_t, std::vector<double>>> retained_ms;
  std::vector<DeviceDemand> demand;  // by device; empty without parts on demand
  std::vector<Bytes> beside;         // by part, with PlanRequest::counts_beside_neurons; MakePlan counts it as activations
  // With PlanRequest::unit_shares: the parts that a part on demand becomes, by part and by the
  // device of its stage (planner/problem/unit_shares.h).
  std::map<int32_t, std::vector<std::vector<PlanPart>>> divided;
  bool tied_embedding = false;  // embedding and head are one tensor, and may share memory
  // A plan without stages: model, request, one part per block of the instance, and the known fields
  // of devices.
  Plan head;
};

// InvalidArgument for devices or a request out of bounds: no device, a repeated name, negative
// numbers, a context too long to count its KV. A device that is too small gets no memory, and the
// search does not use it.
//
// An Instance has one rate and one latency. They are the worst of all links between the devices, so
// that the prediction holds for any neighbours. RefineNet then uses only the links in use.
//
// With PlanRequest::unit_shares, the part on demand of a layer is one block of the instance, and
// its time is that of the slowest device.
absl::StatusOr<PlanProblem> MakePlanProblem(const ModelSpec& spec, std::span<const ClusterDevice> devices, const PlanRequest& request);

// Sets the network of all instances to the worst link that `stages` uses. Search or predict again
// after it.
void RefineNet(std::span<const ClusterDevice> devices, const ModelSpec& spec, const PlanRequest& request, const StagePlan& stages,
               PlanProblem& problem);

// The link from the profile of either end, else the fallback.
LinkPoint LinkBetween(const ClusterDevice& from, const ClusterDevice& to, const LinkPoint& fallback);

// Sets the message times of the plan to the worst link that it uses now. Finds devices by name.
// REQUIRES: `devices` has every device with a stage
void SetLinks(std::span<const ClusterDevice> devices, const ModelSpec& spec, const PlanRequest& request, Plan& plan);

// The answer of a search.
struct PlanChoice {
  StagePlan stages;
  int32_t microbatches = 1;
  int32_t batch = 0;       // sequences per micro-batch; 0: one micro-batch has all
  bool reads_once = true;  // Plan::reads_once
  FirstToken first_token;  // of `stages`, by FirstTokenPredictor; if a prompt is planned
  double lower_bound_ms = 0;
  int64_t epoch = 1;
};

// Whether the embedding can use the head's memory with `stages`: both are one tensor, and the whole
// head is resident on the first stage's device. MakePlan then counts it once. An Instance cannot
// express this, so if memory is short also try `stages` that read the embedding by rows.
bool EmbeddingIsWithHead(const PlanProblem& problem, const StagePlan& stages);

// The stages without parts on demand among the streamed ones. A search may choose them, because they
// take no memory that streaming could save.
StagePlan WithoutDemand(const PlanProblem& problem, StagePlan stages);

// A valid plan with ms_per_step by the Evaluator. ResourceExhausted with Evaluator's reason if it
// does not fit, or if a device without a disk or without a share has a part on demand. Parts on
// demand never stream, even if `choice` says so.
absl::StatusOr<Plan> MakePlan(const PlanProblem& problem, const PlanChoice& choice);

}  // namespace lime
