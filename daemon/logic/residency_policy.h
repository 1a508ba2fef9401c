// Decides how many bytes of weights may stay in memory while other programs on the machine need
// some of the memory. Weights are evicted at once, and come back slowly.
//
// Pure: samples and times in, a number of bytes out. The owner chooses the blocks.
// Thread: the owner's, under its lock.
//
//   room = available + resident - target    what is available once the owner has reached the target
//
//   room < reserve                the target falls: room becomes reserve + margin
//   stalls and no free memory     it falls by a quarter of what is resident, at least by a block
//   available < emergency         it falls to 0
//   room >= reserve + margin + step at every moment of the last `hold`
//                                 it rises by a step, a quarter of what was evicted, and then every
//                                 `step_interval`
//   a step is evicted again soon  `hold` doubles: no fight with a neighbour for the same memory
//
// Invariants: 0 <= target <= most. If no neighbour changes the room, no step up is evicted again.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>

#include "absl/time/time.h"
#include "planner/base/bytes.h"

namespace lime {

// The memory at one moment.
struct MemorySample {
  // The tasks that share a memory.
  struct Scope {
    // How long some of them waited for memory since the last sample (PSI "some").
    absl::Duration stalled;
    Bytes free = INT64_MAX;  // can be taken without reclaiming anything
  };
  // The memory that this process can take without swapping: MemAvailable, within the limits of its
  // cgroups.
  Bytes available = 0;
  Scope machine;
  Scope group;              // our cgroup, if it is counted separately
  std::string_view source;  // what caused the sample, "poll" or the name of an event; a constant
};

class ResidencyPolicy {
 public:
  struct Options {
    Bytes most = 0;       // what the plan keeps resident, within the user's budget
    Bytes reserve = 0;    // left to other programs: PressureReserve() of planner/problem/memory_budget.h
    Bytes block = 0;      // the largest block: coming back by less is useless
    Bytes emergency = 0;  // with less available, other programs are about to be killed; 0: never
    absl::Duration hold = absl::Seconds(2);
    absl::Duration step_interval = absl::Seconds(1);
    // A step that is evicted again within this time, or within twice the hold, doubles the hold.
    absl::Duration soon = absl::Seconds(10);
    // With three more steps everything is back in 10 s, whatever happened before.
    absl::Duration longest_hold = absl::Seconds(6);
    absl::Duration stall = absl::Milliseconds(100);  // per second; more is too much
  };

  // Why the target has its value.
  enum class Reason {
    kPlan,       // nothing has happened
    kRoom,       // room fell below the reserve
    kStall,      // tasks waited for memory while none was free
    kEmergency,  // almost nothing was available
    kRegained,   // the pressure has passed
  };

  explicit ResidencyPolicy(const Options& options) : options_(options), target_(options.most), hold_(options.hold) {}

  // Returns how much should be resident from now on: evict down to it at once, or load up to it.
  // `resident`: bytes in memory now.
  Bytes OnSample(const MemorySample& sample, Bytes resident, absl::Time now) {
    Remember(sample.available + std::min(resident, target_), now);
    const Bytes room = sample.available + resident - target_;
    const bool stalled = Stalled(sample, now);
    if (sample.available < options_.emergency) {
      Shed(0, Reason::kEmergency, now);
    } else if (room < options_.reserve) {
      Shed(target_ - (options_.reserve + Margin() - room), Reason::kRoom, now);
    } else if (stalled) {
      Shed(std::min(target_, resident) - std::max(options_.block, resident / 4), Reason::kStall, now);
    } else {
      MayRegain(now);
    }
    return target_;
  }

  // The plan has changed. Weights above `most` are evicted; missing weights come back step by step.
  void SetMost(Bytes most) {
    options_.most = most;
    target_ = std::min(target_, most);
    step_ = 0;
  }

  Bytes target() const { return target_; }
  Reason reason() const { return reason_; }
  absl::Duration hold() const { return hold_; }
  int64_t falls() const { return falls_; }  // of the target

 private:
  struct Seen {
    absl::Time when;
    Bytes possible = 0;  // could be resident if others had nothing; does not depend on the target
  };

  void Remember(Bytes possible, absl::Time now) {
    seen_.push_back({now, possible});
    while (seen_.front().when < now - options_.longest_hold) seen_.pop_front();
  }

  // The bytes that could have been resident at every moment of the last `hold_`, less reserve and
  // margin.
  Bytes Lasting(absl::Time now) const {
    Bytes least = seen_.back().possible;
    for (const Seen& seen : seen_) {
      if (seen.when >= now - hold_) least = std::min(least, seen.possible);
    }
    return std::min(options_.most, least - options_.reserve - Margin());
  }

  // Stalls while memory is free come from other programs' own limits, and eviction does not help
  // them. Stall time leaks away at the rate that is tolerated. After an eviction for a stall there
  // is a second in which it may help.
  bool Stalled(const MemorySample& sample, absl::Time now) {
    absl::Duration worst;
    for (const MemorySample::Scope& scope : {sample.machine, sample.group}) {
      if (scope.free < options_.reserve) worst = std::max(worst, scope.stalled);
    }
    const absl::Duration leaked = (now - stalls_until_) / absl::Seconds(1) * options_.stall;
    stalls_until_ = now;
    stalls_ = std::max(absl::ZeroDuration(), stalls_ - leaked) + worst;
    if (stalls_ < options_.stall || now < stall_shed_ + absl::Seconds(1)) return false;
    stall_shed_ = now;
    stalls_ = absl::ZeroDuration();
    return true;
  }

  // Several falls of the target in one shortage count as one. Only the first one shows whether a
  // step up was too early.
  void Shed(Bytes target, Reason reason, absl::Time now) {
    target = std::clamp<Bytes>(target, 0, target_);
    if (target < target_) ++falls_;
    target_ = target;
    reason_ = reason;
    step_ = 0;
    if (regained_) {
      const bool soon = now - *regained_ < std::max(options_.soon, 2 * hold_);
      hold_ = soon ? std::min(2 * hold_, options_.longest_hold) : options_.hold;
      regained_.reset();
    }
    not_before_ = now + hold_;
  }

  void MayRegain(absl::Time now) {
    const Bytes missing = options_.most - target_;
    const Bytes possible = Lasting(now) - target_;
    if (now < not_before_ || missing == 0 || possible < std::min(options_.block, missing)) return;
    if (step_ == 0) step_ = std::max(options_.block, (missing + 3) / 4);
    target_ += std::min(step_, possible);
    reason_ = Reason::kRegained;
    regained_ = now;
    not_before_ = now + options_.step_interval;
  }

  Bytes Margin() const { return options_.reserve / 4; }

  Options options_;
  Bytes target_;
  Reason reason_ = Reason::kPlan;
  int64_t falls_ = 0;
  std::deque<Seen> seen_;  // of the last longest_hold

  absl::Duration stalls_;  // not yet leaked away
  absl::Time stalls_until_ = absl::InfinitePast();
  absl::Time stall_shed_ = absl::InfinitePast();

  absl::Duration hold_;
  absl::Time not_before_ = absl::InfinitePast();  // no step up before
  Bytes step_ = 0;                                // of this recovery; 0: not begun
  // When the last step up was taken, unless it was evicted again.
  std::optional<absl::Time> regained_;
};

}  // namespace lime
