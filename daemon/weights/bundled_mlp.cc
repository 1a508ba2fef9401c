#include "daemon/weights/bundled_mlp.h"

#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "planner/base/check.h"
#include "planner/base/names.h"
#include "planner/base/strings.h"
#include "planner/demand/route_log.h"

namespace lime {
namespace {

constexpr Names<Activation, 7> kActivationNames{{{Activation::kSilu, "SiLU"},
                                                 {Activation::kRelu, "ReLU"},
                                                 {Activation::kGelu, "GELU"},
                                                 {Activation::kGeluTanh, "GELU (tanh)"},
                                                 {Activation::kClampedSwiglu, "clamped SwiGLU"},
                                                 {Activation::kFatRelu, "FATReLU"},
                                                 {Activation::kDoubleRelu, "dReLU"}}};

struct CodeFormat {
  int bits = 0;
  DType dtype = DType::kBF16;  // of dense weights
  bool packed = false;

  friend bool operator==(const CodeFormat&, const CodeFormat&) = default;
};

// The format of a matrix with `cols` columns.
absl::StatusOr<CodeFormat> FormatOf(const BlockSpec& block, const TensorSpec& weight, int64_t cols, std::string_view name) {
  const DType dtype = weight.info.dtype;
  if (IsWorkingDType(dtype)) return CodeFormat{.bits = static_cast<int>(8 * ElementBytes(dtype)), .dtype = dtype};
  const std::optional<size_t> scales = block.Find(weight.role, TensorPart::kScales);
  if (dtype == DType::kU32 && scales) {
    LIME_ASSIGN_OR_RETURN(const Quantization packing, PackingOf(weight.info, block.tensors[*scales].info, cols));
    if (packing.code == WeightCode::kAffine) return CodeFormat{.bits = packing.bits, .dtype = dtype, .packed = true};
  }
  return Invalid(Text(name), ": tensor ", Text(weight.name),
                 " is mxfp4 or FP8, for which there are no bundles; BF16, F16, F32 and affine groups are supported; leave out --bundles");
}

absl::StatusOr<BundledMlp> BundledMlpOf(const ModelSpec& spec, const BlockSpec& block, std::string_view name) {
  const auto find = [&](TensorRole role) -> const TensorSpec* {
    const std::optional<size_t> at = block.Find(role, TensorPart::kWeight);
    return at ? &block.tensors[*at] : nullptr;
  };
  BundledMlp mlp{.layer = block.id.layer, .gate = find(TensorRole::kGate), .up = find(TensorRole::kUp), .down = find(TensorRole::kDown)};
  LIME_CHECK(mlp.up != nullptr && mlp.down != nullptr && (mlp.gate != nullptr) == spec.config.gated_mlp) << BlockName(block.id);
  const int64_t hidden = spec.config.hidden_size, neurons = mlp.up->info.shape[0];
  if (neurons > kMostRouteUnits)
    return Invalid(Text(name), ": layer ", mlp.layer, " has ", neurons, " neurons, but bundles support at most ", kMostRouteUnits,
                   "; leave out --bundles");
  LIME_ASSIGN_OR_RETURN(const CodeFormat format, FormatOf(block, *mlp.up, hidden, name));
  for (const TensorSpec* other : {mlp.gate, mlp.down}) {
    if (other == nullptr) continue;
    LIME_ASSIGN_OR_RETURN(const CodeFormat its, FormatOf(block, *other, other == mlp.down ? neurons : hidden, name));
    if (!(its == format))
      return Invalid(Text(name), ": tensors ", Text(mlp.up->name), " and ", Text(other->name),
                     " have different formats, for which there are no bundles; leave out --bundles");
  }
  mlp.code_bits = format.bits;
  mlp.packed = format.packed;
  LIME_ASSIGN_OR_RETURN(mlp.shape.layout, LayoutOf(mlp.gate != nullptr, hidden * format.bits / 8));
  mlp.shape.neurons = static_cast<int32_t>(neurons);
  return mlp;
}

}  // namespace

std::string BundledMlp::FileName() const {
  return absl::StrFormat("bundles_%04d.safetensors", layer);
}

absl::StatusOr<std::vector<BundledMlp>> BundledMlps(const ModelSpec& spec, std::string_view name) {
  if (!MakesZeros(spec.config.activation))
    return Invalid(Text(name), ": its MLPs use ", Text(kActivationNames.Of(spec.config.activation)),
                   ", whose results are never exactly zero; bundles need ReLU; leave out --bundles");
  if (spec.config.layer_inputs > 0)
    return Invalid(Text(name), ": its layers have inputs of their own, with which no MLP can be sparse; leave out --bundles");
  std::vector<BundledMlp> mlps;
  for (const BlockSpec& block : spec.blocks) {
    if (block.id.kind != BlockKind::kMlp) continue;
    LIME_ASSIGN_OR_RETURN(BundledMlp mlp, BundledMlpOf(spec, block, name));
    mlps.push_back(std::move(mlp));
  }
  if (mlps.empty()) return Invalid(Text(name), ": has no dense MLP, only experts; leave out --bundles");
  return mlps;
}

}  // namespace lime
