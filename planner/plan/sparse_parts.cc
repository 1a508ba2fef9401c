#include "planner/plan/sparse_parts.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "planner/base/check.h"
#include "planner/plan/model/matrix_format.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_checks.h"
#include "planner/plan/plan_rows.h"

namespace lime {
namespace {

constexpr int64_t kRowGroup = 64;  // as CutBlock: whole tiles of the kernels
// Of a neuron: the tables of its bundle (12 to 16 bytes), MaskWindow (25), NeuronWindow (24), and a slot of
// a read.
constexpr Bytes kNeuronStateBytes = 96;
constexpr Bytes kTensorAlignment = 64;  // in memory

// Of a copy of a decider: as common/proven_zeros makes it.
constexpr int32_t kLeastDeciderBits = 4;
constexpr int64_t kCodesTogether = 32;                           // columns
constexpr Bytes kCopiedRowBytes = 36;                            // scales and bounds
constexpr Bytes kMeanBytes = 4, kAxisBytes = 2, kKeptBytes = 1;  // of a number

bool HasRole(const PlanPart& part, TensorRole role) {
  return std::ranges::any_of(part.rows, [role](const MatrixRows& rows) { return rows.role == role; });
}

// Of a certified part: the last rows of its decider, which is its first matrix.
const MatrixRows& DeciderRowsOf(const PlanPart& part) {
  const auto behind = std::ranges::find_if(part.rows, [&](const MatrixRows& rows) { return rows.role != part.rows.front().role; });
  return *(behind - 1);
}

const TensorSpec& DeciderOf(const BlockSpec& mlp) {
  const std::optional<size_t> at = mlp.Find(DeciderRole(mlp), TensorPart::kWeight);
  LIME_CHECK(at.has_value());
  return mlp.tensors[*at];
}

}  // namespace

bool HasSparseParts(const Plan& plan) {
  return std::ranges::any_of(plan.parts, &PlanPart::sparse);
}

bool HasSparseParts(const Plan& plan, int32_t device) {
  return std::ranges::any_of(PartsOn(plan, device), [&](int part) { return plan.parts[part].sparse(); });
}

std::string NameOfSparsity(const Plan& plan) {
  return !plan.predictor.empty() ? "predicted" : HasSparseParts(plan) ? "exact" : "off";
}

int64_t NeuronsOf(const Plan& plan, int part) {
  if (plan.parts[part].has_own_decider()) return DeciderRowsOf(plan.parts[part]).end;
  LIME_CHECK(part > 0 && !plan.parts[part - 1].rows.empty());
  return plan.parts[part - 1].rows.back().end;
}

TensorRole DeciderRole(const BlockSpec& mlp) {
  const bool gated = std::ranges::any_of(mlp.tensors, [](const TensorSpec& tensor) { return tensor.role == TensorRole::kGate; });
  return gated ? TensorRole::kGate : TensorRole::kUp;
}

BundleLayout LayoutOf(const BlockSpec& mlp) {
  const auto up = std::ranges::find_if(
      mlp.tensors, [](const TensorSpec& tensor) { return tensor.role == TensorRole::kUp && tensor.part == TensorPart::kWeight; });
  LIME_CHECK(up != mlp.tensors.end());
  const absl::StatusOr<BundleLayout> layout = LayoutOf(DeciderRole(mlp) == TensorRole::kGate, up->info.bytes / up->info.shape[0]);
  LIME_CHECK(layout.ok()) << layout.status().message();
  return *layout;
}

Bytes NeuronBytes(const BlockSpec& mlp, bool certified) {
  return LayoutOf(mlp).SlotBytes(FirstRecordPart(certified));
}

Bytes CopyMemory(const BlockSpec& mlp, int bits, int64_t directions) {
  const TensorSpec& decider = DeciderOf(mlp);
  const int64_t rows = decider.info.shape[0], cols = decider.info.shape[1];
  const Bytes of_row = RoundUp(cols, kCodesTogether) / 8 * bits + kCopiedRowBytes + directions * kKeptBytes;
  return rows * of_row + cols * kMeanBytes + directions * cols * kAxisBytes;
}

bool MayHaveCopy(const BlockSpec& mlp) {
  return IsWorkingDType(DeciderOf(mlp).info.dtype);
}

int64_t CopiedDirections(const Plan& plan, int32_t device) {
  int64_t most = -1;
  for (const int p : PartsOn(plan, device)) {
    if (plan.parts[p].certified()) most = std::max<int64_t>(most, plan.parts[p].decider_directions);
  }
  return most;
}

bool IsKeptForNeurons(const BlockSpec& mlp, const TensorSpec& tensor) {
  return tensor.role != DeciderRole(mlp) && (tensor.part == TensorPart::kScales || tensor.part == TensorPart::kGroupBiases);
}

absl::Status CheckNeuronFormat(const BlockSpec& mlp, int64_t hidden) {
  for (const TensorRole role : {TensorRole::kGate, TensorRole::kUp, TensorRole::kDown}) {
    const std::optional<size_t> at = mlp.Find(role, TensorPart::kWeight);
    if (!at || IsWorkingDType(mlp.tensors[*at].info.dtype)) continue;
    const TensorInfo& weight = mlp.tensors[*at].info;
    const std::optional<size_t> scales = mlp.Find(role, TensorPart::kScales), up = mlp.Find(TensorRole::kUp, TensorPart::kWeight);
    const int64_t cols = role == TensorRole::kDown ? mlp.tensors[*up].info.shape[0] : hidden;
    const bool is_affine = scales && [&] {
      const absl::StatusOr<Quantization> packing = PackingOf(weight, mlp.tensors[*scales].info, cols);
      return packing.ok() && packing->code == WeightCode::kAffine;
    }();
    if (!is_affine)
      return Invalid("the weights of ", BlockName(mlp.id), " are mxfp4 or FP8; only dense weights and affine groups have a sparse form");
  }
  return absl::OkStatus();
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

Bytes BesideNeurons(const ModelSpec& spec, const Plan& plan, int part) {
  const PlanPart& sparse = plan.parts[part];
  if (!sparse.sparse()) return 0;
  const BlockSpec& mlp = spec.block(sparse.block);
  Bytes bytes = NeuronsOf(plan, part) * kNeuronStateBytes;
  for (const TensorSpec& tensor : mlp.tensors) bytes += IsKeptForNeurons(mlp, tensor) ? RoundUp(tensor.info.bytes, kTensorAlignment) : 0;
  return bytes + (sparse.certified() ? CopyMemory(mlp, sparse.decider_bits, sparse.decider_directions) : 0);
}

Bytes SparseMemory(const ModelSpec& spec, const Plan& plan, std::span<const int> parts) {
  Bytes largest = 0, beside = 0;
  for (const int p : parts) {
    const PlanPart& part = plan.parts[p];
    if (!part.sparse()) continue;
    largest = std::max(largest, LargestPiece(spec.block(part.block), part));
    beside += BesideNeurons(spec, plan, p);
  }
  return kSparsePieces * largest + beside;
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
    use.calibrated = use.calibrated || part.demand_reads > 0;
    use.certified += part.certified() ? 1 : 0;
    use.computed += part.chosen_units;
    use.active += part.active_units > 0 ? part.active_units : part.chosen_units;
    use.loads += part.chosen_units * (1 - part.hit_share) * plan.microbatches;
    use.reads += part.demand_reads * plan.microbatches;
    const double bytes = DemandBytes(part) * plan.microbatches;
    use.bytes += bytes;
    if (bytes > 0) use.read_ms += part.demand_reads > 0 ? part.demand_io_ms * plan.microbatches : bytes / 1e6 / disk.disk_mb_per_ms;
  }
  return use;
}

NeuronUse NeuronUseOf(const Plan& plan) {
  NeuronUse sum;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const NeuronUse use = NeuronUseOf(plan, d);
    sum.layers += use.layers, sum.neurons += use.neurons, sum.rows += use.rows;
    sum.calibrated = sum.calibrated || use.calibrated;
    sum.certified += use.certified, sum.computed += use.computed;
    sum.active += use.active, sum.loads += use.loads, sum.reads += use.reads;
    sum.bytes += use.bytes, sum.read_ms += use.read_ms;
  }
  return sum;
}

std::string NeuronUse::Text(double tokens_per_step) const {
  if (layers == 0) return "";
  const std::string kept = absl::StrFormat("sparse MLPs: %.1f %% of the neurons of %d layers kept, ",
                                           100 * static_cast<double>(rows) / static_cast<double>(neurons), layers);
  const std::string read = absl::StrCat(FormatBytes(static_cast<Bytes>(bytes / tokens_per_step)), " read a token");
  if (!calibrated) return absl::StrCat(kept, "at most ", read);
  const std::string proven = certified == 0 ? ""
                                            : absl::StrFormat(", %.1f %% computed with copies of the deciders of %d layers",
                                                              100 * computed / static_cast<double>(neurons), certified);
  return absl::StrFormat("%s%.1f %% active%s, %s in %.1f ms", kept, 100 * active / static_cast<double>(neurons), proven, read,
                         read_ms / tokens_per_step);
}

namespace {

absl::Status CheckCopy(const PlanPart& part, const std::string& name) {
  if (part.predicted()) return Invalid("plan: ", name, " has decider_bits and predictor_rank; a layer has one of them");
  LIME_RETURN_IF_ERROR(CheckInt({name, ".decider_bits"}, part.decider_bits, kLeastDeciderBits, kMostDeciderBits));
  return CheckInt({name, ".decider_directions"}, part.decider_directions, 1, kMostDeciderDirections);
}

absl::Status CheckOwnDecider(const Plan& plan, int p, const std::string& name) {
  const PlanPart& part = plan.parts[p];
  const char* const field = part.predicted() ? " has predictor_rank and is sparse" : " has decider_bits";
  if (!BeginsBlock(plan, p))
    return Invalid("plan: ", name, field, ", but is not the only part of ", BlockName(part.block), "; then leave them out");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSparse(const Plan& plan, int p, const std::string& name) {
  const PlanPart& part = plan.parts[p];
  if (!RetainsAllKv(plan)) return Invalid("plan: ", name, " is sparse, but the plan evicts KV; plan without one of them");
  if (part.block.kind != BlockKind::kMlp) return Invalid("plan: ", name, " is sparse, but is of ", BlockName(part.block));
  if (part.host != -1) return Invalid("plan: ", name, " is sparse and has a host; only experts can have one");
  LIME_RETURN_IF_ERROR(CheckInt({name, ".window_masks"}, part.window_masks, 1, kMaxWindowMasks));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".ahead_places"}, part.ahead_places, 0, 0));
  if (part.certified()) LIME_RETURN_IF_ERROR(CheckCopy(part, name));
  if (part.has_own_decider()) LIME_RETURN_IF_ERROR(CheckOwnDecider(plan, p, name));
  if (!part.has_own_decider() && BeginsBlock(plan, p))
    return Invalid("plan: ", name, " is sparse, but no part before it decides which neurons are active");
  const MatrixRows& decider = part.has_own_decider() ? DeciderRowsOf(part) : plan.parts[p - 1].rows.back();
  const bool known = decider.role == TensorRole::kGate || decider.role == TensorRole::kUp;
  if (!known || HasRole(part, decider.role) != part.has_own_decider() || !HasRole(part, TensorRole::kDown))
    return Invalid("plan: ", name, " is sparse, but does not have all rows of ", BlockName(part.block), " behind those of its decider");
  if (p + 1 < plan.NumParts() && plan.parts[p + 1].block == part.block)
    return Invalid("plan: ", name, " is sparse, but is not the last part of ", BlockName(part.block));
  LIME_RETURN_IF_ERROR(CheckInt({name, ": neurons"}, decider.end, 1, kMaxNeurons));
  LIME_RETURN_IF_ERROR(CheckInt({name, ".places"}, part.places, 1, decider.end));
  return CheckInt({name, ".unit_bytes"}, part.unit_bytes, 1, kMaxNeuronBytes);
}

}  // namespace lime
