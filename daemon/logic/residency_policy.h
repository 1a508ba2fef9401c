// How much may stay in memory while others on the machine need some of it: gives back at once, takes back slowly.
//
// Pure: samples and times in, a number of bytes out; which blocks those are is the owner's matter (highest index first).
// Thread: the owner's, under its lock.
//
//   room = available + resident - target    what will be available once the owner has done what it was told
//
//   room < reserve                the target falls: room becomes reserve + margin
//   stalls and no free memory     it falls by a quarter of what is resident
//   available < emergency         it falls to nothing
//   room >= reserve + margin + step at every moment of the last `hold`
//                                 it rises by that step, a quarter of what was given back, and then every `step_interval`
//   a step is given back soon     `hold` doubles: a neighbour that wants the same memory is not fought for it
//
// Invariants: 0 <= target <= most. Of room that no neighbour changes, a step that was taken is never given back.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string_view>

#include "absl/time/time.h"
#include "planner/base/bytes.h"

namespace lime {

// What was seen of the memory at one moment.
struct MemorySample {
  // Those who share a memory, and how they fare.
  struct Scope {
    absl::Duration stalled;  // some of them waited for memory so long since the sample before (PSI "some")
    double stall_avg10 = 0;  // the same as a share of the last 10 s, in percent; for people
    Bytes free = INT64_MAX;  // that can be taken without reclaiming anything
  };
  Bytes available = 0;  // that this process could still take without swapping: MemAvailable, within the limits of its cgroups
  Scope machine;
  Scope group;              // our cgroup, where it is counted apart
  std::string_view source;  // what caused the sample, "poll" or the name of an event; a constant
};

class ResidencyPolicy {
 public:
  struct Options {
    Bytes most = 0;       // what the plan keeps resident, within the user's budget
    Bytes reserve = 0;    // room left to others: PressureReserve() of planner/memory_budget.h
    Bytes block = 0;      // the largest block: taking back less is of no use
    Bytes emergency = 0;  // available below this: others are about to be killed; 0: never
    absl::Duration hold = absl::Seconds(2);
    absl::Duration step_interval = absl::Seconds(1);
    absl::Duration soon = absl::Seconds(10);         // and at least twice the hold: a shed within it doubles the hold
    absl::Duration longest_hold = absl::Seconds(6);  // with three steps more: everything is back in 10 s, whatever happened before
    absl::Duration stall = absl::Milliseconds(100);  // in a second: more of that is suffering
  };

  // Why the target is what it is.
  enum class Reason {
    kPlan,       // nothing has happened
    kRoom,       // room fell below the reserve
    kStall,      // tasks waited for memory while none was free
    kEmergency,  // next to nothing was available
    kRegained,   // the pressure has passed
  };

  explicit ResidencyPolicy(const Options& options) : options_(options), target_(options.most), hold_(options.hold) {}

  // What is to be resident from now on: shed down to it at once, or take back up to it. `resident` are the bytes whose memory is taken now.
  Bytes OnSample(const MemorySample& sample, Bytes resident, absl::Time now);

  // The plan has changed. What is above it is given back; what is missing comes back step by step.
  void SetMost(Bytes most);

  Bytes target() const { return target_; }
  Reason reason() const { return reason_; }
  absl::Duration hold() const { return hold_; }

 private:
  struct Seen {
    absl::Time when;
    Bytes possible = 0;  // what could be resident with nothing left to others; does not depend on the target
  };

  void Remember(Bytes possible, absl::Time now);
  Bytes Lasting(absl::Time now) const;
  bool Stalled(const MemorySample& sample, absl::Time now);
  void Shed(Bytes target, Reason reason, absl::Time now);
  void MayRegain(absl::Time now);
  Bytes Margin() const { return options_.reserve / 4; }

  Options options_;
  Bytes target_;
  Reason reason_ = Reason::kPlan;
  std::deque<Seen> seen_;  // of the last longest_hold

  absl::Duration stalls_;  // not yet leaked away
  absl::Time stalls_until_ = absl::InfinitePast();
  absl::Time stall_shed_ = absl::InfinitePast();

  absl::Duration hold_;
  absl::Time not_before_ = absl::InfinitePast();  // nothing is taken back
  Bytes step_ = 0;                                // of this recovery; 0: it has not begun
  std::optional<absl::Time> regained_;            // when the last step was taken that was not given back
};

}  // namespace lime
