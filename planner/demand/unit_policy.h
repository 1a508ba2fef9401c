// Which unit of a layer leaves memory for another one.
//
// A policy gives every unit a key, and the smallest key leaves first. Keys follow from the visits
// of the layer alone. All numbers are integers, so every device chooses the same units.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/check.h"
#include "planner/base/names.h"

namespace lime {

enum class UnitPolicy : uint8_t {
  kLru,         // the unit that was used the longest ago
  kLfu,         // the unit with the smallest number of uses; a use counts half after kLfuHalfLife visits
  kLeastStale,  // the unit that was read first; those that the last visit uses leave after all others
};
inline constexpr std::array kUnitPolicies = {UnitPolicy::kLru, UnitPolicy::kLfu, UnitPolicy::kLeastStale};
inline constexpr Names<UnitPolicy, 3> kUnitPolicyNames{
    {{UnitPolicy::kLru, "lru"}, {UnitPolicy::kLfu, "lfu"}, {UnitPolicy::kLeastStale, "least-stale"}}};

inline constexpr int kLfuHalfLife = 32;  // visits of the layer

// What a policy has to know of the units of one layer. Units that are not in memory have a history,
// too.
//
// kLeastStale is our reading of SpecMD (Hoang et al., 2026) for a layer with places of its own: the
// units of the last visit that has begun are current, all others are stale, and both leave first in,
// first out.
class UnitHistory {
 public:
  // REQUIRES: units > 0
  UnitHistory(int32_t units, UnitPolicy policy) : policy_(policy), units_(static_cast<size_t>(units)) {
    // The 32nd root of 1/2, with 32 bits after the point; each use multiplies, so 1 is 1 << 32.
    constexpr uint64_t kFactor = 4202935003;
    uint64_t share = kOne;
    for (uint64_t& of_age : shares_) of_age = share, share = share * kFactor >> 32;
  }

  // A visit begins that uses these units.
  void Visit(std::span<const int32_t> chosen) {
    ++visits_;
    for (const int32_t u : chosen) {
      Unit& unit = units_[static_cast<size_t>(u)];
      if (policy_ == UnitPolicy::kLfu) unit.uses = static_cast<uint32_t>(UsesNow(unit) + kUse);
      unit.last = visits_;
      unit.cold = false;
    }
  }

  // The unit is read. `cold`: it leaves before all units that were used, until a visit uses it.
  void Read(int32_t u, bool cold) {
    Unit& unit = units_[static_cast<size_t>(u)];
    unit.read = ++reads_;
    unit.cold = cold;
  }

  // Smaller keys leave first; the lower unit among equals.
  uint64_t KeyOf(int32_t u) const {
    const Unit& unit = units_[static_cast<size_t>(u)];
    if (unit.cold) return 0;
    switch (policy_) {
      case UnitPolicy::kLru:
        return 1 + unit.last;
      case UnitPolicy::kLfu:
        return 1 + (UsesNow(unit) << 32 | (unit.last & 0x7fffffff));
      case UnitPolicy::kLeastStale:
        return 1 + (uint64_t{unit.last == visits_} << 62 | unit.read);
    }
    return 0;
  }

  UnitPolicy policy() const { return policy_; }

 private:
  static constexpr uint64_t kOne = uint64_t{1} << 32;
  static constexpr uint64_t kUse = 1 << 16;  // one use, with 16 bits after the point
  static constexpr size_t kAges = 512;       // after these visits a use counts nothing

  struct Unit {
    uint64_t last = 0;  // visit that used it; 0: none
    uint64_t read = 0;  // counts reads
    uint32_t uses = 0;  // at `last`; below 48 << 16, since a use halves every 32 visits
    bool cold = false;
  };

  uint64_t UsesNow(const Unit& unit) const {
    const uint64_t age = visits_ - unit.last;
    return age < kAges ? unit.uses * shares_[age] >> 32 : 0;
  }

  const UnitPolicy policy_;
  std::array<uint64_t, kAges> shares_;  // what is left of a use, by its age in visits
  std::vector<Unit> units_;
  uint64_t visits_ = 0;
  uint64_t reads_ = 0;
};

}  // namespace lime
