// Chooses how many places the parts on demand of a device keep while other programs on its machine
// need the memory. The places of a sparse part are its rows of neurons.
//
// Pure: bytes in, places out. The places follow from the bytes alone, so shedding less brings places
// back.
//
// Places go before rows that are in memory (weights_to_shed.h), and come back after them, because a
// place loses least for its bytes. Evicted rows are read in every step, so a byte of memory saves a
// byte of each step. A place saves `unit_bytes` times the hits of a visit that it adds. Under LRU a
// cache with one place fewer has the same units but one, so this is at most one read for each visit,
// and usually none.
//
// The part with the most places loses the next one, since its last place has the fewest hits; the
// highest layer among equals. Each part keeps the places for the units of one token. With fewer, one
// token would read its own units again and again. A token reads each of its neurons once, whatever the
// rows: a sparse part keeps as many as a disk reads at a time. It has many small rows, and loses a part
// of them together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/demand/layer_places.h"
#include "planner/plan/plan.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_rows.h"

namespace lime {

// How many places a part on demand has.
struct PartPlaces {
  int32_t part = 0;  // of the plan
  int32_t places = 0;
  friend bool operator==(const PartPlaces&, const PartPlaces&) = default;
};

inline constexpr int64_t kLeastNeuronRows = 64;  // NeuronReader::Options::channels, twice
inline constexpr int64_t kNeuronSteps = 32;      // in which the rows of a sparse part go

class PlacesToShed {
 public:
  // `token_units`: units that one token chooses in a part.
  // REQUIRES: `plan` is valid and outlives this object. Nothing is shed if the plan is fixed (IsFixed).
  PlacesToShed(const Plan& plan, int32_t device, int64_t token_units) : plan_(plan) {
    for (const int part : PartsOn(plan, device)) {
      const PlanPart& what = plan.parts[static_cast<size_t>(part)];
      if (!what.on_demand() || IsFixed(plan)) continue;
      all_.push_back({part, static_cast<int32_t>(what.places)});
      const int64_t least = what.sparse() ? kLeastNeuronRows : std::max<int64_t>(kRingPlaces, token_units);
      least_.push_back(static_cast<int32_t>(std::min(what.places, least)));
      together_.push_back(what.sparse() ? static_cast<int32_t>((what.places + kNeuronSteps - 1) / kNeuronSteps) : 1);
      most_ += (what.places - least_.back()) * what.unit_bytes;
      if (!what.sparse() || what.places > least_.back()) largest_ = std::max(largest_, together_.back() * what.unit_bytes);
    }
  }

  // Bytes of all places that may go.
  Bytes most() const { return most_; }
  // The most bytes that go at once; 0 without parts on demand.
  Bytes largest() const { return largest_; }

  // The places that the parts on demand keep, in order, if at least `bytes` go, or all that may.
  std::vector<PartPlaces> Choose(Bytes bytes) const {
    std::vector<PartPlaces> kept = all_;
    while (bytes > 0) {
      const int64_t next = NextToLose(kept);
      if (next < 0) break;
      const auto i = static_cast<size_t>(next);
      const int32_t lost = std::min(together_[i], kept[i].places - least_[i]);
      kept[i].places -= lost;
      bytes -= lost * UnitBytesOf(kept[i]);
    }
    return kept;
  }

  // Bytes of the places that are gone if a part has places_of(part). Allocates nothing.
  template <typename PlacesOf>
  Bytes Gone(PlacesOf places_of) const {
    Bytes gone = 0;
    for (const PartPlaces& all : all_) gone += (all.places - places_of(all.part)) * UnitBytesOf(all);
    return gone;
  }
  Bytes Gone(const std::vector<PartPlaces>& kept) const {
    return Gone([&](int32_t part) { return std::ranges::find(kept, part, &PartPlaces::part)->places; });
  }

 private:
  Bytes UnitBytesOf(const PartPlaces& of) const { return plan_.parts[static_cast<size_t>(of.part)].unit_bytes; }

  // -1: all have their least places.
  int64_t NextToLose(const std::vector<PartPlaces>& kept) const {
    int64_t best = -1;
    for (size_t i = 0; i < kept.size(); ++i) {
      if (kept[i].places == least_[i]) continue;
      if (best < 0 || kept[i].places >= kept[static_cast<size_t>(best)].places) best = static_cast<int64_t>(i);
    }
    return best;
  }

  const Plan& plan_;
  std::vector<PartPlaces> all_;  // as planned
  std::vector<int32_t> least_, together_;
  Bytes most_ = 0;
  Bytes largest_ = 0;
};

}  // namespace lime
