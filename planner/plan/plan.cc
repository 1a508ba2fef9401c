#include "planner/plan/plan.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_checks.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"
#include "planner/plan/predictor_parts.h"
#include "planner/plan/program.h"
#include "planner/plan/sparse_parts.h"

namespace lime {
namespace {

constexpr double kMostDemandBytes = 1e15;  // of a part

absl::Status CheckName(FieldName field, const std::string& name) {
  if (name.size() <= kMaxPlanName) return absl::OkStatus();
  return Invalid("plan: field \"", field.of, field.member, "\" is longer than ", kMaxPlanName, " bytes");
}

absl::Status CheckTimes(absl::string_view phase, const StepTimes& times) {
  LIME_RETURN_IF_ERROR(CheckNumber({phase, ".tx_ms"}, times.tx_ms));
  LIME_RETURN_IF_ERROR(CheckNumber({phase, ".lat_ms"}, times.lat_ms));
  return CheckNumber({phase, ".embed_rows_ms"}, times.embed_rows_ms);
}

// Checks the fields that depend on nothing else.
absl::Status CheckHead(const Plan& plan) {
  LIME_RETURN_IF_ERROR(CheckInt({"epoch"}, plan.epoch, 0, INT64_MAX));
  LIME_RETURN_IF_ERROR(CheckName({"model_key"}, plan.model_key));
  LIME_RETURN_IF_ERROR(CheckName({"model_name"}, plan.model_name));
  LIME_RETURN_IF_ERROR(CheckInt({"vocab_size"}, plan.vocab_size, 1, kMaxTokens));
  LIME_RETURN_IF_ERROR(CheckInt({"context"}, plan.context, 1, kMaxTokens));
  LIME_RETURN_IF_ERROR(CheckInt({"kept_positions"}, plan.retained_positions, 0, plan.context));
  LIME_RETURN_IF_ERROR(CheckInt({"microbatches"}, plan.microbatches, 1, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(CheckInt({"batch"}, plan.batch, 1, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(CheckInt({"sequences"}, plan.sequences, 1, int64_t{plan.microbatches} * plan.batch));
  LIME_RETURN_IF_ERROR(CheckInt({"sequences"}, plan.sequences, (int64_t{plan.microbatches} - 1) * plan.batch + 1, kMaxTokens));
  LIME_RETURN_IF_ERROR(CheckInt({"logit_rows"}, plan.logit_rows, 0, plan.retained_positions > 0 ? 0 : OwnRows(plan)));
  LIME_RETURN_IF_ERROR(CheckInt({"state_snapshots"}, plan.state_snapshots, 0, MayKeepSnapshots(plan) ? kMaxStateSnapshots : 0));
  LIME_RETURN_IF_ERROR(CheckInt({"embedding_bytes"}, plan.embedding_bytes, 0, kMaxPartBytes));
  LIME_RETURN_IF_ERROR(CheckInt({"embedding_kept_bytes"}, plan.embedding_pinned_bytes, 0, kMaxPartBytes));
  LIME_RETURN_IF_ERROR(CheckInt({"page_bytes"}, plan.page_bytes, 1, kMaxPartBytes));
  LIME_RETURN_IF_ERROR(CheckInt({"prompt_tokens"}, plan.prompt_tokens, 0, plan.context));
  LIME_RETURN_IF_ERROR(CheckInt({"prefill_chunk"}, plan.prefill_chunk, plan.prompt_tokens > 0 ? 1 : 0, plan.prompt_tokens));
  LIME_RETURN_IF_ERROR(CheckInt({"devices"}, plan.NumDevices(), 1, kMaxPlanDevices));
  LIME_RETURN_IF_ERROR(CheckInt({"parts"}, static_cast<int64_t>(plan.parts.size()), 1, kMaxPlanBlocks));
  LIME_RETURN_IF_ERROR(CheckInt({"parts x microbatches"}, int64_t{plan.NumParts()} * plan.microbatches, 1, kMaxPlanRuns));
  LIME_RETURN_IF_ERROR(CheckInt({"chunks_per_sweep"}, plan.chunks_per_sweep, 0, kMaxMicrobatches));
  if (plan.prompt_tokens > 0) {
    LIME_RETURN_IF_ERROR(CheckInt({"prompt_tokens / prefill_chunk"}, plan.NumPrefillChunks(), 1, kMaxPrefillChunks));
    LIME_RETURN_IF_ERROR(CheckInt({"chunks_per_sweep"}, plan.chunks_per_sweep, 1, plan.reads_once ? plan.NumPrefillChunks() : 1));
    LIME_RETURN_IF_ERROR(CheckInt({"parts x chunks_per_sweep"}, int64_t{plan.NumParts()} * plan.chunks_per_sweep, 1, kMaxPlanRuns));
  }
  LIME_RETURN_IF_ERROR(CheckTimes("decode", plan.decode));
  LIME_RETURN_IF_ERROR(CheckTimes("prefill", plan.prefill));
  LIME_RETURN_IF_ERROR(CheckNumber({"predicted.ms_per_step"}, plan.predicted.ms_per_step));
  LIME_RETURN_IF_ERROR(CheckNumber({"predicted.ms_per_token"}, plan.predicted.ms_per_token));
  LIME_RETURN_IF_ERROR(CheckNumber({"predicted.ttft_ms"}, plan.predicted.ttft_ms));
  return CheckNumber({"predicted.lower_bound_ms"}, plan.predicted.lower_bound_ms);
}

// Index of a block in execution order, from the first layer's attention. The head comes after any
// layer.
int64_t Place(BlockId id) {
  return id.kind == BlockKind::kHead ? int64_t{1} << 40 : 2 * int64_t{id.layer} + (IsMlpHalf(id.kind) ? 1 : 0);
}

absl::Status CheckBlockOrder(const Plan& plan, int p, const std::string& name) {
  const BlockId block = plan.parts[p].block;
  if (block.kind == BlockKind::kEmbedding) return Invalid("plan: ", name, " is of the embedding, which is not a part");
  const int64_t before = p > 0 ? Place(plan.parts[p - 1].block) : -1;
  const bool next = Place(block) == before + 1 || (block.kind == BlockKind::kHead && before % 2 == 1);
  if (block.layer < 0 || (BeginsBlock(plan, p) && !next)) {
    return Invalid("plan: ", name, " is of ", BlockName(block), ", which does not follow ",
                   p > 0 ? BlockName(plan.parts[p - 1].block) : std::string("the embedding"));
  }
  return absl::OkStatus();
}

// The last rows of the same block before this part; null if there are none.
const MatrixRows* RowsBefore(const Plan& plan, int p) {
  for (int before = p - 1; before >= 0 && plan.parts[before].block == plan.parts[p].block; --before) {
    if (!plan.parts[before].rows.empty()) return &plan.parts[before].rows.back();
  }
  return nullptr;
}

// Only blocks with experts have rows of them.
absl::Status CheckExpert(BlockId block, int32_t expert, const std::string& name) {
  const int32_t most = block.kind == BlockKind::kExperts ? kMaxPlanExperts - 1 : -1;
  if (expert >= -1 && expert <= most) return absl::OkStatus();
  return Invalid("plan: ", name, ".rows are of expert ", expert, ", which ", BlockName(block), " cannot have");
}

// Rows of a matrix continue where the part before ended, or begin at 0.
absl::Status CheckRows(const Plan& plan, int p, const std::string& name) {
  const PlanPart& part = plan.parts[p];
  LIME_RETURN_IF_ERROR(CheckInt({name, ".rows"}, static_cast<int64_t>(part.rows.size()), 1, kMaxRowsPerPart));
  const MatrixRows* before = RowsBefore(plan, p);
  for (const MatrixRows& rows : part.rows) {
    const bool goes_on = before != nullptr && before->role == rows.role && before->expert == rows.expert;
    LIME_RETURN_IF_ERROR(CheckExpert(part.block, rows.expert, name));
    if (rows.begin != (goes_on ? before->end : 0) || rows.end <= rows.begin || rows.end > kMaxTokens) {
      return Invalid("plan: ", name, ".rows: ", rows.begin, " to ", rows.end, ", but rows from ", goes_on ? before->end : 0,
                     " on are next");
    }
    before = &rows;
  }
  return absl::OkStatus();
}

// A part on demand has all units of the rest of its block: with experts, each one's rows once, in order.
absl::Status CheckOnDemand(const Plan& plan, int p, const std::string& name) {
  const PlanPart& part = plan.parts[p];
  LIME_RETURN_IF_ERROR(CheckInt({name, ".places"}, part.places, 0, part.is_kv() ? 0 : part.sparse() ? kMaxNeurons : kMaxUnits));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".window_masks"}, part.window_masks, 0, part.on_demand() ? kMaxWindowMasks : 0));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".demand_ms"}, part.demand_ms));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".prefill_demand_ms"}, part.prefill_demand_ms));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".hit_share"}, part.hit_share));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".chosen_units"}, part.chosen_units));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".demand_reads"}, part.demand_reads));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".demand_bytes"}, part.demand_bytes));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".demand_io_ms"}, part.demand_io_ms));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".active_units"}, part.active_units));
  if (!part.sparse() && (part.decider_bits != 0 || part.decider_directions != 0))
    return Invalid("plan: ", name, " has decider_bits or decider_directions, but is not sparse");
  if (!part.certified() && (part.decider_directions != 0 || part.active_units > 0))
    return Invalid("plan: ", name, " has decider_directions or active_units, but no decider_bits");
  const bool has_reads = part.demand_reads > 0 || part.demand_bytes > 0 || part.demand_io_ms > 0;
  if (has_reads && !part.sparse()) return Invalid("plan: ", name, " has demand_reads, demand_bytes or demand_io_ms, but is not sparse");
  if (part.demand_bytes > kMostDemandBytes) return Invalid("plan: ", name, ".demand_bytes = ", part.demand_bytes, " is too large");
  if (part.hit_share > 1) return Invalid("plan: ", name, ".hit_share = ", part.hit_share, " is more than 1");
  if (!part.on_demand() && part.policy != UnitPolicy::kLru)
    return Invalid("plan: ", name, ".policy is ", std::string(kUnitPolicyNames.Of(part.policy)), ", but the part is not on demand");
  LIME_RETURN_IF_ERROR(
      CheckInt({name, ".ahead_places"}, part.ahead_places, 0, std::min(std::max<int64_t>(0, part.places - 1), kMaxAheadPlaces)));
  if (part.host != -1 && !part.on_demand())
    return Invalid("plan: ", name, ".host is ", part.host, ", but only experts on demand can have a host; leave it out");
  if (part.host < -1 || part.host >= plan.NumDevices())
    return Invalid("plan: ", name, ".host is ", part.host, ", but the plan has devices 0 to ", plan.NumDevices() - 1);
  if (!part.on_demand()) return CheckInt({name, ".unit_bytes"}, part.unit_bytes, 0, 0);
  if (part.streamed) return Invalid("plan: ", name, " is on demand and streams; it can be one of them");
  if (part.sparse()) return CheckSparse(plan, p, name);
  if (part.block.kind != BlockKind::kExperts) return Invalid("plan: ", name, " is on demand, but is of ", BlockName(part.block));
  if (BeginsBlock(plan, p)) return Invalid("plan: ", name, " is on demand, but no part before it chooses its units");
  if (p + 1 < plan.NumParts() && plan.parts[p + 1].block == part.block && !plan.parts[p + 1].hosted())
    return Invalid("plan: ", name, " is on demand, but is not the last part of ", BlockName(part.block), " on its device");
  for (const MatrixRows& rows : part.rows) {
    if (rows.expert < 0) return Invalid("plan: ", name, " is on demand, but has rows of no expert");
  }
  const int64_t units = std::ssize(UnitsIn(part.rows));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".places"}, part.places, 1, units));
  // So that the product of both cannot overflow.
  return CheckInt({name, ".unit_bytes"}, part.unit_bytes, 1, std::max<Bytes>(1, part.bytes));
}

absl::Status CheckHeadPart(const Plan& plan, int p, const std::string& name) {
  const PlanPart& part = plan.parts[p];
  if (part.rows.size() != 1 || part.rows[0].role != TensorRole::kOutput)
    return Invalid("plan: ", name, ".rows of the head are not one range of the output");
  const int64_t end = part.rows[0].end;
  const bool last = p + 1 == plan.NumParts();
  if (last ? end == plan.vocab_size : end % kVocabRange == 0 && end < plan.vocab_size) return absl::OkStatus();
  return Invalid("plan: ", name, ".rows of the head end at ", end,
                 last ? ", not at the vocabulary's " : ", which is not a multiple of 1024 below the vocabulary's ", plan.vocab_size);
}

// Positions continue where the KV part before ended, after all rows that make q, k and v, and before
// the rows of O.
absl::Status CheckKvPart(const Plan& plan, int p, const std::string& name) {
  const PlanPart& part = plan.parts[p];
  const PlanPart* const before = p > 0 ? &plan.parts[p - 1] : nullptr;
  const PlanPart* const next = p + 1 < plan.NumParts() ? &plan.parts[p + 1] : nullptr;
  const bool goes_on = before != nullptr && before->block == part.block && before->is_kv();
  const int64_t begin = goes_on ? before->kv_end : 0, most = RoundUp(plan.context, kKvPiece);
  if (!HasKv(part.block.kind) || !part.rows.empty())
    return Invalid("plan: ", name, " has positions of KV, but is of ", part.rows.empty() ? BlockName(part.block) : std::string("rows too"));
  if (part.kv_begin != begin || part.kv_end <= begin || part.kv_end % kKvPiece != 0 || part.kv_end > most) {
    return Invalid("plan: ", name, " has positions ", part.kv_begin, " to ", part.kv_end, " of KV, but the next part has a multiple of ",
                   kKvPiece, " positions, from ", begin, " on and up to ", most);
  }
  const MatrixRows* const rows = RowsBefore(plan, p);
  if (rows == nullptr || rows->role == TensorRole::kO)
    return Invalid("plan: ", name, " has positions of KV that do not follow the rows that make them");
  const bool last = next == nullptr || !(next->block == part.block) || !next->is_kv();
  if (last && part.kv_end != most) return Invalid("plan: ", name, " ends the positions of its layer's KV at ", part.kv_end, " of ", most);
  const bool o_is_next = next != nullptr && next->block == part.block && !next->rows.empty() && next->rows[0].role == TensorRole::kO;
  if (last && !o_is_next) return Invalid("plan: ", name, " has positions of KV that do not precede the rows of o");
  // Of the whole layer. The bound keeps sums over parts and layers from overflowing.
  const int64_t pieces = most / kKvPiece;
  if (KvPieceBytes(plan) > kMaxPartBytes / plan.sequences || pieces > kMaxPartBytes / (plan.sequences * KvPieceBytes(plan)))
    return Invalid("plan: ", name, " has ", pieces, " pieces of KV of ", plan.sequences, " sequences in a layer, which exceeds the limit");
  LIME_RETURN_IF_ERROR(CheckSum({name, ".bytes"}, part.bytes, KvPartBytes(plan, part), "the bytes of its pages"));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".kept_bytes"}, part.pinned_bytes, 0, 0));
  return CheckInt({name, ".kv_pages"}, part.kv_pages, 0, 0);
}

// All layers that give pages back have the same window, with room for the rows of a micro-batch.
absl::Status CheckWindow(const Plan& plan, int p, const std::string& name) {
  const PlanPart& part = plan.parts[p];
  const KvWindow& window = part.window;
  const bool has_pages = HasKv(part.block.kind) && BeginsBlock(plan, p);
  LIME_RETURN_IF_ERROR(CheckInt({name, ".window"}, window.positions, 0, has_pages ? kMaxTokens : 0));
  if (window.positions == 0) return CheckInt({name, ".window_pages"}, window.pages, 0, 0);
  LIME_RETURN_IF_ERROR(
      CheckInt({name, ".window_pages"}, window.pages, WindowPages(window.positions, OwnRows(plan)), kMaxTokens / kPageTokens));
  if (!(window == WindowOf(plan))) return Invalid("plan: ", name, " has another window than the parts before");
  if (!RetainsAllKv(plan) || SpillsKv(plan) || std::ranges::any_of(plan.parts, &PlanPart::is_kv))
    return Invalid("plan: ", name, " gives pages of KV back, which a plan with KV that is evicted or away does not support");
  if (HasState(plan)) return Invalid("plan: ", name, " gives pages of KV back, which a plan with linear attention does not support");
  const int64_t pages_of_snapshots = int64_t{plan.sequences} * plan.state_snapshots * SnapshotPages(window);
  LIME_RETURN_IF_ERROR(CheckInt({name, ".window: pages of snapshots"}, pages_of_snapshots, 0, kMaxPartBytes / plan.page_bytes));
  return CheckInt({name, ".kv_pages"}, part.kv_pages, 0, plan.sequences * window.pages);
}

absl::Status CheckPart(const Plan& plan, int p) {
  const PlanPart& part = plan.parts[p];
  const std::string name = absl::StrCat("parts[", p, "]");
  LIME_RETURN_IF_ERROR(CheckBlockOrder(plan, p, name));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".kv_begin"}, part.kv_begin, 0, kMaxTokens));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".kv_end"}, part.kv_end, part.kv_begin > 0 ? 1 : 0, kMaxTokens));
  LIME_RETURN_IF_ERROR(part.is_kv() ? CheckKvPart(plan, p, name) : CheckRows(plan, p, name));
  if (part.block.kind == BlockKind::kHead) LIME_RETURN_IF_ERROR(CheckHeadPart(plan, p, name));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".bytes"}, part.bytes, 0, kMaxPartBytes));
  LIME_RETURN_IF_ERROR(CheckOnDemand(plan, p, name));
  LIME_RETURN_IF_ERROR(CheckPredictor(plan, p, name));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".kept_bytes"}, part.pinned_bytes, 0, kMaxPartBytes));
  const int64_t most_pages = HasKv(part.block.kind) ? kMaxPartBytes / plan.page_bytes : 0;
  LIME_RETURN_IF_ERROR(CheckInt({name, ".kv_pages"}, part.kv_pages, 0, most_pages));
  LIME_RETURN_IF_ERROR(CheckWindow(plan, p, name));
  const bool has_state = (HasState(part.block.kind) && BeginsBlock(plan, p)) || SnapshotBytes(plan, part.window) > 0;
  const Bytes most_state = has_state ? kMaxPartBytes : 0;
  LIME_RETURN_IF_ERROR(CheckInt({name, ".state_bytes"}, part.state_bytes, 0, most_state));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".decode_ms"}, part.decode_ms));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".evicted_ms"}, part.evicted_ms));
  return CheckNumber({name, ".prefill_ms"}, part.prefill_ms);
}

absl::Status CheckStage(const Plan& plan, int j) {
  const Stage& stage = plan.stages[j];
  const std::string name = absl::StrCat("stages[", j, "]");
  const int expected = j == 0 ? 0 : plan.stages[j - 1].hi;
  LIME_RETURN_IF_ERROR(CheckInt({name, ".device"}, stage.device, 0, plan.NumDevices() - 1));
  if (stage.lo != expected)
    return Invalid("plan: field \"", name, ".lo\" = ", stage.lo, " leaves a gap or overlap; part ", expected, " is next");
  LIME_RETURN_IF_ERROR(CheckInt({name, ".hi"}, stage.hi, stage.lo + 1, plan.NumParts()));
  if (j == 0) return absl::OkStatus();
  if (stage.device == plan.stages[j - 1].device) return Invalid("plan: ", name, " is on the device of the stage before; join the two");
  const BlockId block = plan.parts[stage.lo].block;
  if (block == plan.parts[stage.lo - 1].block && block.kind != BlockKind::kHead) {
    return Invalid("plan: ", name, " begins inside ", BlockName(block), "; only the head is split over devices");
  }
  return absl::OkStatus();
}

absl::Status CheckStages(const Plan& plan) {
  LIME_RETURN_IF_ERROR(CheckInt({"stages"}, static_cast<int64_t>(plan.stages.size()), 1, plan.NumParts()));
  std::set<int32_t> visited;
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    LIME_RETURN_IF_ERROR(CheckStage(plan, static_cast<int>(j)));
    if (!visited.insert(plan.stages[j].device).second && !plan.reads_once) {
      return Invalid("plan: stages[", j, "] visits its device again, but parts are read for every micro-batch");
    }
  }
  if (plan.stages.back().hi == plan.NumParts()) return absl::OkStatus();
  return Invalid("plan: field \"stages\" ends at part ", plan.stages.back().hi, " of ", plan.NumParts(), "; cover all parts");
}

absl::Status CheckEmbedding(const Plan& plan) {
  if (plan.embedding != EmbeddingPlacement::kWithHead) return absl::OkStatus();
  if (GrowsKv(plan)) return Invalid("plan: the embedding is with the head, but parts of the head may stream as KV grows");
  for (int p = plan.NumParts() - 1; p >= 0 && plan.parts[p].block.kind == BlockKind::kHead; --p) {
    if (plan.parts[p].streamed) return Invalid("plan: the embedding is with the head, but parts[", p, "] of the head streams");
    if (plan.stages[StageOf(plan, p)].device != plan.stages.front().device)
      return Invalid("plan: the embedding is with the head, but parts[", p, "] of the head is on another device than the first stage");
  }
  return absl::OkStatus();
}

// Checks that exactly those KV parts stream whose positions do not fit in memory and are on the
// disk.
absl::Status CheckSpill(const Plan& plan) {
  for (int d = 0; d < plan.NumDevices(); ++d) LIME_RETURN_IF_ERROR(CheckHost(plan, d));
  if (!SpillsKv(plan) && std::ranges::none_of(plan.parts, &PlanPart::is_kv)) return absl::OkStatus();
  if (!plan.reads_once) return Invalid("plan: KV can leave memory only if a step reads every part once");
  for (int d = 0; d < plan.NumDevices(); ++d) {
    const int64_t most = plan.devices[d].max_layer_pages;
    const std::string name = absl::StrCat("devices[", d, "].max_layer_pages");
    LIME_RETURN_IF_ERROR(CheckInt({name}, most, 0, kMaxPartBytes / plan.page_bytes));
    if (most > 0) LIME_RETURN_IF_ERROR(CheckInt({name}, most, WorkingPages(plan), kMaxPartBytes / plan.page_bytes));
    LIME_RETURN_IF_ERROR(CheckComingBack(plan, d));
  }
  int64_t layer_pages = 0, on_disk = 0;
  for (int p = 0; p < plan.NumParts(); ++p) {
    const PlanPart& part = plan.parts[p];
    const PlanDevice& device = plan.devices[plan.stages[StageOf(plan, p)].device];
    if (BeginsBlock(plan, p) && HasKv(part.block.kind)) {
      layer_pages = part.kv_pages;
      on_disk = HasKvOnDisk(device) ? PositionsAway(plan, device, layer_pages) : 0;
      const auto [begin, end] = PartsOf(plan, part.block);
      const bool has_kv = std::any_of(plan.parts.begin() + begin, plan.parts.begin() + end, std::mem_fn(&PlanPart::is_kv));
      if (device.max_layer_pages > 0 && !has_kv)
        return Invalid("plan: ", BlockName(part.block), " has no KV parts, but device \"", device.name,
                       "\" does not keep all of its pages");
    }
    if (part.is_kv() && part.streamed != (part.kv_begin < on_disk)) {
      return Invalid("plan: parts[", p, "] has positions of KV from ", part.kv_begin, " on and ",
                     part.streamed ? "streams" : "does not stream", ", but ", on_disk, " positions of ", layer_pages,
                     " pages are on the disk");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckMemory(const Plan& plan, int d, const PlanNeed& need) {
  const PlanDevice& device = plan.devices[d];
  const PlanMemory& memory = device.memory;
  const std::string name = absl::StrCat("devices[", d, "]");
  LIME_RETURN_IF_ERROR(CheckName({name, ".name"}, device.name));
  LIME_RETURN_IF_ERROR(CheckName({name, ".numerics_id"}, device.numerics_id));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".memory.runtime"}, memory.runtime, 0, kMaxPartBytes));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".memory.activations"}, memory.activations, 0, kMaxPartBytes));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".least_margin"}, device.least_margin, 0, kMaxPartBytes));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".memory.margin"}, memory.margin, device.least_margin, kMaxPartBytes));
  LIME_RETURN_IF_ERROR(CheckSum({name, ".kv_pages"}, device.kv_pages, need.kv_pages, "the pages of its parts"));
  LIME_RETURN_IF_ERROR(CheckSum({name, ".memory.kv"}, memory.kv, need.kv_pages * plan.page_bytes, "the bytes of its pages"));
  LIME_RETURN_IF_ERROR(CheckSum({name, ".memory.state"}, memory.state, need.state, "the bytes of the states of its layers"));
  LIME_RETURN_IF_ERROR(CheckSum({name, ".memory.weights"}, memory.weights, need.weights, "the bytes of its parts that stay"));
  LIME_RETURN_IF_ERROR(CheckSum({name, ".memory.embedding"}, memory.embedding, need.embedding, "the bytes of the embedding that it keeps"));
  LIME_RETURN_IF_ERROR(CheckKvOfOthers(device, need, name));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".memory.ring"}, memory.ring, need.ring, kMaxPartBytes));
  LIME_RETURN_IF_ERROR(CheckSum({name, ".budget"}, device.budget, memory.total(), "the sum of its memory"));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".disk_mb_per_ms"}, device.disk_mb_per_ms));
  LIME_RETURN_IF_ERROR(CheckNumber({name, ".disk_lat_ms"}, device.disk_lat_ms));
  if ((need.streams || need.demands) && device.disk_mb_per_ms < kMinDiskRate)
    return Invalid("plan: ", name, need.streams ? " streams" : " loads on demand", ", but its disk reads 0 MB/ms");
  return absl::OkStatus();
}

void NeedOfStage(const Plan& plan, const Stage& stage, bool together, std::vector<PlanNeed>& needs) {
  PlanNeed& need = needs[stage.device];
  Bytes streamed = 0;
  for (int p = stage.lo; p < stage.hi; ++p) {
    const PlanPart& part = plan.parts[p];
    if (part.hosted()) {
      needs[part.host].weights += part.pinned_bytes + MemoryOf(part);
      needs[part.host].demands = true;
      continue;
    }
    need.weights += part.pinned_bytes + MemoryOf(part);
    need.kv_pages += PagesInMemory(plan.devices[stage.device], part.kv_pages);
    need.state += part.state_bytes;
    need.demands = need.demands || part.on_demand();
    if (!part.streamed) continue;
    need.streams = true;
    streamed = together ? streamed + part.bytes : std::max(streamed, part.bytes);
  }
  need.ring = std::max(need.ring, streamed);
}

}  // namespace

std::vector<std::span<const MatrixRows>> UnitsIn(std::span<const MatrixRows> rows) {
  std::vector<std::span<const MatrixRows>> units;
  while (!rows.empty()) {
    const auto end = std::ranges::find_if(rows, [&](const MatrixRows& next) { return next.expert != rows.front().expert; });
    units.push_back(rows.first(static_cast<size_t>(end - rows.begin())));
    rows = rows.subspan(units.back().size());
  }
  return units;
}

Bytes MemoryOf(const PlanPart& part) {
  if (part.streamed || part.is_kv()) return 0;
  return part.on_demand() ? part.places * part.unit_bytes : part.bytes;
}

std::pair<int, int> PartsOf(const Plan& plan, BlockId block) {
  const auto place = [](const PlanPart& part) { return Place(part.block); };
  const auto begin = std::ranges::lower_bound(plan.parts, Place(block), {}, place);
  const auto end = std::ranges::upper_bound(plan.parts, Place(block), {}, place);
  // The other kinds of attention have the same place.
  const bool found = begin != end && begin->block.kind == block.kind;
  return {static_cast<int>(begin - plan.parts.begin()), static_cast<int>((found ? end : begin) - plan.parts.begin())};
}

bool BeginsBlock(const Plan& plan, int part) {
  return part == 0 || !(plan.parts[part - 1].block == plan.parts[part].block);
}

int StageOf(const Plan& plan, int part) {
  const auto behind = std::ranges::upper_bound(plan.stages, part, {}, &Stage::lo);
  return static_cast<int>(behind - plan.stages.begin()) - 1;
}

int32_t DeviceOf(const Plan& plan, int part) {
  return plan.parts[part].hosted() ? plan.parts[part].host : plan.stages[StageOf(plan, part)].device;
}

int32_t DeviceNamed(const Plan& plan, const std::string& name) {
  const auto found = std::ranges::find(plan.devices, name, &PlanDevice::name);
  return found == plan.devices.end() ? -1 : static_cast<int32_t>(found - plan.devices.begin());
}

bool StaysTogether(const Plan& plan, int64_t microbatches) {
  return microbatches > 1 && plan.reads_once;
}

std::vector<PlanNeed> NeedsOf(const Plan& plan) {
  std::vector<PlanNeed> needs(plan.devices.size());
  const bool together = StaysTogether(plan, std::max(plan.microbatches, plan.chunks_per_sweep));
  for (const Stage& stage : plan.stages) NeedOfStage(plan, stage, together, needs);
  const bool resident = plan.embedding == EmbeddingPlacement::kResident;
  needs[plan.stages.front().device].embedding = plan.embedding_pinned_bytes + (resident ? plan.embedding_bytes : 0);
  CountKvOfOthers(plan, needs);
  for (int d = 0; d < plan.NumDevices(); ++d) {
    if (needs[d].kv_pages > 0) needs[d].kv_pages += PagesInTurn(plan);
  }
  return needs;
}

absl::Status Plan::Validate() const {
  LIME_RETURN_IF_ERROR(CheckHead(*this));
  if (!predictor.empty() && !IsPredictorHash(predictor)) return Invalid("plan: field \"predictor\" is not 16 hexadecimal digits");
  for (int p = 0; p < NumParts(); ++p) LIME_RETURN_IF_ERROR(CheckPart(*this, p));
  if (parts.back().block.kind != BlockKind::kHead)
    return Invalid("plan: the last part is of ", BlockName(parts.back().block), ", not of the head");
  LIME_RETURN_IF_ERROR(CheckStages(*this));
  LIME_RETURN_IF_ERROR(CheckHostedUnits(*this));
  LIME_RETURN_IF_ERROR(CheckEmbedding(*this));
  if (logit_rows > 0 && IdsBefore(*this, stages.back().lo) > 0)
    return Invalid("plan: field \"logit_rows\" is given, but devices share the head");
  LIME_RETURN_IF_ERROR(CheckSpill(*this));
  LIME_RETURN_IF_ERROR(CheckRetainedKv(*this));
  const std::vector<PlanNeed> needs = NeedsOf(*this);
  std::set<std::string> names;
  for (int d = 0; d < NumDevices(); ++d) {
    LIME_RETURN_IF_ERROR(CheckMemory(*this, d, needs[d]));
    if (!names.insert(devices[d].name).second) return Invalid("plan: two devices are named \"", devices[d].name, "\"");
  }
  return absl::OkStatus();
}

MatrixRows HeadRange(const PlanPart& part) {
  LIME_CHECK(part.block.kind == BlockKind::kHead);
  return part.rows.front();
}

int64_t IdsBefore(const Plan& plan, int part) {
  const bool in_head = part > 0 && plan.parts[part - 1].block.kind == BlockKind::kHead;
  return in_head ? HeadRange(plan.parts[part - 1]).end : 0;
}

Payload PayloadInto(const Plan& plan, int stage) {
  return IdsBefore(plan, plan.stages[stage].lo) > 0 ? Payload::kHeadPartial : Payload::kHidden;
}

}  // namespace lime
