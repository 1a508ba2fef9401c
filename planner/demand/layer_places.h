// The units of one layer in its places, and the places that a visit uses.
//
// A place is memory for one unit. A visit needs all of its chosen units, one after another at the
// latest:
//
//   chosen and there    a hit: stays until it is computed
//   chosen and not      a miss: miss i is read into place i of the visit's ring, modulo its size
//
// The ring has the free places, then those of units that are not chosen, coldest first; as many as
// there are misses. A prompt may choose more units than there are places. The ring then has at
// least `ring_places`, and the misses sweep through it in ascending order: each is read, computed,
// replaced. The other hits stay, so a prompt does not empty the cache. What is in memory after a
// visit does not depend on when reads end.
//
// Pure, and used by the replay (planner/demand/replay.h) and by the cache of a device
// (daemon/logic/demand). Allocates nothing after construction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/check.h"
#include "planner/demand/unit_policy.h"

namespace lime {

// The places of a sweep: one unit is read while another one is computed. A layer has at least as many.
inline constexpr int32_t kRingPlaces = 2;

class LayerPlaces {
 public:
  static constexpr int32_t kNone = -1;

  struct Options {
    int32_t units = 0;
    int32_t most_places = 0;            // at most the units
    int32_t ring_places = kRingPlaces;  // of a sweep
    UnitPolicy policy = UnitPolicy::kLru;
  };

  // No place has memory yet.  REQUIRES: all numbers are positive, most_places <= units.
  explicit LayerPlaces(const Options& options)
      : options_(options),
        history_(options.units, options.policy),
        place_of_(static_cast<size_t>(options.units), kNone),
        chosen_(static_cast<size_t>(options.units), false),
        places_(static_cast<size_t>(options.most_places)) {
    LIME_CHECK(options.units > 0 && options.most_places > 0 && options.most_places <= options.units && options.ring_places > 0);
    order_.reserve(places_.size()), ring_.reserve(places_.size()), misses_.reserve(place_of_.size());
  }

  // ---- Places

  int32_t most_places() const { return options_.most_places; }
  int32_t num_places() const { return num_places_; }  // with memory
  bool HasMemory(int32_t place) const { return At(place).memory; }
  int32_t UnitIn(int32_t place) const { return At(place).unit; }                        // kNone: free
  int32_t PlaceOf(int32_t unit) const { return place_of_[static_cast<size_t>(unit)]; }  // kNone: not there

  // REQUIRES: the place has no memory.
  void AddMemory(int32_t place) {
    LIME_CHECK(!At(place).memory) << place;
    At(place).memory = true, ++num_places_;
  }

  // REQUIRES: the place has memory and is not kept busy.
  void TakeMemory(int32_t place) {
    LIME_CHECK(At(place).memory && !At(place).busy) << place;
    Empty(place);
    At(place).memory = false, --num_places_;
  }

  // A busy place keeps its unit: it is being read.
  void SetBusy(int32_t place, bool busy) { At(place).busy = busy; }
  bool IsBusy(int32_t place) const { return At(place).busy; }

  // The unit replaces what the place has. `cold`: it is the first to leave until a visit uses it.
  // REQUIRES: the place has memory and is not busy, and the unit is in no place.
  void Put(int32_t unit, int32_t place, bool cold = false) {
    LIME_CHECK(At(place).memory && !At(place).busy && PlaceOf(unit) == kNone) << "unit " << unit << ", place " << place;
    Empty(place);
    At(place).unit = unit;
    place_of_[static_cast<size_t>(unit)] = place;
    history_.Read(unit, cold);
  }

  // REQUIRES: the place is not busy.
  void Empty(int32_t place) {
    LIME_CHECK(!At(place).busy) << place;
    if (At(place).unit != kNone) place_of_[static_cast<size_t>(At(place).unit)] = kNone;
    At(place).unit = kNone;
  }

  // The place to lose next, of those for which may_lose(place) holds: a free one, or that of the
  // coldest unit. Busy places and those of the visit's chosen units and ring are never lost. kNone
  // if there is none.
  template <typename MayLose>
  int32_t ToLose(MayLose may_lose) const {
    int32_t best = kNone;
    for (int32_t p = 0; p < most_places(); ++p) {
      if (!At(p).memory || At(p).busy || At(p).in_ring || IsChosen(At(p).unit) || !may_lose(p)) continue;
      if (best == kNone || LeavesBefore(p, best)) best = p;
      if (At(best).unit == kNone) break;
    }
    return best;
  }

  // The next `most` places to lose, in order; fewer if there are not so many. Valid until the next
  // call.
  std::span<const int32_t> ToLose(size_t most) {
    Collect([this](const Place& place) { return !place.busy && !place.in_ring && !IsChosen(place.unit); });
    most = std::min(most, order_.size());
    SortFirst(most);
    return std::span(order_).first(most);
  }

  // ---- A visit

  // A visit begins that needs these units. misses() and PlaceOfMiss follow from it.
  // REQUIRES: CheckChosen accepts them, no visit is under way, and there is a place.
  void BeginVisit(std::span<const int32_t> chosen) {
    LIME_CHECK(ring_.empty() && num_places_ > 0);
    history_.Visit(chosen);
    misses_.clear();
    for (const int32_t unit : chosen) {
      chosen_[static_cast<size_t>(unit)] = true;
      if (PlaceOf(unit) == kNone) misses_.push_back(unit);
    }
    MakeRing(misses_.size());
  }

  // The visit is over. `chosen`: its units.
  void EndVisit(std::span<const int32_t> chosen) {
    for (const int32_t unit : chosen) chosen_[static_cast<size_t>(unit)] = false;
    for (const int32_t place : ring_) At(place).in_ring = false;
    ring_.clear();
  }

  bool IsChosen(int32_t unit) const { return unit != kNone && chosen_[static_cast<size_t>(unit)]; }
  bool IsInRing(int32_t place) const { return At(place).in_ring; }
  std::span<const int32_t> misses() const { return misses_; }  // ascending, of the last visit
  int32_t PlaceOfMiss(size_t i) const { return ring_[i % ring_.size()]; }
  // More units are chosen than places are there for them.
  bool sweeps() const { return misses_.size() > ring_.size(); }

  // The whole visit at once, where reading takes no time.
  void Visit(std::span<const int32_t> chosen) {
    BeginVisit(chosen);
    for (size_t i = 0; i < misses_.size(); ++i) Put(misses_[i], PlaceOfMiss(i));
    EndVisit(chosen);
  }

 private:
  struct Place {
    int32_t unit = kNone;
    bool memory = false;
    bool busy = false;
    bool in_ring = false;  // of the visit
  };

  Place& At(int32_t place) { return places_[static_cast<size_t>(place)]; }
  const Place& At(int32_t place) const { return places_[static_cast<size_t>(place)]; }

  // Free places first, in ascending order; then the unit with the smaller key, the lower unit among
  // equals.
  bool LeavesBefore(int32_t a, int32_t b) const {
    const int32_t x = At(a).unit, y = At(b).unit;
    if (x == kNone || y == kNone) return x == y ? a < b : x == kNone;
    const uint64_t key_x = history_.KeyOf(x), key_y = history_.KeyOf(y);
    return key_x != key_y ? key_x < key_y : x < y;
  }

  void SortFirst(size_t most) {
    const auto before = [this](int32_t a, int32_t b) { return LeavesBefore(a, b); };
    std::partial_sort(order_.begin(), order_.begin() + static_cast<int64_t>(most), order_.end(), before);
  }

  // Takes the first `most` of order_ into the ring.
  void TakeFirst(size_t most) {
    most = std::min(most, order_.size());
    SortFirst(most);
    ring_.insert(ring_.end(), order_.begin(), order_.begin() + static_cast<int64_t>(most));
  }

  // Fills order_ with the places for which `may_take(place)` holds.
  template <typename MayTake>
  void Collect(MayTake may_take) {
    order_.clear();
    for (int32_t p = 0; p < most_places(); ++p) {
      if (At(p).memory && may_take(At(p))) order_.push_back(p);
    }
  }

  // The rings of sweeps that lack places take hits, which are computed first, and at last places
  // that are busy with units that are not chosen.
  void MakeRing(size_t misses) {
    Collect([this](const Place& place) { return !place.busy && !IsChosen(place.unit); });
    TakeFirst(misses);
    const size_t least = std::min(misses, static_cast<size_t>(options_.ring_places));
    if (ring_.size() < least) {
      Collect([this](const Place& place) { return IsChosen(place.unit); });
      TakeFirst(least - ring_.size());
    }
    if (ring_.empty() && misses > 0) {
      Collect([](const Place& place) { return place.busy; });
      TakeFirst(1);
    }
    for (const int32_t place : ring_) At(place).in_ring = true;
  }

  const Options options_;
  UnitHistory history_;
  std::vector<int32_t> place_of_;  // of each unit
  std::vector<bool> chosen_;       // each unit, by the visit
  std::vector<Place> places_;
  std::vector<int32_t> order_;  // of places, while a ring is made
  std::vector<int32_t> ring_, misses_;
  int32_t num_places_ = 0;
};

}  // namespace lime
