// Checks that a plan is for a given model.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan.h"
#include "planner/plan/sparse_parts.h"

namespace lime {
namespace {

// Direct reads begin and end on 4 KiB, also in memory.
constexpr Bytes kReadSlack = 12 * kKiB;

// All rows of a block's matrices in order of use.
std::vector<MatrixRows> MatricesOf(const BlockSpec& block) {
  std::vector<MatrixRows> matrices;
  for (const TensorSpec& tensor : block.tensors) {
    if (!IsPinned(tensor) && tensor.part == TensorPart::kWeight)
      matrices.push_back({.role = tensor.role, .begin = 0, .end = tensor.info.shape[0], .expert = tensor.expert});
  }
  return matrices;
}

// The plan knows the order of the matrices, but not which of them decides.
absl::Status CheckNeurons(const Plan& plan, const ModelSpec& spec, const BlockSpec& block, int p) {
  if (!MakesZeros(spec.config.activation))
    return Invalid("plan: parts[", p, "] is sparse, but the MLPs of the model have no ReLU, so no neuron is ever zero");
  if (const absl::Status format = CheckNeuronFormat(block, spec.config.hidden_size); !format.ok())
    return Invalid("plan: parts[", p, "] is sparse, but ", format.message());
  const bool certified = plan.parts[p].has_own_decider();
  if (plan.parts[p].certified() && !MayHaveCopy(block))
    return Invalid("plan: parts[", p, "] has decider_bits, but its weights are packed, and deciders of packed weights have no copy");
  const TensorRole decider = certified ? plan.parts[p].rows.front().role : plan.parts[p - 1].rows.back().role;
  if (decider != DeciderRole(block)) return Invalid("plan: parts[", p, "] is sparse, but its neurons are decided by the rows of gate");
  const Bytes bytes = NeuronBytes(block, certified);
  if (plan.parts[p].unit_bytes == bytes) return absl::OkStatus();
  return Invalid("plan: parts[", p, "].unit_bytes = ", plan.parts[p].unit_bytes, ", but a neuron needs ", bytes);
}

absl::Status CheckUnits(const PlanPart& part, const BlockSpec& block, int p) {
  const Bytes bytes = UnitBytes(block, part.rows);
  if (part.unit_bytes == bytes) return absl::OkStatus();
  return Invalid("plan: parts[", p, "].unit_bytes = ", part.unit_bytes, ", but its largest unit needs ", bytes);
}

// Checks that the parts of a block have all rows of all its matrices, in order.
absl::Status CheckBlock(const Plan& plan, const ModelSpec& spec, const BlockSpec& block) {
  const auto [begin, end] = PartsOf(plan, block.id);
  if (begin == end) return Invalid("plan: ", BlockName(block.id), " is in no part");
  std::vector<MatrixRows> all;  // adjacent ranges of one matrix joined
  for (int p = begin; p < end; ++p) {
    const PlanPart& part = plan.parts[p];
    for (const MatrixRows& rows : part.rows) {
      const bool goes_on = !all.empty() && all.back().role == rows.role && all.back().expert == rows.expert && all.back().end == rows.begin;
      if (goes_on) all.back().end = rows.end;
      if (!goes_on) all.push_back(rows);
    }
  }
  const std::vector<MatrixRows> matrices = MatricesOf(block);
  if (all != matrices)
    return Invalid("plan: the parts of ", BlockName(block.id), " are not all rows of its ", matrices.size(), " matrices in order");
  for (int p = begin; p < end; ++p) {
    if (plan.parts[p].is_kv()) continue;
    const Bytes bytes = PartBytes(block, plan.parts[p].rows);
    if (plan.parts[p].bytes != bytes) return Invalid("plan: parts[", p, "].bytes = ", plan.parts[p].bytes, ", but its rows need ", bytes);
    if (plan.parts[p].predictor_rank > 0 && !MakesZeros(spec.config.activation))
      return Invalid("plan: parts[", p, "] has predictor_rank, but the MLPs of the model have no ReLU, so no neuron is ever zero");
    if (plan.parts[p].predictor_rank > spec.config.hidden_size)
      return Invalid("plan: parts[", p, "].predictor_rank = ", plan.parts[p].predictor_rank, " is more than the ", spec.config.hidden_size,
                     " features of its input");
    if (plan.parts[p].sparse()) LIME_RETURN_IF_ERROR(CheckNeurons(plan, spec, block, p));
    if (plan.parts[p].has_experts_on_demand()) LIME_RETURN_IF_ERROR(CheckUnits(plan.parts[p], block, p));
    const Bytes pinned = p == begin || plan.parts[p].hosted() || block.id.kind == BlockKind::kHead ? PinnedBytes(block) : 0;
    if (plan.parts[p].pinned_bytes != pinned) {
      return Invalid("plan: parts[", p, "].kept_bytes = ", plan.parts[p].pinned_bytes, ", but ", pinned, " bytes are pinned");
    }
  }
  const int64_t planned = plan.parts[begin].window.positions;
  if (const int64_t window = HasKv(block.id.kind) ? spec.config.layer(block.id.layer).window : 0;
      planned > 0 && (window == 0 || window > planned)) {
    return Invalid("plan: parts[", begin, "].window = ", planned, ", but ", BlockName(block.id), " attends to ",
                   window == 0 ? "all" : absl::StrCat(window), " positions");
  }
  const Bytes state = HasState(block.id.kind) ? plan.sequences * (1 + plan.state_snapshots) * spec.StateBytes(block.id.layer)
                                              : SnapshotBytes(plan, plan.parts[begin].window);
  if (plan.parts[begin].state_bytes != state) {
    return Invalid("plan: parts[", begin, "].state_bytes = ", plan.parts[begin].state_bytes, ", but the states of ", plan.sequences,
                   " sequences, with ", plan.state_snapshots, " snapshots of each, have ", state);
  }
  return absl::OkStatus();
}

}  // namespace

Bytes PartBytes(const BlockSpec& block, std::span<const MatrixRows> rows) {
  Bytes bytes = 0;
  for (const MatrixRows& range : rows) {
    for (const TensorSpec& tensor : block.OfExpert(range.expert)) {
      if (tensor.role != range.role || IsPinned(tensor)) continue;
      bytes += tensor.info.bytes / tensor.info.shape[0] * (range.end - range.begin) + kReadSlack;
    }
  }
  return RoundUp(bytes, 4 * kKiB);
}

Bytes UnitBytes(const BlockSpec& block, std::span<const MatrixRows> rows) {
  Bytes bytes = 0;
  for (const auto unit : UnitsIn(rows)) bytes = std::max(bytes, PartBytes(block, unit));
  return bytes;
}

absl::Status Plan::Validate(const ModelSpec& spec) const {
  LIME_RETURN_IF_ERROR(Validate());
  if (model_key != ModelKey(spec)) return Invalid("plan: it is for \"", model_key, "\", but the model is \"", ModelKey(spec), "\"");
  if (vocab_size != spec.config.vocab_size)
    return Invalid("plan: vocab_size = ", vocab_size, ", but the model has ", spec.config.vocab_size);
  if (PartsOf(*this, {BlockKind::kAttention, static_cast<int32_t>(spec.config.num_layers())}).first !=
      PartsOf(*this, {BlockKind::kHead, 0}).first) {
    return Invalid("plan: it has layers that the model does not have");
  }
  for (const BlockSpec& block : spec.blocks) {
    if (block.id.kind != BlockKind::kEmbedding) LIME_RETURN_IF_ERROR(CheckBlock(*this, spec, block));
  }
  const BlockSpec& table = spec.block({BlockKind::kEmbedding, 0});
  if (embedding_bytes + embedding_pinned_bytes != table.bytes || embedding_pinned_bytes != PinnedBytes(table)) {
    return Invalid("plan: embedding_bytes = ", embedding_bytes, " and ", embedding_pinned_bytes, " pinned, but the model has ", table.bytes,
                   " and ", PinnedBytes(table));
  }
  if (embedding == EmbeddingPlacement::kWithHead && !spec.config.tie_embeddings)
    return Invalid("plan: the embedding is with the head, but the model has a tensor for each");
  if (page_bytes != spec.KvPageBytes())
    return Invalid("plan: page_bytes = ", page_bytes, ", but the model's pages have ", spec.KvPageBytes());
  const auto hosted = std::ranges::find_if(devices, [](const PlanDevice& device) { return device.kv_host >= 0; });
  if (hosted != devices.end() && !spec.config.HasAlikeKv()) {
    return Invalid("plan: devices[", hosted - devices.begin(), "].kv_host = ", hosted->kv_host,
                   ", but the layers of the model differ in heads or windows, or keep latents; plan without KV on another device");
  }
  return absl::OkStatus();
}

}  // namespace lime
