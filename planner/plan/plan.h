// What is installed on the devices of a cluster: which device computes and holds what, what streams, how the memory of each is divided, and
// how long a token is said to take.
//
// A plan is complete: from it alone every device knows what to do (planner/compile.h), and anyone can simulate it (planner/sim).
// Pure data; from outside, its JSON is hostile input (planner/plan/cluster_plan_json.h).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/block_pieces.h"
#include "planner/plan/model_spec.h"
#include "planner/plan/stage_plan.h"

namespace lime {

// The least part of a model that is loaded and computed by itself: a block, some rows of its matrices, or in an attention block between
// those of V and O some positions of its KV (planner/plan/kv_spill.h). One for each Instance::Block.
//
// A part names its rows, so that parts of one block may one day belong to several devices at once and be joined by all-gathers; for now all
// parts of a block but the head's lie in one stage, and the stages of the head's parts follow one another.
struct PlanPart {
  BlockId block;                 // never the embedding
  std::vector<MatrixRows> rows;  // in order of use; the head's begin on multiples of kVocabRange; none of a KV part
  // A KV part: positions [kv_begin, kv_end) of every sequence, multiples of 256. Where it streams, those that are on the disk are read in
  // every step; where it does not, all are in memory, and count as pages, or where a host has them. The parts of a block have all
  // positions, in order, or none.
  int64_t kv_begin = 0, kv_end = 0;
  Bytes bytes = 0;       // of these rows or positions: what is resident, or read from the disk in every step
  Bytes kept_bytes = 0;  // norms and biases, in memory whatever streams; with the first part of a block, with every one of the head
  int64_t kv_pages = 0;  // of the layer, with the first part of an attention block: all sequences at the planned context
  bool streamed = false;
  // Computing it for one micro-batch of the decode step, on its device; attention counts with the rows of its block. Of the first KV part
  // where a host has some: asking it, until the answer is there, where as much is away as ever is (AskKvMs), whether or not it comes back.
  double decode_ms = 0;
  double evicted_ms = 0;  // of decode_ms, what of evicted KV is computed again at the end of the context (planner/plan/kv_eviction.h)
  double prefill_ms = 0;  // for one chunk of a prompt, in the middle of the planned prompt

  bool is_kv() const { return kv_end > 0; }
  friend bool operator==(const PlanPart&, const PlanPart&) = default;
};

// Softmax adds up fixed ranges of this many ids, so a head is split on multiples of them (design.md, section 5).
inline constexpr int64_t kVocabRange = 1024;
inline constexpr int64_t kPageTokens = 16;  // positions of one layer in a KV page
inline constexpr int64_t kKvPiece = 256;    // positions that attention takes together (design.md, section 5)

// Of one device, by kind; together the budget.
struct PlanMemory {
  Bytes runtime = 0;      // the process and its libraries
  Bytes activations = 0;  // workspaces, and the rows of an embedding that is read by rows
  Bytes kv = 0;           // pages
  Bytes ring = 0;         // for streamed parts; 0 where nothing streams
  Bytes weights = 0;      // resident parts, and what is kept of the others
  Bytes embedding = 0;
  Bytes hosted = 0;   // KV of other devices' layers
  Bytes fetched = 0;  // KV that the host has, back for a while
  Bytes margin = 0;   // what the plan leaves free; PlanDevice::least_margin at least

  Bytes total() const { return runtime + activations + kv + ring + weights + embedding + hosted + fetched + margin; }
  friend bool operator==(const PlanMemory&, const PlanMemory&) = default;
};

struct PlanDevice {
  std::string name;         // by which everyone knows it; where it is reached is not the plan's business
  std::string numerics_id;  // of its kernels: the fixed order of every sum. Layers keep theirs through re-plans
  Bytes budget = 0;
  Bytes least_margin = 0;  // left free whatever streams and however much KV there is; 0 where the device has no part in the plan
  PlanMemory memory;
  int64_t kv_pages = 0;         // in memory
  int64_t max_layer_pages = 0;  // of each layer at most in memory; 0: all
  int32_t kv_host = -1;         // the device that has the others; -1: its own disk has them
  int64_t kv_fetch_pieces = 0;  // room for so many pieces, each of one layer, that come back from the host ahead of their use; 0: none do
  bool asks_kv = true;          // the host attends to what has not come back; else everything does
  // What was assumed.
  double ask_kv_ms = 0;           // of asking the host about a layer: what the context does not change, the way there and back
  double kv_fetch_mb_per_ms = 0;  // from the host, beside activations
  double disk_mb_per_ms = 0;      // 0: nothing can stream here
  double disk_lat_ms = 0;         // per part read

  friend bool operator==(const PlanDevice&, const PlanDevice&) = default;
};

// Where the rows of the token embedding come from, always on the device of the first stage.
enum class EmbeddingPlacement : uint8_t {
  kResident,  // they are in memory
  kByRows,    // each is read from the disk when a token needs it
  // They are the rows of the head, which is the same tensor, and stays as a whole in the memory of
  // this device: so they take none of their own. Not where KV grows, and parts may come to stream.
  kWithHead,
};

// How often a streamed part is read in a step of several micro-batches.
enum class ReadsPerStep : uint8_t {
  kOnce,           // it stays until the last micro-batch has used it
  kPerMicrobatch,  // every micro-batch reads it again: a plain pipeline with offloading, to compare with
};

// One hop, and what else a step costs beside its parts.
struct StepTimes {
  double tx_ms = 0;          // one micro-batch's hidden state on the wire
  double lat_ms = 0;         // one way
  double embed_rows_ms = 0;  // reading one micro-batch's rows of the embedding from disk; counts where it is read by rows

  friend bool operator==(const StepTimes&, const StepTimes&) = default;
};

struct Prediction {
  double ms_per_step = 0;     // every micro-batch moved by one token, once the pipeline has settled
  double ms_per_token = 0;    // ms_per_step / sequences
  double ttft_ms = 0;         // prompt to first token, from an idle start; 0: no prompt was planned for
  double lower_bound_ms = 0;  // per step: no plan can be faster

  friend bool operator==(const Prediction&, const Prediction&) = default;
};

struct Plan {
  int64_t epoch = 0;       // version of what is installed; higher is newer
  std::string model_key;   // ModelKey of the spec
  std::string model_name;  // for people
  int64_t vocab_size = 0;
  int64_t context = 0;         // tokens of each sequence that KV is reserved for
  int64_t kept_positions = 0;  // of them, those whose KV is kept, the newest; 0: all (planner/plan/kv_eviction.h)
  int32_t sequences = 1;       // served at a time
  int32_t microbatches = 1;    // a decode step is so many
  int32_t batch = 1;           // sequences in one, the last may hold fewer
  int32_t logit_rows = 0;      // rows of one that may ask for logits, to score prompts in few steps; 0: as many as sequences. Else the last
                               // stage has the whole head, and all KV is kept
  ReadsPerStep reads = ReadsPerStep::kOnce;
  EmbeddingPlacement embedding = EmbeddingPlacement::kResident;
  Bytes embedding_bytes = 0;       // of its rows
  Bytes embedding_kept_bytes = 0;  // learned positions: in memory whatever happens to the rows
  Bytes page_bytes = 0;            // of one KV page
  int64_t prompt_tokens = 0;       // planned for; 0: no prompt was
  int64_t prefill_chunk = 0;       // tokens of a prompt that flow as one micro-batch; 0 where no prompt was planned
  int32_t chunks_per_sweep = 0;    // chunks that flow through one step together and share what it reads; 0 likewise; 1 with kPerMicrobatch
  std::vector<PlanDevice> devices;
  std::vector<PlanPart> parts;  // in execution order
  std::vector<Stage> stages;    // over parts; neighbours on different devices; a device may appear again, or never
  StepTimes decode;
  StepTimes prefill;
  Prediction predicted;

  int NumDevices() const { return static_cast<int>(devices.size()); }
  int NumParts() const { return static_cast<int>(parts.size()); }
  int64_t NumPrefillChunks() const { return prefill_chunk > 0 ? (prompt_tokens + prefill_chunk - 1) / prefill_chunk : 0; }

  // Names the first thing wrong: numbers out of bounds, stages that do not cover the parts, rows that leave gaps, a device whose kinds of
  // memory do not add up to what its parts, pages and ring need, a ring too small for its stages. What passes compiles.
  absl::Status Validate() const;
  // Also that it is a plan of this model: every row of every matrix once, in order, with the bytes that they have.
  absl::Status Validate(const ModelSpec& spec) const;

  friend bool operator==(const Plan&, const Plan&) = default;
};

// What stages, residency and the KV of others make a device need.
struct PlanNeed {
  Bytes weights = 0;
  Bytes embedding = 0;
  Bytes ring = 0;  // at least: the largest streamed part, or with several micro-batches or chunks in a step all that one stage streams
  int64_t kv_pages = 0;  // of its layers, in memory
  Bytes hosted = 0, fetched = 0;
  bool streams = false;
};
// By device.  REQUIRES: stages and hosts refer to devices and parts that are there
std::vector<PlanNeed> NeedsOf(const Plan& plan);

// What some rows of a block's matrices take in memory and of the disk: their bytes, and room for reads that begin and end on 4 KiB.
Bytes PartBytes(const BlockSpec& block, std::span<const MatrixRows> rows);

// Rows of a micro-batch that may ask for logits.
inline int64_t MostLogitRows(const Plan& plan) {
  return plan.batch > plan.logit_rows ? plan.batch : plan.logit_rows;
}

// Whether a streamed part waits in the ring for the last of so many micro-batches.
bool StaysTogether(const Plan& plan, int64_t microbatches);

// A block's parts [first, second), empty where there is none.  The stage of a part.  REQUIRES: parts and stages in order
std::pair<int, int> PartsOf(const Plan& plan, BlockId block);
int StageOf(const Plan& plan, int part);

// The ids whose logits a part of the head makes.  REQUIRES: part.block.kind == kHead, validated
MatrixRows HeadRange(const PlanPart& part);
// Ids whose logits are known in front of a part, or behind the last one: those below. 0 where the head has not begun.
int64_t IdsBefore(const Plan& plan, int part);

// "attention 3", "mlp 3 [2/4]" where a block has several parts, "head 0..4095" where the head does, "kv 3 0..4095"; and of the parts [lo,
// hi) of one block.
std::string PartName(const Plan& plan, int part);
std::string PartsName(const Plan& plan, int lo, int hi);

// What Validate() allows at most, beside the bounds of an Instance.
inline constexpr int kMaxRowsPerPart = 16;
inline constexpr size_t kMaxPlanName = 512;
inline constexpr int64_t kMaxPrefillChunks = 1 << 16;
inline constexpr int64_t kMaxPlanRuns = int64_t{1} << 20;  // parts x micro-batches, of a decode step and of a prompt

}  // namespace lime
