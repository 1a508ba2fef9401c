// Any bytes as a file of bundles: an error in one sentence, or tables that are written back the same,
// and bundles that lie in the file and whose damage is seen. And as the copy of a decider in such a file:
// an error in one sentence, or a copy that can be used, and proves nothing of an input with NaN. And as the
// file of a predictor: an error in one sentence, or finite numbers that lie in the file.
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "common/proven_zeros/proven_zeros.h"
#include "daemon/formats/bundle_file.h"
#include "daemon/formats/decider_file.h"
#include "daemon/formats/predictor_file.h"
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

// The copy of a decider with as many rows as there are neurons. Parts lie anywhere in the file.
void CheckDecider(const SafetensorsHeader& header, int64_t rows, int64_t cols, std::span<const std::byte> bytes) {
  const absl::StatusOr<std::optional<DeciderFile>> file = FindDecider(header, rows, cols, "fuzz");
  if (!file.ok()) {
    LIME_CHECK(file.status().message().find('\n') == absl::string_view::npos) << file.status().message();
    return;
  }
  if (!file->has_value()) return;
  std::array<std::vector<std::byte>, kDeciderParts> copies;
  std::array<std::span<const std::byte>, kDeciderParts> parts;
  for (size_t part = 0; part < kDeciderParts; ++part) {
    const BundleTensor& at = (*file)->parts[part];
    const auto data = bytes.subspan(static_cast<size_t>(at.offset), static_cast<size_t>(at.bytes));
    copies[part].assign(data.begin(), data.end());
    parts[part] = copies[part];
  }
  const absl::StatusOr<DeciderView> view = ParseDecider((*file)->shape, parts, "fuzz");
  if (!view.ok()) {
    LIME_CHECK(view.status().message().find('\n') == absl::string_view::npos) << view.status().message();
    return;
  }
  ProvenZeros zeros(*view, SumOrder::kBf16Dot, {});
  std::vector<float> x(static_cast<size_t>(cols), 1.0f);
  zeros.SetInput(x);
  for (int64_t row = 0; row < rows; ++row) LIME_CHECK(!(zeros.BoundOf(row).slack < 0)) << row;
  x.back() = std::numeric_limits<float>::quiet_NaN();
  zeros.SetInput(x);
  for (int64_t row = 0; row < rows; ++row) LIME_CHECK(!zeros.BoundOf(row).Proves(0)) << row;
}

void CheckPredictor(const SafetensorsHeader& header, int64_t neurons, int64_t cols, std::span<const std::byte> bytes) {
  const auto check_error = [](const absl::Status& status) {
    LIME_CHECK(status.message().find('\n') == absl::string_view::npos) << status.message();
  };
  const std::array<PredictorShape, 2> layers = {{{.layer = 0, .neurons = neurons, .cols = cols, .dtype = DType::kF32},
                                                 {.layer = 1, .neurons = neurons, .cols = cols, .dtype = DType::kBF16}}};
  const absl::StatusOr<PredictorFile> file = FindPredictors(header, layers, "fuzz");
  if (!file.ok()) return check_error(file.status());
  const auto part_of_file = [&](const BundleTensor& tensor) {
    return bytes.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.bytes));
  };
  const std::span<const std::byte> text = part_of_file(file->record);
  const absl::StatusOr<PredictorRecord> record = ParsePredictorRecord({reinterpret_cast<const char*>(text.data()), text.size()}, "fuzz");
  if (!record.ok()) check_error(record.status());
  if (record.ok()) {
    LIME_CHECK(ParsePredictorRecord(EncodePredictorRecord(*record), "fuzz").value() == *record);
  }
  for (const PredictorTensors& layer : file->layers) {
    PredictorLayer copy{.shape = layer.shape};
    for (size_t part = 0; part < kPredictorParts; ++part) {
      const auto data = part_of_file(layer.parts[part]);
      copy.parts[part].assign(data.begin(), data.end());
    }
    const absl::StatusOr<PredictorView> view = ParsePredictor(copy.shape, copy.bytes(), "fuzz");
    if (!view.ok()) check_error(view.status());
    if (view.ok()) {
      LIME_CHECK(view->rank >= 1 && view->rank <= cols && view->limit - view->limit == 0);
    }
  }
}

}  // namespace

// The first 3 bytes say what the model wants: its neurons, and the bytes of a part, which are also the columns
// of the decider.
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
  if (shape.neurons > 0) {
    CheckDecider(*header, shape.neurons, 1 + data[1], bytes);
    CheckPredictor(*header, shape.neurons, 1 + data[1], bytes);
  }
  const absl::StatusOr<BundleFile> file = FindBundles(*header, shape, "fuzz");
  if (file.ok()) {
    CheckBundles(*file, shape, bytes);
    return 0;
  }
  LIME_CHECK(file.status().message().find('\n') == absl::string_view::npos) << file.status().message();
  return 0;
}
