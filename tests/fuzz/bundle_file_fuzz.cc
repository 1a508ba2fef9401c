// Any bytes as a file of bundles: an error in one sentence, or tables that are written back the same,
// and bundles that lie in the file and whose damage is seen.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "daemon/formats/bundle_file.h"
#include "daemon/formats/safetensors.h"
#include "planner/base/check.h"

namespace {

using namespace lime;

// In a file that is accepted, the bundle of every place is in the file, and written again it passes
// its own checks.
void CheckBundles(const BundleFile& file, const BundleShape& shape, std::span<const std::byte> bytes) {
  const auto part_of_file = [&](const BundleTensor& tensor) {
    return bytes.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.bytes));
  };
  const auto sums = ParseSums(part_of_file(file.sums), shape, "fuzz");
  LIME_CHECK(sums.ok() && EncodeSums(*sums).size() == static_cast<size_t>(file.sums.bytes));
  const auto places = ParsePlaces(part_of_file(file.place), shape.neurons, "fuzz");
  if (!places.ok()) {
    LIME_CHECK(places.status().message().find('\n') == absl::string_view::npos) << places.status().message();
    return;
  }
  const std::span<const std::byte> as_read = part_of_file(file.place);
  LIME_CHECK(EncodePlaces(*places) == std::vector<std::byte>(as_read.begin(), as_read.end())) << "written back otherwise";
  const BundleLayout& layout = shape.layout;
  std::vector<std::byte> again(static_cast<size_t>(layout.stride));
  std::vector<uint32_t> own(static_cast<size_t>(layout.parts));
  for (const int32_t place : *places) {
    const std::span<const std::byte> record =
        part_of_file(file.bundles).subspan(static_cast<size_t>(place * layout.stride), static_cast<size_t>(layout.record_bytes));
    std::vector<std::span<const std::byte>> parts;
    for (int part = 0; part < layout.parts; ++part) parts.push_back(PartOf(layout, record, 0, part));
    EncodeBundle(layout, parts, again, own);
    const std::span<std::byte> rewritten = std::span(again).first(record.size());
    LIME_CHECK(CheckBundle(layout, rewritten, 0, own, "fuzz").ok());
    rewritten[0] ^= std::byte{1};
    LIME_CHECK(!CheckBundle(layout, rewritten, 0, own, "fuzz").ok());
  }
}

}  // namespace

// The first 3 bytes say what the model wants: its neurons, and the bytes of a part.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 3) return 0;
  BundleShape shape{.layout = LayoutOf(data[0] % 2 == 1, 1 + data[1]).value(), .neurons = data[2]};
  const auto bytes = std::as_bytes(std::span(data + 3, size - 3));
  const auto file_bytes = static_cast<int64_t>(bytes.size());
  const absl::StatusOr<int64_t> length = ParseSafetensorsLength(bytes, file_bytes, "fuzz");
  if (!length.ok()) return 0;
  const std::string_view json(reinterpret_cast<const char*>(bytes.data()) + kSafetensorsLengthBytes, static_cast<size_t>(*length));
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, file_bytes, "fuzz");
  if (!header.ok()) return 0;
  const absl::StatusOr<BundleFile> file = FindBundles(*header, shape, "fuzz");
  if (file.ok()) {
    CheckBundles(*file, shape, bytes);
    return 0;
  }
  LIME_CHECK(file.status().message().find('\n') == absl::string_view::npos) << file.status().message();
  return 0;
}
