#include "daemon/formats/bundle_file.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "planner/base/check.h"
#include "planner/base/strings.h"
#include "planner/demand/route_log.h"
#include "xxhash.h"

namespace lime {
namespace {

std::string ShapeText(std::span<const int64_t> shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) absl::StrAppend(&text, i > 0 ? ", " : "", shape[i]);
  return text + "]";
}

absl::StatusOr<BundleTensor> Find(const SafetensorsHeader& header, std::string_view name, DType dtype, const std::vector<int64_t>& shape,
                                  std::string_view file) {
  const auto found = std::ranges::find(header.tensors, name, &SafetensorsTensor::name);
  if (found == header.tensors.end())
    return Invalid(Text(file), ": tensor ", Text(name), " is missing; write the store again with `lime prepare`");
  const TensorInfo& info = found->info;
  if (!found->unknown_dtype.empty() || info.dtype != dtype || info.shape != shape)
    return Invalid(Text(file), ": tensor ", Text(name), " is not ", Text(DTypeName(dtype)), " ", ShapeText(shape),
                   "; write the store again with `lime prepare`");
  if (found->offset % kBundleReadAlign != 0)
    return Invalid(Text(file), ": tensor ", Text(name), " begins at byte ", found->offset, ", not at a multiple of ", kBundleReadAlign);
  return BundleTensor{.offset = found->offset, .bytes = info.bytes};
}

uint32_t SumOf(std::span<const std::byte> bytes) {
  return static_cast<uint32_t>(XXH3_64bits(bytes.data(), bytes.size()));
}

static_assert(std::endian::native == std::endian::little, "tables of files are copied as they are");

template <typename T>
std::vector<std::byte> Encode(std::span<const T> numbers) {
  const std::span<const std::byte> bytes = std::as_bytes(numbers);
  return {bytes.begin(), bytes.end()};
}

template <typename T>
std::vector<T> Decode(std::span<const std::byte> bytes) {
  std::vector<T> numbers(bytes.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

}  // namespace

absl::StatusOr<BundleFile> FindBundles(const SafetensorsHeader& header, const BundleShape& shape, std::string_view file) {
  if (shape.neurons < 1 || shape.neurons > kMostRouteUnits)
    return Invalid(Text(file), ": ", shape.neurons, " neurons, need 1 to ", kMostRouteUnits);
  const int64_t neurons = shape.neurons;
  BundleFile out;
  LIME_ASSIGN_OR_RETURN(out.bundles, Find(header, kBundlesName, DType::kU8, {neurons, shape.layout.stride}, file));
  LIME_ASSIGN_OR_RETURN(out.sums, Find(header, kBundleSumsName, DType::kU32, {neurons, shape.layout.parts}, file));
  LIME_ASSIGN_OR_RETURN(out.place, Find(header, kBundlePlaceName, DType::kU32, {neurons}, file));
  return out;
}

// ---- Tables

absl::StatusOr<std::vector<int32_t>> ParsePlaces(std::span<const std::byte> bytes, int32_t neurons, std::string_view file) {
  if (std::ssize(bytes) != int64_t{neurons} * 4)
    return Invalid(Text(file), ": places of bundles have ", bytes.size(), " bytes, need ", int64_t{neurons} * 4);
  std::vector<int32_t> places = Decode<int32_t>(bytes);
  std::vector<bool> taken(static_cast<size_t>(neurons));
  for (int32_t neuron = 0; neuron < neurons; ++neuron) {
    const int32_t place = places[static_cast<size_t>(neuron)];
    const bool is_there = place >= 0 && place < neurons;
    if (!is_there || taken[static_cast<size_t>(place)])
      return Invalid(Text(file), ": neuron ", neuron, " has place ", place, ", which is ",
                     is_there ? "another neuron's" : "not that of a bundle", "; write the store again with `lime prepare`");
    taken[static_cast<size_t>(place)] = true;
  }
  return places;
}

std::vector<std::byte> EncodePlaces(std::span<const int32_t> places) {
  return Encode(places);
}

absl::StatusOr<std::vector<uint32_t>> ParseSums(std::span<const std::byte> bytes, const BundleShape& shape, std::string_view file) {
  const int64_t count = int64_t{shape.neurons} * shape.layout.parts;
  if (std::ssize(bytes) != count * 4) return Invalid(Text(file), ": checksums of bundles have ", bytes.size(), " bytes, need ", count * 4);
  return Decode<uint32_t>(bytes);
}

std::vector<std::byte> EncodeSums(std::span<const uint32_t> sums) {
  return Encode(sums);
}

// ---- Bundles

void EncodeBundle(const BundleLayout& layout, std::span<const std::span<const std::byte>> parts, std::span<std::byte> bundle,
                  std::span<uint32_t> sums) {
  LIME_CHECK_EQ(std::ssize(parts), layout.parts);
  LIME_CHECK_EQ(std::ssize(sums), layout.parts);
  LIME_CHECK_EQ(std::ssize(bundle), layout.stride);
  std::ranges::fill(bundle, std::byte{0});
  for (int part = 0; part < layout.parts; ++part) {
    const std::span<const std::byte> weights = parts[static_cast<size_t>(part)];
    LIME_CHECK_EQ(std::ssize(weights), layout.part_bytes);
    std::ranges::copy(weights, bundle.begin() + layout.PartAt(part));
    sums[static_cast<size_t>(part)] = SumOf(weights);
  }
}

std::span<const std::byte> PartOf(const BundleLayout& layout, std::span<const std::byte> record, int first, int part) {
  LIME_CHECK(first >= 0 && first <= part && part < layout.parts) << first << " " << part;
  LIME_CHECK_EQ(std::ssize(record), layout.record_bytes - layout.PartAt(first));
  return record.subspan(static_cast<size_t>(layout.PartAt(part) - layout.PartAt(first)), static_cast<size_t>(layout.part_bytes));
}

absl::Status CheckBundle(const BundleLayout& layout, std::span<const std::byte> record, int first, std::span<const uint32_t> sums,
                         std::string_view what) {
  LIME_CHECK_EQ(std::ssize(sums), layout.parts);
  for (int part = first; part < layout.parts; ++part) {
    if (SumOf(PartOf(layout, record, first, part)) != sums[static_cast<size_t>(part)])
      return absl::DataLossError(
          absl::StrCat(Text(what), ": part ", part, " of its bundle differs from what was written; the file is damaged"));
  }
  return absl::OkStatus();
}

}  // namespace lime
