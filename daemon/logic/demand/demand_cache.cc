#include "daemon/logic/demand/demand_cache.h"

#include <algorithm>
#include <string>
#include <utility>

#include "planner/base/check.h"
#include "planner/demand/route_log.h"

namespace lime {
namespace {

constexpr int32_t kMostReadsAtOnce = 256;
constexpr int32_t kMostAheadPlaces = 1024;

absl::Status CheckAhead(int32_t places) {
  if (places >= 0 && places <= kMostAheadPlaces) return absl::OkStatus();
  return Invalid("demand cache: ", places, " places for reading ahead, need 0 to ", kMostAheadPlaces);
}

absl::Status CheckDemandShape(const DemandCache::Shape& shape) {
  const auto layers = static_cast<int64_t>(shape.places.size());
  if (layers < 1 || layers > kMostRouteLayers) return Invalid("demand cache: ", layers, " layers, need 1 to ", kMostRouteLayers);
  if (shape.units < 1 || shape.units > kMostRouteUnits || layers * shape.units > kMostRouteModelUnits)
    return Invalid("demand cache: ", layers, " layers of ", shape.units, " units, need 1 to ", kMostRouteUnits, " and together at most ",
                   kMostRouteModelUnits);
  for (const int32_t places : shape.places) {
    if (places < 1 || places > shape.units)
      return Invalid("demand cache: a layer has ", places, " places, need 1 to its ", shape.units, " units");
  }
  if (!shape.policies.empty() && shape.policies.size() != shape.places.size())
    return Invalid("demand cache: ", shape.policies.size(), " policies for ", layers, " layers");
  if (shape.ring_places < 1 || shape.ring_places > shape.units)
    return Invalid("demand cache: ring of ", shape.ring_places, " places, need 1 to the ", shape.units, " units");
  if (shape.reads_at_once < 1 || shape.reads_at_once > kMostReadsAtOnce)
    return Invalid("demand cache: ", shape.reads_at_once, " reads at once, need 1 to ", kMostReadsAtOnce);
  if (!shape.ahead.empty() && shape.ahead.size() != shape.places.size())
    return Invalid("demand cache: places for reading ahead of ", shape.ahead.size(), " layers, for ", layers, " layers");
  LIME_RETURN_IF_ERROR(CheckAhead(shape.ahead_places));
  for (const int32_t ahead : shape.ahead) LIME_RETURN_IF_ERROR(CheckAhead(ahead));
  return absl::OkStatus();
}

bool Has(std::span<const int32_t> units, int32_t unit) {
  return std::ranges::find(units, unit) != units.end();
}

}  // namespace

absl::StatusOr<std::unique_ptr<DemandCache>> DemandCache::Create(const Shape& shape) {
  LIME_RETURN_IF_ERROR(CheckDemandShape(shape));
  return std::unique_ptr<DemandCache>(new DemandCache(shape));
}

DemandCache::DemandCache(const Shape& shape) : shape_(shape) {
  const auto units = static_cast<size_t>(shape.units), reads = static_cast<size_t>(shape.reads_at_once) + 1;  // one of them ahead
  layers_.reserve(shape.places.size()), visits_.reserve(shape.places.size());
  reads_.reserve(reads), failed_.reserve(reads), changed_.reserve(units);
  for (size_t i = 0; i < shape.places.size(); ++i) {
    const int32_t places = shape.places[i];
    Layer& layer = layers_.emplace_back(LayerPlaces::Options{.units = shape.units,
                                                             .most_places = places,
                                                             .ring_places = shape.ring_places,
                                                             .policy = shape.policies.empty() ? shape.policy : shape.policies[i]});
    layer.target = places;
    for (int32_t place = 0; place < places; ++place) layer.places.AddMemory(place);
    layer.chosen.reserve(units), layer.ready.reserve(units);
    layer.most_ahead = shape.ahead.empty() ? shape.ahead_places : shape.ahead[i];
    if (layer.most_ahead > 0) layer.suggested.reserve(units);
  }
}

// ---- A visit

absl::Status DemandCache::Begin(int32_t index, std::span<const int32_t> chosen, int32_t rows) {
  Layer& layer = At(index);
  LIME_CHECK(layer.chosen.empty()) << "a visit of layer " << index << " is under way";
  if (const absl::Status valid = CheckChosen(chosen, shape_.units); !valid.ok()) return Invalid("layer ", index, ": ", valid.message());
  layer.chosen.assign(chosen.begin(), chosen.end());
  layer.suggested.clear();
  layer.places.BeginVisit(chosen);
  visits_.push_back(index);
  last_layer_ = index;
  for (const int32_t unit : chosen) {
    layer.needed[static_cast<size_t>(unit)] = true;
    const int32_t place = layer.places.PlaceOf(unit);
    if (place != kNone && !layer.places.IsBusy(place)) CountHit(layer, place);
  }
  for (UnderWay& read : reads_) {
    if (read.read.what.layer == index) read.wanted = layer.needed[static_cast<size_t>(read.read.what.unit)];
  }
  ++layer.counts.visits;
  layer.counts.rows += rows;
  layer.counts.hits += std::ssize(layer.ready);
  layer.counts.misses += std::ssize(chosen) - std::ssize(layer.ready);
  return absl::OkStatus();
}

void DemandCache::CountHit(Layer& layer, int32_t place) {
  layer.ready.push_back(layer.places.UnitIn(place));
  if (!layer.read_ahead[static_cast<size_t>(place)]) return;
  ++layer.counts.ahead_used;
  SetReadAhead(layer, place, false);
}

std::optional<DemandCache::Unit> DemandCache::NextReady(int32_t index) {
  Layer& layer = At(index);
  if (layer.next_ready == layer.ready.size()) return std::nullopt;
  const int32_t unit = layer.ready[layer.next_ready++];
  layer.computing[static_cast<size_t>(unit)] = true;
  return Unit{.layer = index, .unit = unit, .place = layer.places.PlaceOf(unit)};
}

bool DemandCache::OnComputed(int32_t index, int32_t unit) {
  Layer& layer = At(index);
  LIME_CHECK(layer.computing[static_cast<size_t>(unit)]) << "unit " << unit << " of layer " << index << " is not being computed";
  layer.computing[static_cast<size_t>(unit)] = layer.needed[static_cast<size_t>(unit)] = false;
  if (++layer.computed < std::ssize(layer.chosen)) return false;
  EndVisit(index);
  return true;
}

void DemandCache::Cancel(int32_t index) {
  Layer& layer = At(index);
  if (layer.chosen.empty()) return;
  for (const int32_t unit : layer.chosen) layer.computing[static_cast<size_t>(unit)] = layer.needed[static_cast<size_t>(unit)] = false;
  for (UnderWay& read : reads_) {
    if (read.read.what.layer == index) read.wanted = false;
  }
  std::erase_if(failed_, [&](const Failed& failed) {
    if (failed.what.layer != index) return false;
    layer.places.SetBusy(failed.what.place, false);
    layer.places.Empty(failed.what.place);
    return true;
  });
  EndVisit(index);
}

void DemandCache::EndVisit(int32_t index) {
  Layer& layer = At(index);
  layer.places.EndVisit(layer.chosen);
  layer.chosen.clear(), layer.ready.clear();
  layer.next_ready = layer.next_miss = 0;
  layer.computed = 0;
  std::erase(visits_, index);
}

// ---- Reads

bool DemandCache::CanRead(const Layer& layer) const {
  if (layer.next_miss == layer.places.misses().size()) return false;
  const int32_t place = layer.places.PlaceOfMiss(layer.next_miss), unit = layer.places.UnitIn(place);
  return !layer.places.IsBusy(place) && (unit == kNone || !layer.needed[static_cast<size_t>(unit)]);
}

bool DemandCache::VisitsWait() const {
  return !failed_.empty() || std::ranges::any_of(visits_, [this](int32_t i) { return At(i).next_miss < At(i).places.misses().size(); });
}

std::optional<DemandCache::Read> DemandCache::NextRead() {
  const int64_t needed = std::ranges::count_if(reads_, [](const UnderWay& read) { return !read.read.ahead || read.wanted; });
  if (needed >= shape_.reads_at_once) return std::nullopt;
  if (!failed_.empty()) {
    const Failed failed = failed_.front();
    failed_.erase(failed_.begin());
    return Start(failed.what, /*ahead=*/false, failed.again);
  }
  for (const int32_t index : visits_) {
    Layer& layer = At(index);
    if (!CanRead(layer)) continue;
    const size_t miss = layer.next_miss++;
    const Unit what{.layer = index, .unit = layer.places.misses()[miss], .place = layer.places.PlaceOfMiss(miss)};
    SetReadAhead(layer, what.place, false);
    layer.places.Put(what.unit, what.place);
    return Start(what, /*ahead=*/false, /*again=*/false);
  }
  return reads_.empty() && !disk_busy_ && !VisitsWait() ? NextReadAhead() : std::nullopt;
}

DemandCache::Read DemandCache::Start(const Unit& what, bool ahead, bool again) {
  At(what.layer).places.SetBusy(what.place, true);
  LIME_CHECK_LE(std::ssize(reads_), shape_.reads_at_once);
  reads_.push_back({.read = {.number = next_number_++, .what = what, .ahead = ahead}, .wanted = !ahead, .again = again});
  return reads_.back().read;
}

const DemandCache::UnderWay& DemandCache::UnderWayAt(int64_t number) const {
  const auto found = std::ranges::find(reads_, number, [](const UnderWay& read) { return read.read.number; });
  LIME_CHECK(found != reads_.end()) << "read " << number << " is not under way";
  return *found;
}

std::optional<int64_t> DemandCache::NextCancel() {
  if (!disk_busy_ && !VisitsWait()) return std::nullopt;
  for (UnderWay& read : reads_) {
    if (!read.read.ahead || read.wanted || read.cancelled) continue;
    read.cancelled = true;
    return read.read.number;
  }
  return std::nullopt;
}

absl::Status DemandCache::OnRead(int64_t number, const absl::Status& result) {
  const UnderWay ended = UnderWayAt(number);
  std::erase_if(reads_, [number](const UnderWay& read) { return read.read.number == number; });
  const Unit& what = ended.read.what;
  Layer& layer = At(what.layer);
  layer.places.SetBusy(what.place, false);
  if (!result.ok()) return OnFailed(ended, result);
  if (ended.read.ahead) ++layer.counts.ahead_read;
  if (!ended.wanted) return absl::OkStatus();
  layer.ready.push_back(what.unit);
  if (ended.read.ahead) ++layer.counts.ahead_used;
  SetReadAhead(layer, what.place, false);
  return absl::OkStatus();
}

absl::Status DemandCache::OnFailed(const UnderWay& ended, const absl::Status& result) {
  const Unit& what = ended.read.what;
  Layer& layer = At(what.layer);
  SetReadAhead(layer, what.place, false);
  if (ended.wanted && !ended.again) {
    ++layer.counts.read_again;
    layer.places.SetBusy(what.place, true);
    failed_.push_back({.what = what, .again = !ended.cancelled});  // a read that was cancelled says nothing of the disk
    return absl::OkStatus();
  }
  layer.places.Empty(what.place);
  if (!ended.cancelled) std::erase(layer.suggested, what.unit);
  if (!ended.wanted) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("unit ", what.unit, " could not be read, twice: ", result.message()));
}

// ---- Read-ahead

void DemandCache::Suggest(int32_t index, std::span<const int32_t> units) {
  Layer& layer = At(index);
  if (!layer.chosen.empty() || layer.most_ahead == 0) return;
  layer.suggested.clear();
  int32_t to_read = 0;
  for (const int32_t unit : units) {
    if (unit < 0 || unit >= shape_.units || Has(layer.suggested, unit)) continue;
    const bool is_there = layer.places.PlaceOf(unit) != kNone;
    if (!is_there && to_read == layer.most_ahead) continue;
    to_read += is_there ? 0 : 1;
    layer.suggested.push_back(unit);
  }
  layer.counts.suggested += to_read;
}

void DemandCache::SetReadAhead(Layer& layer, int32_t place, bool ahead) {
  if (layer.read_ahead[static_cast<size_t>(place)] == ahead) return;
  layer.read_ahead[static_cast<size_t>(place)] = ahead;
  layer.num_ahead += ahead ? 1 : -1;
}

// A place that no suggestion has, one of an earlier suggestion if the layer may read no more ahead.
int32_t DemandCache::PlaceAhead(const Layer& layer) const {
  const bool most = layer.num_ahead >= layer.most_ahead;
  return layer.places.ToLose([&](int32_t place) {
    return (!most || layer.read_ahead[static_cast<size_t>(place)]) && !Has(layer.suggested, layer.places.UnitIn(place));
  });
}

// The layers after the last visit come first.
std::optional<DemandCache::Read> DemandCache::NextReadAhead() {
  for (int32_t i = 1; i <= num_layers(); ++i) {
    const int32_t index = (last_layer_ + i) % num_layers();
    Layer& layer = At(index);
    for (const int32_t unit : layer.suggested) {
      if (layer.places.PlaceOf(unit) != kNone) continue;
      const int32_t place = PlaceAhead(layer);
      if (place == kNone) break;
      layer.places.Put(unit, place, /*cold=*/true);
      SetReadAhead(layer, place, true);
      return Start({.layer = index, .unit = unit, .place = place}, /*ahead=*/true, /*again=*/false);
    }
  }
  return std::nullopt;
}

// ---- Memory

std::span<const int32_t> DemandCache::SetPlaces(int32_t index, int32_t count) {
  Layer& layer = At(index);
  const int32_t most = layer.places.most_places();
  layer.target = std::clamp(count, std::min(shape_.ring_places, most), most);
  changed_.clear();
  for (int32_t place = 0; place < most && layer.places.num_places() < layer.target; ++place) {
    if (layer.places.HasMemory(place)) continue;
    layer.places.AddMemory(place);
    changed_.push_back(place);
  }
  const int32_t surplus = std::max(0, layer.places.num_places() - layer.target);
  for (const int32_t place : layer.places.ToLose(static_cast<size_t>(surplus))) {
    SetReadAhead(layer, place, false);
    layer.places.TakeMemory(place);
    changed_.push_back(place);
  }
  return changed_;
}

std::optional<DemandCache::GivenBack> DemandCache::NextGivenBack() {
  for (int32_t index = 0; index < num_layers(); ++index) {
    Layer& layer = At(index);
    if (layer.places.num_places() <= layer.target) continue;
    const int32_t place = layer.places.ToLose([](int32_t) { return true; });
    if (place == kNone) continue;
    SetReadAhead(layer, place, false);
    layer.places.TakeMemory(place);
    return GivenBack{.layer = index, .place = place};
  }
  return std::nullopt;
}

std::optional<int32_t> DemandCache::Find(int32_t index, int32_t unit) const {
  const int32_t place = At(index).places.PlaceOf(unit);
  return place == kNone || At(index).places.IsBusy(place) ? std::nullopt : std::optional(place);
}

}  // namespace lime
