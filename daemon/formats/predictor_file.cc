#include "daemon/formats/predictor_file.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/sampling/logits_hash.h"
#include "planner/base/check.h"
#include "planner/base/float_bits.h"
#include "planner/base/json_list.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"
#include "planner/demand/calibration.h"
#include "planner/demand/route_log.h"
#include "planner/plan/model/model_spec.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "numbers of a predictor are used as they are");

constexpr int kPredictorVersion = 1;
constexpr int64_t kMostNumber = int64_t{1} << 40;
constexpr double kMostPerplexity = 1e30;
constexpr size_t kPredictorHashDigits = 16;
constexpr std::array<std::string_view, kPredictorParts> kPartNames{"a", "b", "c", "threshold"};

bool IsHash(std::string_view text) {
  return text.size() == kPredictorHashDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

Bytes BytesOf(const PredictorShape& shape, PredictorPart part) {
  Bytes bytes = ElementBytes(shape.dtype);
  for (const int64_t size : PredictorTensorShape(shape, part)) bytes *= size;
  return bytes;
}

const SafetensorsTensor* FindTensor(const SafetensorsHeader& header, std::string_view name) {
  const auto found = std::ranges::find(header.tensors, name, &SafetensorsTensor::name);
  return found == header.tensors.end() ? nullptr : &*found;
}

absl::StatusOr<BundleTensor> FindText(const SafetensorsHeader& header, std::string_view name, Bytes most, std::string_view file) {
  const std::string full = absl::StrCat(Text(kPredictorPrefix), Text(name));
  const SafetensorsTensor* const found = FindTensor(header, full);
  if (found == nullptr) return Invalid(Text(file), ": tensor ", full, " is missing");
  const bool is_text = found->unknown_dtype.empty() && found->info.dtype == DType::kU8 && found->info.shape.size() == 1;
  if (!is_text || found->info.bytes > most) return Invalid(Text(file), ": tensor ", full, " is not U8 of at most ", most, " bytes");
  return BundleTensor{.offset = found->offset, .bytes = found->info.bytes};
}

absl::StatusOr<BundleTensor> FindPart(const SafetensorsHeader& header, const PredictorShape& shape, PredictorPart part,
                                      std::string_view file) {
  const std::string name = PredictorTensorName(shape.layer, part);
  const SafetensorsTensor* const found = FindTensor(header, name);
  if (found == nullptr) return Invalid(Text(file), ": tensor ", name, " is missing");
  if (!found->unknown_dtype.empty() || found->info.dtype != shape.dtype || found->info.shape != PredictorTensorShape(shape, part))
    return Invalid(Text(file), ": tensor ", name, " has not the type and shape that a predictor of rank ", shape.rank, " needs for ",
                   shape.neurons, " neurons of ", shape.cols, " columns");
  return BundleTensor{.offset = found->offset, .bytes = found->info.bytes};
}

// The layer that a tensor belongs to; nullopt if it belongs to none.
std::optional<int32_t> LayerOf(std::string_view name) {
  name.remove_prefix(kPredictorPrefix.size());
  const size_t dot = name.find('.');
  int32_t layer = 0;
  if (dot == std::string_view::npos || !absl::SimpleAtoi(absl::string_view(name.data(), dot), &layer) || layer < 0) return std::nullopt;
  for (const std::string_view part : kPartNames) {
    if (name.substr(dot + 1) == part && absl::StrCat(layer) == name.substr(0, dot)) return layer;
  }
  return std::nullopt;
}

}  // namespace

// ---- The record

static void List(JsonList& f, PredictorLayerRecord& layer) {
  f.Number("layer", layer.layer, 0, kMostRouteLayers - 1);
  f.Number("neurons", layer.neurons, 1, kMostRouteUnits);
  f.Number("rank", layer.rank, 1, kMostPredictorRank);
  f.Text("xxh3", layer.xxh3);
  f.Number("false_negatives", layer.false_negatives, 0, 1);
  f.Number("false_positives", layer.false_positives, 0, 1);
  f.Number("active", layer.active, 0, 1);
  f.Number("predicted", layer.predicted, 0, 1);
}

static void List(JsonList& f, PredictorRecord& record) {
  f.Text("model", record.model, JsonList::kRequired, kMostRouteModelBytes);
  f.Text("text_xxh3", record.text_xxh3);
  f.Number("tokens", record.tokens, 1, kMostNumber);
  f.Number("held_out", record.held_out, 0, kMostNumber);
  f.Number("context", record.context, 1, std::numeric_limits<int32_t>::max());
  f.Number("seed", record.seed, 0, std::numeric_limits<int64_t>::max());
  f.Number("exact_perplexity", record.exact_perplexity, 0, kMostPerplexity, JsonList::kSparse);
  f.Number("perplexity", record.perplexity, 0, kMostPerplexity, JsonList::kSparse);
  f.Each("layers", record.layers, static_cast<size_t>(kMostRouteLayers));
}

std::string EncodePredictorRecord(const PredictorRecord& record) {
  ordered_json root = {{"lime_predictor", kPredictorVersion}};
  root.update(JsonList::WriteObject(record));
  return JsonText(root) + "\n";
}

absl::StatusOr<PredictorRecord> ParsePredictorRecord(std::string_view text, std::string_view name) {
  const std::string where(name);
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, name, kMostPredictorRecordBytes));
  JsonFields fields(root, where);
  const int64_t version = fields.Int("lime_predictor", 0, std::numeric_limits<int64_t>::max());
  LIME_RETURN_IF_ERROR(fields.status());
  if (version != kPredictorVersion)
    return Invalid(where, ": has version ", version, ", but this release of LIME reads version ", kPredictorVersion);
  PredictorRecord record = JsonList::ReadObject<PredictorRecord>(fields);
  LIME_RETURN_IF_ERROR(fields.status());
  if (!IsHash(record.text_xxh3)) return Invalid(where, ": \"text_xxh3\" is not ", kPredictorHashDigits, " hexadecimal digits");
  if (record.layers.empty()) return Invalid(where, ": \"layers\" is empty");
  for (size_t i = 0; i < record.layers.size(); ++i) {
    if (!IsHash(record.layers[i].xxh3))
      return Invalid(where, ": layers[", i, "]: \"xxh3\" is not ", kPredictorHashDigits, " hexadecimal digits");
    if (i > 0 && record.layers[i].layer <= record.layers[i - 1].layer)
      return Invalid(where, ": layer ", record.layers[i].layer, " follows layer ", record.layers[i - 1].layer, "; layers ascend");
  }
  return record;
}

std::string PredictorHash(const PredictorRecord& record) {
  std::string all;
  for (const PredictorLayerRecord& layer : record.layers) absl::StrAppend(&all, layer.layer, " ", layer.rank, " ", layer.xxh3, "\n");
  return HashText(XXH3_64bits(all.data(), all.size()));
}

std::string PredictorLayerHash(const PredictorBytes& parts) {
  XXH3_state_t* const state = XXH3_createState();
  XXH3_64bits_reset(state);
  for (const std::span<const std::byte> part : parts) XXH3_64bits_update(state, part.data(), part.size());
  const uint64_t hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  return HashText(hash);
}

// ---- Tensors

std::string PredictorTensorName(int32_t layer, PredictorPart part) {
  return absl::StrCat(Text(kPredictorPrefix), layer, ".", Text(kPartNames[static_cast<size_t>(part)]));
}

std::vector<int64_t> PredictorTensorShape(const PredictorShape& shape, PredictorPart part) {
  switch (part) {
    case PredictorPart::kA:
      return {shape.rank, shape.cols};
    case PredictorPart::kB:
      return {shape.neurons, shape.rank};
    case PredictorPart::kC:
      return {shape.neurons};
    case PredictorPart::kThreshold:
      return {1};
  }
  return {};
}

absl::StatusOr<PredictorFile> FindPredictors(const SafetensorsHeader& header, std::span<const PredictorShape> layers,
                                             std::string_view file) {
  PredictorFile out;
  LIME_ASSIGN_OR_RETURN(out.record, FindText(header, kPredictorRecordName, kMostPredictorRecordBytes, file));
  LIME_ASSIGN_OR_RETURN(out.calibration, FindText(header, kPredictorCalibrationName, kMostCalibrationBytes, file));
  std::vector<int32_t> named;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (!tensor.name.starts_with(kPredictorPrefix)) continue;
    const std::string_view rest = std::string_view(tensor.name).substr(kPredictorPrefix.size());
    if (rest == kPredictorRecordName || rest == kPredictorCalibrationName) continue;
    const std::optional<int32_t> layer = LayerOf(tensor.name);
    if (!layer || std::ranges::find(layers, *layer, &PredictorShape::layer) == layers.end())
      return Invalid(Text(file), ": tensor ", Text(tensor.name), " is of no layer that may have a predictor");
    named.push_back(*layer);
  }
  for (PredictorShape shape : layers) {
    if (std::ranges::find(named, shape.layer) == named.end()) continue;
    const SafetensorsTensor* const a = FindTensor(header, PredictorTensorName(shape.layer, PredictorPart::kA));
    shape.rank = a != nullptr && a->info.shape.size() == 2 ? a->info.shape[0] : 0;
    if (shape.rank < 1 || shape.rank > std::min(kMostPredictorRank, shape.cols))
      return Invalid(Text(file), ": the predictor of layer ", shape.layer, " has rank ", shape.rank, ", need 1 to ",
                     std::min(kMostPredictorRank, shape.cols));
    PredictorTensors& tensors = out.layers.emplace_back(PredictorTensors{.shape = shape});
    for (size_t part = 0; part < kPredictorParts; ++part) {
      LIME_ASSIGN_OR_RETURN(tensors.parts[part], FindPart(header, shape, static_cast<PredictorPart>(part), file));
    }
  }
  if (out.layers.empty()) return Invalid(Text(file), ": has no predictor of any layer");
  return out;
}

absl::StatusOr<PredictorView> ParsePredictor(const PredictorShape& shape, const PredictorBytes& parts, std::string_view file) {
  for (size_t part = 0; part < kPredictorParts; ++part) {
    const std::string name = PredictorTensorName(shape.layer, static_cast<PredictorPart>(part));
    const Bytes bytes = BytesOf(shape, static_cast<PredictorPart>(part));
    if (std::ssize(parts[part]) != bytes)
      return Invalid(Text(file), ": tensor ", name, " has ", parts[part].size(), " bytes, need ", bytes);
    bool finite = true;
    WithWorkingType(shape.dtype, [&](auto type) {
      const auto* const numbers = reinterpret_cast<const decltype(type)*>(parts[part].data());
      finite = std::all_of(numbers, numbers + bytes / ElementBytes(shape.dtype), [](auto x) { return std::isfinite(ToFloat(x)); });
    });
    if (!finite) return Invalid(Text(file), ": tensor ", name, " has a number that is not finite");
  }
  const auto data = [&](PredictorPart part) { return parts[static_cast<size_t>(part)].data(); };
  PredictorView view{.neurons = shape.neurons,
                     .cols = shape.cols,
                     .rank = shape.rank,
                     .a = data(PredictorPart::kA),
                     .b = data(PredictorPart::kB),
                     .c = data(PredictorPart::kC)};
  WithWorkingType(shape.dtype,
                  [&](auto type) { view.limit = ToFloat(*reinterpret_cast<const decltype(type)*>(data(PredictorPart::kThreshold))); });
  return view;
}

PredictorBytes PredictorLayer::bytes() const {
  PredictorBytes all;
  for (size_t part = 0; part < kPredictorParts; ++part) all[part] = parts[part];
  return all;
}

}  // namespace lime
