#include "planner/plan/sparse_parts.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "planner/base/check.h"
#include "planner/demand/bundle_layout.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_checks.h"
#include "planner/plan/plan_rows.h"

namespace lime {
namespace {

constexpr int64_t kRowGroup = 64;  // as CutBlock: whole tiles of the kernels
// Of a neuron: the tables of its bundle (12 to 16 bytes), MaskWindow (21), NeuronWindow (24), and a slot of
// a read.
constexpr Bytes kNeuronStateBytes = 96;

bool HasRole(const PlanPart& part, TensorRole role) {
  return std::ranges::any_of(part.rows, [role](const MatrixRows& rows) { return rows.role == role; });
}

}  // namespace

bool HasSparseParts(const Plan& plan) {
  return std::ranges::any_of(plan.parts, &PlanPart::sparse);
}

bool HasSparseParts(const Plan& plan, int32_t device) {
  return std::ranges::any_of(PartsOn(plan, device), [&](int part) { return plan.parts[part].sparse(); });
}

int64_t NeuronsOf(const Plan& plan, int part) {
  LIME_CHECK(part > 0 && !plan.parts[part - 1].rows.empty());
  return plan.parts[part - 1].rows.back().end;
}

TensorRole DeciderRole(const BlockSpec& mlp) {
  const bool gated = std::ranges::any_of(mlp.tensors, [](const TensorSpec& tensor) { return tensor.role == TensorRole::kGate; });
  return gated ? TensorRole::kGate : TensorRole::kUp;
}

Bytes NeuronBytes(const BlockSpec& mlp) {
  const auto up = std::ranges::find_if(
      mlp.tensors, [](const TensorSpec& tensor) { return tensor.role == TensorRole::kUp && tensor.part == TensorPart::kWeight; });
  LIME_CHECK(up != mlp.tensors.end());
  const absl::StatusOr<BundleLayout> layout = LayoutOf(DeciderRole(mlp) == TensorRole::kGate, up->info.bytes / up->info.shape[0]);
  LIME_CHECK(layout.ok()) << layout.status().message();
  return layout->SlotBytes(/*first=*/1);
}

std::vector<BlockPart> SparsePieces(const BlockSpec& mlp, const PlanPart& part) {
  std::vector<BlockPart> pieces;
  for (const MatrixRows& matrix : part.rows) {
    const Bytes all = PartBytes(mlp, {&matrix, 1});
    const Bytes row_bytes = std::max<Bytes>(1, all / (matrix.end - matrix.begin));
    const int64_t rows = std::max(kRowGroup, kSparsePieceBytes / row_bytes / kRowGroup * kRowGroup);
    for (int64_t begin = matrix.begin; begin < matrix.end; begin += rows) {
      MatrixRows piece = matrix;
      piece.begin = begin, piece.end = std::min(begin + rows, matrix.end);
      pieces.push_back({.rows = {piece}, .bytes = PartBytes(mlp, {&piece, 1})});
    }
  }
  return pieces;
}

Bytes LargestPiece(const BlockSpec& mlp, const PlanPart& part) {
  Bytes largest = 0;
  for (const BlockPart& piece : SparsePieces(mlp, part)) largest = std::max(largest, piece.bytes);
  return largest;
}

Bytes SparseMemory(const ModelSpec& spec, const Plan& plan, std::span<const int> parts) {
  Bytes largest = 0, neurons = 0;
  for (const int p : parts) {
    const PlanPart& part = plan.parts[p];
    if (!part.sparse()) continue;
    largest = std::max(largest, LargestPiece(spec.block(part.block), part));
    neurons += NeuronsOf(plan, p);
  }
  return kSparsePieces * largest + neurons * kNeuronStateBytes;
}

Bytes SparseMemory(const ModelSpec& spec, const Plan& plan, int32_t device) {
  return SparseMemory(spec, plan, PartsOn(plan, device));
}

NeuronUse NeuronUseOf(const Plan& plan, int32_t device) {
  NeuronUse use;
  const PlanDevice& disk = plan.devices[device];
  for (const int p : PartsOn(plan, device)) {
    const PlanPart& part = plan.parts[p];
    if (!part.sparse()) continue;
    ++use.layers;
    use.neurons += NeuronsOf(plan, p), use.rows += part.places;
    use.bytes += DemandBytes(part) * plan.microbatches;
  }
  if (use.bytes > 0) use.read_ms = use.bytes / 1e6 / disk.disk_mb_per_ms;
  return use;
}

NeuronUse NeuronUseOf(const Plan& plan) {
  NeuronUse sum;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const NeuronUse use = NeuronUseOf(plan, d);
    sum.layers += use.layers, sum.neurons += use.neurons, sum.rows += use.rows;
    sum.bytes += use.bytes, sum.read_ms += use.read_ms;
  }
  return sum;
}

std::string NeuronUse::Text(double tokens_per_step) const {
  if (layers == 0) return "";
  return absl::StrFormat("sparse MLPs: %.1f %% of the neurons of %d layers kept, at most %s read a token",
                         100 * static_cast<double>(rows) / static_cast<double>(neurons), layers,
                         FormatBytes(static_cast<Bytes>(bytes / tokens_per_step)));
}

absl::Status CheckSparse(const Plan& plan, int p, const std::string& name) {
  const PlanPart& part = plan.parts[p];
  if (!RetainsAllKv(plan)) return Invalid("plan: ", name, " is sparse, but the plan evicts KV; plan without one of them");
  if (part.block.kind != BlockKind::kMlp) return Invalid("plan: ", name, " is sparse, but is of ", BlockName(part.block));
  if (part.host != -1) return Invalid("plan: ", name, " is sparse and has a host; only experts can have one");
  LIME_RETURN_IF_ERROR(CheckInt({name, ".window_masks"}, part.window_masks, 1, kMaxWindowMasks));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".ahead_places"}, part.ahead_places, 0, 0));
  if (BeginsBlock(plan, p)) return Invalid("plan: ", name, " is sparse, but no part before it decides which neurons are active");
  const MatrixRows& decider = plan.parts[p - 1].rows.back();
  const bool known = decider.role == TensorRole::kGate || decider.role == TensorRole::kUp;
  if (!known || HasRole(part, decider.role) || !HasRole(part, TensorRole::kDown))
    return Invalid("plan: ", name, " is sparse, but does not have all rows of ", BlockName(part.block), " behind those of its decider");
  if (p + 1 < plan.NumParts() && plan.parts[p + 1].block == part.block)
    return Invalid("plan: ", name, " is sparse, but is not the last part of ", BlockName(part.block));
  LIME_RETURN_IF_ERROR(CheckInt({name, ": neurons"}, decider.end, 1, kMaxNeurons));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".places"}, part.places, 1, decider.end));
  return CheckInt({name, ".unit_bytes"}, part.unit_bytes, 1, kMaxNeuronBytes);
}

}  // namespace lime
