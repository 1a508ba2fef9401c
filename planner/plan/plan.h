// A plan says what the devices of a cluster do: which device computes and stores each part of the
// model, which parts stream, how each device divides its memory, and how long a token should take.
//
// A plan is complete. Every device can derive its work from it (planner/program/compile.h), and the
// simulator can run it (planner/sim). Plain data. A plan's JSON from outside is untrusted input
// (planner/plan/cluster_plan_json.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/unit_policy.h"
#include "planner/plan/instance/stage_plan.h"
#include "planner/plan/model/block_parts.h"
#include "planner/plan/model/kv_window.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// The smallest unit that is loaded and computed by itself: a block, some rows of its matrices, or
// some positions of its KV (planner/plan/kv_spill.h). The KV parts of an attention block lie
// between the rows of V and the rows of O. Each part corresponds to one Instance::Block.
//
// A part names its rows, so that several devices could share one block later and join the results
// with all-gathers. Today only the head is shared: all parts of any other block lie in one stage.
// The stages of the head's parts are consecutive.
struct PlanPart {
  BlockId block;  // never the embedding
  // In order of use. Rows of the head begin at multiples of kVocabRange. Empty for a KV part.
  std::vector<MatrixRows> rows;
  // A KV part has positions [kv_begin, kv_end) of every sequence, in multiples of 256. If the part
  // streams, the positions on the disk are read in every step. If not, all its positions are in
  // memory, where pages count them, or on a host. A block's KV parts cover all positions in order,
  // or the block has none.
  int64_t kv_begin = 0, kv_end = 0;
  Bytes bytes = 0;  // of these rows or positions
  // Norms and biases, always in memory. In the first part of a block, in every part of the head,
  // and in every part with a host.
  Bytes pinned_bytes = 0;
  // Of the largest unit, on the disk and in memory; only of a part on demand. If it is sparse: memory
  // for a neuron, which is as much as a read takes.
  Bytes unit_bytes = 0;
  // Pages of the layer for all sequences at the planned context; in its first attention part.
  int64_t kv_pages = 0;
  // In the same part, if the layer gives the pages behind its window back. The same in all layers
  // that do. Not in a plan that evicts KV, or keeps some on a disk or a host.
  KvWindow window;
  // States and snapshots of all slots; in the first part of a block that keeps a state or has a window.
  Bytes state_bytes = 0;
  // Only of a part on demand: the device that has the part's units and computes them for the device
  // of the stage. -1: the device of the stage. A block's first part on demand has no host; of the
  // parts behind it, each is on another device, and has the next units.
  int32_t host = -1;
  bool streamed = false;
  // On demand: memory has this many of the part's units (UnitsIn); a step reads the units that it
  // has chosen itself, if they are not there. 0: the part is resident or streams as a whole.
  int64_t places = 0;
  // Sparse, which is on demand: the units are the neurons of an MLP with ReLU, as the bundles of the
  // layer have them. The part has all rows of the MLP but those of its decider, which are the parts
  // before it and resident or streamed. A micro-batch of at most Plan::batch rows reads the active
  // neurons that are not in memory, and computes the active ones alone. A longer one reads all rows,
  // piece by piece (planner/plan/sparse_parts.h), through memory that counts as activations. Memory
  // keeps the neurons of the last masks, at most so many. 0: not sparse.
  int32_t window_masks = 0;
  // Sparse: a copy of the decider in so many bits, with so many directions (common/proven_zeros), decides
  // which neurons are computed: those that it does not prove to be zero. The part then has all rows of the
  // block, those of the decider too, and is its only part. 0: the decider itself decides.
  int32_t decider_bits = 0;
  int32_t decider_directions = 0;
  // In the first part of an MLP block: the rank of the layer's predictor (Plan::predictor). 0: it has none.
  int32_t predictor_rank = 0;
  // On demand: the expected time to read, for one micro-batch of a decode step and for one prompt
  // chunk, and the expected share of the chosen units that a decode step finds in memory.
  double demand_ms = 0;
  double prefill_demand_ms = 0;
  double hit_share = 0;
  double chosen_units = 0;  // on demand: expected number that one micro-batch of a decode step chooses
  double active_units = 0;  // certified, with a calibration: expected number of these that are not zero
  // Sparse, if a calibration says which neurons are active: the expected number, bytes and time of the
  // reads of such a micro-batch, without other work of the disk. 0: nothing is known of zeros, so that
  // all neurons count as chosen.
  double demand_reads = 0;
  double demand_bytes = 0;
  double demand_io_ms = 0;
  // Time to compute this part for one micro-batch of a decode step. Attention is counted in the
  // parts with rows of its block. In the first KV part of a layer with a host: the time until the
  // host answers when the most KV is away, whether or not pieces come back. In a part with a host:
  // the time from the question until the units of all devices are computed.
  double decode_ms = 0;
  // The share of decode_ms that computes evicted KV again, at the end of the context.
  double evicted_ms = 0;
  double prefill_ms = 0;                 // for one chunk in the middle of the planned prompt
  UnitPolicy policy = UnitPolicy::kLru;  // on demand: which unit leaves memory for another one
  // On demand: as many of the places may have units that were read ahead, and that no step has chosen
  // since; at most all but one. 0: no read-ahead.
  int32_t ahead_places = 0;

  bool is_kv() const { return kv_end > 0; }
  bool on_demand() const { return places > 0; }
  bool sparse() const { return window_masks > 0; }
  bool certified() const { return decider_bits > 0; }
  // A predictor names its neurons. Like a certified part, it is the only one of its block.
  bool predicted() const { return sparse() && predictor_rank > 0; }
  // Its neurons are decided without rows of the decider, and come with them.
  bool has_own_decider() const { return certified() || predicted(); }
  bool has_experts_on_demand() const { return on_demand() && !sparse(); }
  bool hosted() const { return host >= 0; }
  friend bool operator==(const PlanPart&, const PlanPart&) = default;
};

// Softmax sums fixed ranges of this many ids. Parts of the head therefore begin at multiples of it
// (docs/internals/design.md, section 5).
inline constexpr int64_t kVocabRange = 1024;
inline constexpr int64_t kKvPiece = 256;  // positions that attention processes together

// Memory of one device by purpose. The sum is its budget.
struct PlanMemory {
  Bytes runtime = 0;      // the process and its libraries
  Bytes activations = 0;  // workspaces, and embedding rows that are read one by one
  Bytes kv = 0;           // pages
  Bytes state = 0;        // states of linear attention, of all slots, and all snapshots
  Bytes ring = 0;         // shared by streamed parts; 0 if nothing streams
  Bytes weights = 0;      // resident parts, and the pinned norms and biases of the others
  Bytes embedding = 0;
  Bytes hosted = 0;   // KV of other devices' layers
  Bytes fetched = 0;  // KV fetched back from the host for a while
  Bytes margin = 0;   // memory left free; at least PlanDevice::least_margin

  Bytes total() const { return runtime + activations + kv + state + ring + weights + embedding + hosted + fetched + margin; }
  friend bool operator==(const PlanMemory&, const PlanMemory&) = default;
};

struct PlanDevice {
  std::string name;         // its name in the cluster; a plan has no addresses
  std::string numerics_id;  // fixed order of every sum in its kernels; a change of plan keeps it
  Bytes budget = 0;
  // Always left free. 0 for a device that the plan does not use.
  Bytes least_margin = 0;
  PlanMemory memory;
  int64_t kv_pages = 0;         // in memory
  int64_t max_layer_pages = 0;  // limit per layer in memory; 0: no limit
  int32_t kv_host = -1;         // the device that stores the other pages; -1: its own disk does
  // Memory for this many pieces fetched from the host before their use. 0: LIME fetches none.
  int64_t kv_fetch_pieces = 0;
  bool asks_kv = true;  // the host attends to pieces not fetched; false: all are fetched
  // The values that the planner assumed.
  double ask_kv_ms = 0;           // fixed time to ask the host about one layer, both ways
  double kv_fetch_mb_per_ms = 0;  // from the host, next to activations
  double disk_mb_per_ms = 0;      // 0: the device cannot stream
  double disk_lat_ms = 0;         // per part read

  friend bool operator==(const PlanDevice&, const PlanDevice&) = default;
};

// Where the token embedding is. It always belongs to the device of the first stage.
enum class EmbeddingPlacement : uint8_t {
  kResident,  // all rows are in memory
  kByRows,    // a row is read from the disk when a token needs it
  // The head is the same tensor. It is entirely resident on this device, so the embedding takes no
  // memory of its own. Not allowed if KV grows, because parts of the head may then begin to stream.
  kWithHead,
};

// Times of one hop, and of reading embedding rows.
struct StepTimes {
  double tx_ms = 0;   // one micro-batch's hidden states on the wire
  double lat_ms = 0;  // one way
  // Reading one micro-batch's embedding rows from the disk. Counts only with kByRows.
  double embed_rows_ms = 0;

  friend bool operator==(const StepTimes&, const StepTimes&) = default;
};

struct Prediction {
  double ms_per_step = 0;     // steady state; a step moves every micro-batch by one token
  double ms_per_token = 0;    // ms_per_step / sequences
  double ttft_ms = 0;         // prompt to first token from idle; 0: no prompt was planned
  double lower_bound_ms = 0;  // per step; no plan can be faster

  friend bool operator==(const Prediction&, const Prediction&) = default;
};

struct Plan {
  int64_t epoch = 0;       // version of the installed plan; higher is newer
  std::string model_key;   // ModelKey of the spec
  std::string model_name;  // for people
  int64_t vocab_size = 0;
  int64_t context = 0;  // positions of each sequence that have KV memory
  // Only the newest positions keep their KV (planner/plan/plan_rows.h). 0: all do.
  int64_t retained_positions = 0;
  int32_t sequences = 1;     // running at the same time
  int32_t microbatches = 1;  // per decode step
  int32_t batch = 1;         // sequences per micro-batch; the last one may have fewer
  // Rows of a micro-batch that may ask for logits, so that scoring a prompt takes few steps. 0: as
  // many as sequences. If it is set, the last stage has the whole head and all KV is kept.
  int32_t logit_rows = 0;
  // Copies that a slot can keep of its sequence's states, or of the pages of its windows, each at some
  // position, so that a later sequence begins there (BatchRow::snapshot). 0 if the model keeps no
  // state, and no layer gives pages back.
  int32_t state_snapshots = 0;
  // The hash of the predictor that names the neurons of each row (planner/plan/predictor_parts.h): results are
  // those of the checkpoint and this predictor. Empty: none, and results are those of the checkpoint.
  std::string predictor;
  // A streamed part stays until the last micro-batch of a step has used it. If false, every
  // micro-batch reads it again, as in a plain pipeline; for comparison.
  bool reads_once = true;
  EmbeddingPlacement embedding = EmbeddingPlacement::kResident;
  Bytes embedding_bytes = 0;         // of the rows
  Bytes embedding_pinned_bytes = 0;  // learned positions, embeddings of layers; always in memory
  Bytes page_bytes = 0;              // of one KV page
  int64_t prompt_tokens = 0;         // planned prompt length; 0: none
  int64_t prefill_chunk = 0;         // prompt tokens per micro-batch; 0 without a prompt
  // Chunks that share the reads of one step. 0 without a prompt; 1 unless reads_once.
  int32_t chunks_per_sweep = 0;
  std::vector<PlanDevice> devices;
  std::vector<PlanPart> parts;  // in execution order
  // Over `parts`. Neighbours are on different devices. A device may appear several times, or never.
  std::vector<Stage> stages;
  StepTimes decode;
  StepTimes prefill;
  Prediction predicted;

  int NumDevices() const { return static_cast<int>(devices.size()); }
  int NumParts() const { return static_cast<int>(parts.size()); }
  int64_t NumPrefillChunks() const { return prefill_chunk > 0 ? (prompt_tokens + prefill_chunk - 1) / prefill_chunk : 0; }

  // Checks that numbers are in bounds, stages cover all parts, rows leave no gaps, every device's
  // memory matches its parts, pages and ring, and each ring is large enough for its stages. The
  // error names the first problem. A plan that passes can be compiled.
  absl::Status Validate() const;
  // Also checks that the plan has every matrix row of this model once, in order, with its bytes.
  absl::Status Validate(const ModelSpec& spec) const;

  friend bool operator==(const Plan&, const Plan&) = default;
};

// The memory that a device needs for its stages, its residency and the KV of other devices.
struct PlanNeed {
  Bytes weights = 0;
  Bytes embedding = 0;
  // At least the largest streamed part; if StaysTogether, all streamed parts of a stage.
  Bytes ring = 0;
  int64_t kv_pages = 0;  // of its layers, in memory
  Bytes state = 0;
  Bytes hosted = 0, fetched = 0;
  bool streams = false;
  bool demands = false;  // loads on demand, experts or neurons
};
// One entry per device.  REQUIRES: stages and hosts refer to existing devices and parts
std::vector<PlanNeed> NeedsOf(const Plan& plan);

// The units of a part with experts on demand: the rows of one expert each, in order.
std::vector<std::span<const MatrixRows>> UnitsIn(std::span<const MatrixRows> rows);
// Memory that the part needs for its rows: all of them if it is resident, its places if it is on
// demand, which have unit_bytes; 0 if it streams or has positions of KV.
Bytes MemoryOf(const PlanPart& part);

// The bytes that can stream or be resident as a whole: none of a part on demand.
inline Bytes MovableBytes(const PlanPart& part) {
  return part.on_demand() ? 0 : part.bytes;
}
// The expected bytes that one micro-batch of a decode step reads on demand.
inline double DemandBytes(const PlanPart& part) {
  if (part.demand_reads > 0) return part.demand_bytes;
  return part.on_demand() ? part.chosen_units * (1 - part.hit_share) * static_cast<double>(part.unit_bytes) : 0;
}
// The expected time of the part in a decode step: its reads on demand, and its computation.
inline double ExpectedMs(const PlanPart& part) {
  return part.decode_ms + part.demand_ms;
}

// The time by which the part makes a decode step longer: of a part with a host, how much longer the
// units of all devices take than those of the stage's device, counted once for each block.
double AddedMs(const Plan& plan, int part);

// Bytes of these rows in memory and on the disk, padded for reads aligned to 4 KiB.
Bytes PartBytes(const BlockSpec& block, std::span<const MatrixRows> rows);
// PartBytes of the largest of these units.
Bytes UnitBytes(const BlockSpec& block, std::span<const MatrixRows> rows);

// The largest number of rows of a micro-batch that may ask for logits.
inline int64_t MostLogitRows(const Plan& plan) {
  return plan.batch > plan.logit_rows ? plan.batch : plan.logit_rows;
}

// Whether a streamed part stays in the ring until the last of `microbatches` has used it.
bool StaysTogether(const Plan& plan, int64_t microbatches);

// PartsOf: the block's parts [first, second), empty if it has none. BeginsBlock: whether a part is
// the first one of its block. StageOf: the stage of a part.
// REQUIRES: parts and stages in order
std::pair<int, int> PartsOf(const Plan& plan, BlockId block);
bool BeginsBlock(const Plan& plan, int part);
int StageOf(const Plan& plan, int part);
// The device that has the part's weights: its host, or the device of its stage.
int32_t DeviceOf(const Plan& plan, int part);
// The index of a device; -1: it has no part in the plan.
int32_t DeviceNamed(const Plan& plan, const std::string& name);

// The kind of a block in an Instance. The two halves of a layer and the head.
constexpr Instance::Kind InstanceKind(BlockKind kind) {
  return IsAttentionHalf(kind) ? Instance::Kind::kAttention : IsMlpHalf(kind) ? Instance::Kind::kMlp : Instance::Kind::kHead;
}

// The ids whose logits this part computes.  REQUIRES: part.block.kind == kHead, validated
MatrixRows HeadRange(const PlanPart& part);
// The number of ids whose logits are known before this part. 0 before the head.
int64_t IdsBefore(const Plan& plan, int part);

// "attention 3". "mlp 3 [2/4]" if the block has several parts. "head 0..4095" if the head has
// several. "kv 3 0..4095". PartsName names the parts [lo, hi) of one block.
std::string PartName(const Plan& plan, int part);
std::string PartsName(const Plan& plan, int lo, int hi);

// Limits of Validate(), in addition to the bounds of an Instance.
inline constexpr int32_t kMaxPlanExperts = 1024;
inline constexpr int kMaxRowsPerPart = 4096;           // a whole block of 1024 experts
inline constexpr int64_t kMaxUnits = kMaxPlanExperts;  // of a part on demand
inline constexpr int64_t kMaxAheadPlaces = 64;         // PlanPart::ahead_places
inline constexpr int32_t kMaxStateSnapshots = 16;      // Plan::state_snapshots
inline constexpr size_t kMaxPlanName = 512;
inline constexpr int64_t kMaxPrefillChunks = 1 << 16;
inline constexpr int64_t kMaxPlanRuns = int64_t{1} << 20;  // parts x micro-batches, of a decode step and of a prompt

}  // namespace lime
