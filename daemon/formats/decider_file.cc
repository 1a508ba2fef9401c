#include "daemon/formats/decider_file.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "planner/base/strings.h"
#include "planner/plan/model/model_spec.h"

namespace lime {
namespace {

static_assert(std::endian::native == std::endian::little, "parts of a copy are used as they are");

std::string NameOf(DeciderPart part) {
  constexpr std::array<std::string_view, kDeciderParts> kNames{"codes", "rows", "kept", "mean", "axes"};
  return absl::StrCat(Text(kDeciderPrefix), Text(kNames[static_cast<size_t>(part)]));
}

const SafetensorsTensor* FindTensor(const SafetensorsHeader& header, DeciderPart part) {
  const auto found = std::ranges::find(header.tensors, NameOf(part), &SafetensorsTensor::name);
  return found == header.tensors.end() ? nullptr : &*found;
}

// A dimension of a tensor; 0 if it has another number of them, or there is no such tensor.
int64_t Dimension(const SafetensorsTensor* tensor, size_t at) {
  return tensor != nullptr && tensor->info.shape.size() == 2 ? tensor->info.shape[at] : 0;
}

// The bits whose codes take so many bytes; 0: there are none.
int BitsOf(int64_t row_bytes, int64_t cols) {
  for (int bits = kLeastCopyBits; bits <= kMostCopyBits; ++bits) {
    if (CodeRowBytes(cols, bits) == row_bytes) return bits;
  }
  return 0;
}

absl::StatusOr<BundleTensor> FindPart(const SafetensorsHeader& header, DeciderPart part, const DeciderShape& shape, std::string_view file) {
  const DeciderTensor want = TensorOf(part, shape);
  const SafetensorsTensor* const found = FindTensor(header, part);
  if (found == nullptr) return Invalid(Text(file), ": tensor ", want.name, " is missing; write the store again with `lime prepare`");
  if (!found->unknown_dtype.empty() || found->info.dtype != want.dtype || found->info.shape != want.shape)
    return Invalid(Text(file), ": tensor ", want.name, " has not the type and shape that a copy of ", shape.rows, " rows of ", shape.cols,
                   " columns needs; write the store again with `lime prepare`");
  if (found->offset % kBundleReadAlign != 0)
    return Invalid(Text(file), ": tensor ", want.name, " begins at byte ", found->offset, ", not at a multiple of ", kBundleReadAlign);
  return BundleTensor{.offset = found->offset, .bytes = found->info.bytes};
}

bool IsRow(const CopiedRow& row) {
  const auto is_bound = [](float value) { return value >= 0; };  // also infinity, which proves nothing
  const bool short_scale = (std::bit_cast<uint32_t>(row.scale) & 0xffffu) == 0 && std::isfinite(row.scale) && row.scale >= 0;
  return short_scale && std::isfinite(row.kept_scale) && row.kept_scale >= 0 && !std::isnan(row.mean_product) && is_bound(row.weight) &&
         is_bound(row.copy) && is_bound(row.error) && is_bound(row.kept) && is_bound(row.kept_error) && is_bound(row.subnormal);
}

}  // namespace

Bytes DeciderFile::bytes() const {
  Bytes sum = 0;
  for (const BundleTensor& part : parts) sum += part.bytes;
  return sum;
}

DeciderTensor TensorOf(DeciderPart part, const DeciderShape& shape) {
  switch (part) {
    case DeciderPart::kCodes:
      return {NameOf(part), DType::kU8, {shape.rows, CodeRowBytes(shape.cols, shape.bits)}};
    case DeciderPart::kRows:
      return {NameOf(part), DType::kF32, {shape.rows, kCopiedRowFloats}};
    case DeciderPart::kKept:
      return {NameOf(part), DType::kI8, {shape.rows, shape.directions}};
    case DeciderPart::kMean:
      return {NameOf(part), DType::kF32, {shape.cols}};
    case DeciderPart::kAxes:
      return {NameOf(part), DType::kBF16, {shape.directions, shape.cols}};
  }
  return {};
}

absl::StatusOr<std::optional<DeciderFile>> FindDecider(const SafetensorsHeader& header, int64_t rows, int64_t cols, std::string_view file) {
  const bool has_any =
      std::ranges::any_of(header.tensors, [](const SafetensorsTensor& tensor) { return tensor.name.starts_with(kDeciderPrefix); });
  if (!has_any) return std::nullopt;
  DeciderFile out{.shape = {.rows = rows, .cols = cols}};
  out.shape.bits = BitsOf(Dimension(FindTensor(header, DeciderPart::kCodes), 1), cols);
  out.shape.directions = Dimension(FindTensor(header, DeciderPart::kKept), 1);
  if (out.shape.bits == 0 || out.shape.directions < 1 || out.shape.directions > kMostDirections)
    return Invalid(Text(file), ": the copy of the decider has no tensor of codes of ", kLeastCopyBits, " to ", kMostCopyBits, " bits for ",
                   cols, " columns, or not 1 to ", kMostDirections, " directions; write the store again with `lime prepare`");
  for (size_t part = 0; part < kDeciderParts; ++part) {
    LIME_ASSIGN_OR_RETURN(out.parts[part], FindPart(header, static_cast<DeciderPart>(part), out.shape, file));
  }
  return out;
}

absl::StatusOr<DeciderView> ParseDecider(const DeciderShape& shape, const std::array<std::span<const std::byte>, kDeciderParts>& parts,
                                         std::string_view file) {
  for (size_t part = 0; part < kDeciderParts; ++part) {
    const DeciderTensor want = TensorOf(static_cast<DeciderPart>(part), shape);
    int64_t bytes = ElementBytes(want.dtype);
    for (const int64_t size : want.shape) bytes *= size;
    if (std::ssize(parts[part]) != bytes)
      return Invalid(Text(file), ": tensor ", want.name, " has ", parts[part].size(), " bytes, need ", bytes);
  }
  const auto data = [&](DeciderPart part) { return parts[static_cast<size_t>(part)].data(); };
  DeciderView view = shape.View();
  view.codes = reinterpret_cast<const uint8_t*>(data(DeciderPart::kCodes));
  view.kept = reinterpret_cast<const int8_t*>(data(DeciderPart::kKept));
  view.of_rows = reinterpret_cast<const CopiedRow*>(data(DeciderPart::kRows));
  view.mean = reinterpret_cast<const float*>(data(DeciderPart::kMean));
  view.axes = reinterpret_cast<const BF16*>(data(DeciderPart::kAxes));
  for (int64_t row = 0; row < view.rows; ++row) {
    if (!IsRow(view.of_rows[row]))
      return Invalid(Text(file), ": row ", row, " of ", NameOf(DeciderPart::kRows),
                     " has a scale or bound that is negative or no number; write the store again with `lime prepare`");
  }
  const bool finite =
      std::all_of(view.mean, view.mean + view.cols, [](float value) { return std::isfinite(value); }) &&
      std::all_of(view.axes, view.axes + view.directions * view.cols, [](BF16 value) { return std::isfinite(ToFloat(value)); });
  if (!finite)
    return Invalid(Text(file), ": ", NameOf(DeciderPart::kMean), " or ", NameOf(DeciderPart::kAxes),
                   " has a number that is not finite; write the store again with `lime prepare`");
  MeasureFrame(view);
  return view;
}

}  // namespace lime
