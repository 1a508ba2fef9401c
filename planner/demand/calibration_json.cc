// The file of a calibration.
#include <algorithm>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "planner/base/bytes.h"
#include "planner/base/json_list.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"
#include "planner/demand/calibration.h"
#include "planner/demand/route_log.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr int kVersion = 1;
constexpr int64_t kMostTokens = int64_t{1} << 40;
constexpr size_t kHashDigits = 16;

bool IsHash(std::string_view text) {
  return text.size() == kHashDigits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// ---- Reading

// A step loads at most what is active.
absl::Status CheckPoints(const BatchShares& shares, int32_t neurons, const std::string& where) {
  const std::vector<LoadPoint>& points = shares.points;
  if (points.empty()) return Invalid(where, ": \"loads\" is empty");
  LoadPoint before{.rows = 0, .loads = shares.active};
  for (const LoadPoint& point : points) {
    if (point.rows <= before.rows || point.rows > neurons)
      return Invalid(where, ": \"loads\" has ", point.rows, " rows after ", before.rows, "; they ascend to at most ", neurons);
    if (!(point.loads >= 0 && point.loads <= before.loads))
      return Invalid(where, ": \"loads\" has a share of ", point.loads, " after ", before.loads,
                     "; shares do not increase and are not negative");
    before = point;
  }
  return absl::OkStatus();
}

absl::StatusOr<BatchShares> ReadBatch(const json& object, int32_t neurons, const std::string& where) {
  if (!object.is_object()) return Invalid(where, ": is not an object");
  JsonFields fields(object, where);
  BatchShares shares{.batch = static_cast<int32_t>(fields.Int("batch", 1, kMostCalibrationBatch)), .active = fields.Double("active", 0, 1)};
  for (const json& pair : fields.Array("loads", kMostLoadPoints)) {
    if (!pair.is_array() || pair.size() != 2 || !pair[0].is_number_integer() || !pair[1].is_number())
      return Invalid(where, ": \"loads\" has an element that is not [rows, share]");
    const auto rows = pair[0].get<int64_t>();
    if (rows < 1 || rows > neurons) return Invalid(where, ": \"loads\" has ", rows, " rows, need 1 to ", neurons);
    shares.points.push_back({.rows = static_cast<int32_t>(rows), .loads = pair[1].get<double>()});
  }
  LIME_RETURN_IF_ERROR(fields.status());
  LIME_RETURN_IF_ERROR(CheckPoints(shares, neurons, where));
  return shares;
}

absl::Status CheckPlaces(const std::vector<int64_t>& places, int32_t neurons, const std::string& where) {
  if (std::ssize(places) != neurons)
    return Invalid(where, ": \"places\" has ", places.size(), " entries, but there are ", neurons, " neurons");
  std::vector<bool> seen(places.size());
  for (const int64_t place : places) {
    if (seen[static_cast<size_t>(place)]) return Invalid(where, ": \"places\" has place ", place, " twice");
    seen[static_cast<size_t>(place)] = true;
  }
  return absl::OkStatus();
}

absl::StatusOr<ProvenShare> ReadProof(const json& object, const std::string& where) {
  if (!object.is_object()) return Invalid(where, ": is not an object");
  JsonFields fields(object, where);
  const ProvenShare share{.bits = static_cast<int>(fields.Int("bits", 1, 16)),
                          .directions = static_cast<int32_t>(fields.Int("directions", 0, kMostRouteUnits)),
                          .zeros = fields.Double("zeros", 0, 1),
                          .proven = fields.Double("proven", 0, 1)};
  LIME_RETURN_IF_ERROR(fields.status());
  if (share.proven > share.zeros) return Invalid(where, ": \"proven\" is ", share.proven, ", which is more than \"zeros\", ", share.zeros);
  return share;
}

// `has_places`: else it has no order and no proofs of its own.
absl::StatusOr<LayerCalibration> ReadLayer(JsonFields& fields, int32_t masks, bool has_places) {
  const std::string& where = fields.where();
  LayerCalibration layer;
  layer.layer = static_cast<int32_t>(fields.Int("layer", 0, kMostRouteLayers - 1));
  layer.neurons = static_cast<int32_t>(fields.Int("neurons", 1, kMostRouteUnits));
  LIME_RETURN_IF_ERROR(fields.status());
  layer.unions = fields.Doubles("unions", 0, 1, static_cast<size_t>(masks));
  layer.fresh = fields.Double("fresh", 0, 1);
  layer.rows_needed = static_cast<int32_t>(fields.Int("rows_needed", 0, layer.neurons));
  layer.neurons_per_read = fields.Double("neurons_per_read", 1, layer.neurons);
  layer.path_neurons_per_read = fields.Double("path_neurons_per_read", 1, layer.neurons);
  const std::vector<int64_t> places =
      has_places ? fields.Ints("places", 0, layer.neurons - 1, static_cast<size_t>(layer.neurons)) : std::vector<int64_t>();
  const json& batches = fields.Array("batches", static_cast<size_t>(kMostCalibrationBatch));
  LIME_RETURN_IF_ERROR(fields.status());
  if (std::ssize(layer.unions) != masks || std::ranges::adjacent_find(layer.unions, std::greater()) != layer.unions.end())
    return Invalid(where, ": \"unions\" has ", layer.unions.size(), " shares, need ", masks, " that do not decrease");
  if (has_places) LIME_RETURN_IF_ERROR(CheckPlaces(places, layer.neurons, where));
  layer.places.assign(places.begin(), places.end());
  for (size_t i = 0; i < batches.size(); ++i) {
    LIME_ASSIGN_OR_RETURN(BatchShares shares, ReadBatch(batches[i], layer.neurons, absl::StrCat(where, ".batches[", i, "]")));
    const int32_t before = layer.batches.empty() ? 0 : layer.batches.back().batch;
    if (shares.batch <= before || (before == 0 && shares.batch != 1))
      return Invalid(where, ": \"batches\" begins with batch 1 and ascends, but has ", shares.batch, " after ", before);
    layer.batches.push_back(std::move(shares));
  }
  if (layer.batches.empty()) return Invalid(where, ": \"batches\" is empty");
  if (!has_places || !fields.Has("proofs")) return layer;
  const json& proofs = fields.Array("proofs", kMostProofs);
  LIME_RETURN_IF_ERROR(fields.status());
  for (size_t i = 0; i < proofs.size(); ++i) {
    LIME_ASSIGN_OR_RETURN(layer.proofs.emplace_back(), ReadProof(proofs[i], absl::StrCat(where, ".proofs[", i, "]")));
  }
  return layer;
}

absl::StatusOr<CopiedLayer> ReadCopy(const json& object, const Calibration& calibration, const std::string& where) {
  if (!object.is_object()) return Invalid(where, ": is not an object");
  JsonFields fields(object, where);
  CopiedLayer copy{.bits = static_cast<int>(fields.Int("bits", 1, 16)),
                   .directions = static_cast<int32_t>(fields.Int("directions", 1, kMostRouteUnits))};
  LIME_ASSIGN_OR_RETURN(copy.unproven, ReadLayer(fields, calibration.masks, /*has_places=*/false));
  const LayerCalibration* const of = OfLayer(calibration, copy.unproven.layer);
  if (of == nullptr || of->neurons != copy.unproven.neurons)
    return Invalid(where, ": is of layer ", copy.unproven.layer, " with ", copy.unproven.neurons,
                   " neurons, which \"layers\" does not have");
  if (!calibration.copies.empty() && copy.unproven.layer <= calibration.copies.back().unproven.layer)
    return Invalid(where, ": layer ", copy.unproven.layer, " follows layer ", calibration.copies.back().unproven.layer, "; layers ascend");
  return copy;
}

absl::Status ReadCopies(JsonFields& fields, Calibration& calibration) {
  if (!fields.Has("copies")) return absl::OkStatus();
  const json& copies = fields.Array("copies", static_cast<size_t>(kMostRouteLayers));
  calibration.frames_xxh3 = fields.String("frames_xxh3");
  LIME_RETURN_IF_ERROR(fields.status());
  if (!IsHash(calibration.frames_xxh3)) return Invalid(fields.where(), ": \"frames_xxh3\" is not ", kHashDigits, " hexadecimal digits");
  for (size_t i = 0; i < copies.size(); ++i) {
    LIME_ASSIGN_OR_RETURN(CopiedLayer copy, ReadCopy(copies[i], calibration, absl::StrCat(fields.where(), ": copies[", i, "]")));
    calibration.copies.push_back(std::move(copy));
  }
  if (calibration.copies.empty()) return Invalid(fields.where(), ": \"copies\" is empty");
  return absl::OkStatus();
}

absl::StatusOr<Calibration> Parse(std::string_view text, std::string_view name) {
  const std::string where(name);
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, name, kMostCalibrationBytes));
  JsonFields fields(root, where);
  if (!fields.Has("lime_calibration")) return Invalid(where, ": is no calibration");
  const int64_t version = fields.Int("lime_calibration", 0, std::numeric_limits<int64_t>::max());
  LIME_RETURN_IF_ERROR(fields.status());
  if (version != kVersion) return Invalid(where, ": has version ", version, ", but this release of LIME reads version ", kVersion);
  Calibration calibration;
  calibration.model = fields.String("model");
  calibration.text_xxh3 = fields.String("text_xxh3");
  calibration.tokens = fields.Int("tokens", 1, kMostTokens);
  calibration.context = static_cast<int32_t>(fields.Int("context", 1, std::numeric_limits<int32_t>::max()));
  calibration.masks = static_cast<int32_t>(fields.Int("masks", 1, kMostWindowMasks));
  const json& layers = fields.Array("layers", static_cast<size_t>(kMostRouteLayers));
  LIME_RETURN_IF_ERROR(fields.status());
  if (calibration.model.size() > kMostRouteModelBytes) return Invalid(where, ": \"model\" has more than ", kMostRouteModelBytes, " bytes");
  if (!IsHash(calibration.text_xxh3)) return Invalid(where, ": \"text_xxh3\" is not ", kHashDigits, " hexadecimal digits");
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string where_layer = absl::StrCat(where, ": layers[", i, "]");
    if (!layers[i].is_object()) return Invalid(where_layer, ": is not an object");
    JsonFields of_layer(layers[i], where_layer);
    LIME_ASSIGN_OR_RETURN(LayerCalibration layer, ReadLayer(of_layer, calibration.masks, /*has_places=*/true));
    if (!calibration.layers.empty() && layer.layer <= calibration.layers.back().layer)
      return Invalid(where, ": layer ", layer.layer, " follows layer ", calibration.layers.back().layer, "; layers ascend");
    calibration.layers.push_back(std::move(layer));
  }
  if (calibration.layers.empty()) return Invalid(where, ": \"layers\" is empty");
  LIME_RETURN_IF_ERROR(ReadCopies(fields, calibration));
  return calibration;
}

// ---- Writing

ordered_json ToJson(const BatchShares& shares) {
  ordered_json loads = ordered_json::array();
  for (const LoadPoint& point : shares.points) loads.push_back({point.rows, point.loads});
  return {{"batch", shares.batch}, {"active", shares.active}, {"loads", std::move(loads)}};
}

ordered_json SharesJson(const LayerCalibration& layer) {
  ordered_json batches = ordered_json::array();
  for (const BatchShares& shares : layer.batches) batches.push_back(ToJson(shares));
  return {{"layer", layer.layer},
          {"neurons", layer.neurons},
          {"unions", layer.unions},
          {"fresh", layer.fresh},
          {"rows_needed", layer.rows_needed},
          {"neurons_per_read", layer.neurons_per_read},
          {"path_neurons_per_read", layer.path_neurons_per_read},
          {"batches", std::move(batches)}};
}

ordered_json ToJson(const LayerCalibration& layer) {
  ordered_json object = SharesJson(layer);
  object["places"] = layer.places;
  ordered_json proofs = ordered_json::array();
  for (const ProvenShare& share : layer.proofs)
    proofs.push_back({{"bits", share.bits}, {"directions", share.directions}, {"zeros", share.zeros}, {"proven", share.proven}});
  if (!proofs.empty()) object["proofs"] = std::move(proofs);
  return object;
}

}  // namespace

std::string EncodeCalibration(const Calibration& calibration) {
  ordered_json root = {{"lime_calibration", kVersion}, {"model", calibration.model},     {"text_xxh3", calibration.text_xxh3},
                       {"tokens", calibration.tokens}, {"context", calibration.context}, {"masks", calibration.masks}};
  ordered_json& layers = root["layers"] = ordered_json::array();
  for (const LayerCalibration& layer : calibration.layers) layers.push_back(ToJson(layer));
  if (calibration.copies.empty()) return JsonText(root) + "\n";
  root["frames_xxh3"] = calibration.frames_xxh3;
  ordered_json& copies = root["copies"] = ordered_json::array();
  for (const CopiedLayer& copy : calibration.copies) {
    ordered_json object = SharesJson(copy.unproven);
    object["bits"] = copy.bits;
    object["directions"] = copy.directions;
    copies.push_back(std::move(object));
  }
  return JsonText(root) + "\n";
}

absl::StatusOr<Calibration> ParseCalibration(std::string_view text, std::string_view name, std::string_view call) {
  absl::StatusOr<Calibration> calibration = Parse(text, name);
  if (calibration.ok()) return calibration;
  return absl::Status(calibration.status().code(), absl::StrCat(calibration.status().message(), "; `", Text(call), "` writes a new one"));
}

}  // namespace lime
