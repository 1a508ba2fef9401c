#include "planner/demand/divide_places.h"

#include <algorithm>
#include <queue>

#include "planner/base/check.h"
#include "planner/demand/route_log.h"

namespace lime {
namespace {

constexpr Bytes kMostUnitBytes = Bytes{1} << 40;

// The next place of a layer, by the bytes of reading that each of its bytes saves.
struct Offer {
  double saves = 0;
  size_t layer = 0;
  // Of the largest in a queue: the better one, the lower layer among equals.
  friend bool operator<(const Offer& a, const Offer& b) { return a.saves != b.saves ? a.saves < b.saves : a.layer > b.layer; }
};

int32_t MostPlaces(const LayerDemand& layer) {
  return std::min(layer.most, layer.hits.units());
}

absl::Status CheckDemands(std::span<const LayerDemand> layers) {
  if (layers.size() > static_cast<size_t>(kMostRouteLayers))
    return Invalid("places: ", layers.size(), " layers, at most ", kMostRouteLayers, " can share them");
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerDemand& layer = layers[i];
    if (layer.unit_bytes < 1 || layer.unit_bytes > kMostUnitBytes)
      return Invalid("places: units of layer ", i, " have ", layer.unit_bytes, " bytes, need 1 to ", kMostUnitBytes);
    if (!(layer.uses >= 0 && layer.uses <= kMostRouteUnits))
      return Invalid("places: layer ", i, " uses ", layer.uses, " units in a step, need 0 to ", kMostRouteUnits);
    if (layer.least < 0 || layer.least > MostPlaces(layer))
      return Invalid("places: layer ", i, " needs ", layer.least, " places, but may have at most ", MostPlaces(layer));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> DividePlaces(std::span<const LayerDemand> layers, Bytes budget) {
  LIME_RETURN_IF_ERROR(CheckDemands(layers));
  std::vector<int32_t> places;
  Bytes needed = 0;  // at most 2^12 layers of 2^17 places of 2^40 bytes would overflow, so it stops at the budget
  for (const LayerDemand& layer : layers) {
    places.push_back(layer.least);
    if (needed <= budget && layer.least > 0 && layer.unit_bytes > (budget - needed) / layer.least) needed = budget + 1;
    if (needed <= budget) needed += layer.least * layer.unit_bytes;
  }
  if (needed > budget)
    return absl::ResourceExhaustedError(
        absl::StrCat("places: ", budget, " bytes have no room for the least places of ", layers.size(), " layers; give more memory"));
  std::priority_queue<Offer> offers;
  const auto offer = [&](size_t i) {
    const double saves = layers[i].uses * layers[i].hits.Gain(places[i]);
    if (places[i] < MostPlaces(layers[i]) && saves > 0) offers.push({.saves = saves, .layer = i});
  };
  for (size_t i = 0; i < layers.size(); ++i) offer(i);
  for (Bytes left = budget - needed; !offers.empty();) {
    const size_t i = offers.top().layer;
    offers.pop();
    if (layers[i].unit_bytes > left) continue;  // what is left only shrinks
    left -= layers[i].unit_bytes, ++places[i];
    offer(i);
  }
  return places;
}

double ExpectedReadBytes(std::span<const LayerDemand> layers, std::span<const int32_t> places) {
  LIME_CHECK_EQ(layers.size(), places.size());
  double bytes = 0;
  for (size_t i = 0; i < layers.size(); ++i)
    bytes += layers[i].uses * static_cast<double>(layers[i].unit_bytes) * (1 - layers[i].hits.At(places[i]));
  return bytes;
}

}  // namespace lime
