#include "daemon/logic/residency_policy.h"

#include <algorithm>

namespace lime {

Bytes ResidencyPolicy::OnSample(const MemorySample& sample, Bytes resident, absl::Time now) {
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

void ResidencyPolicy::SetMost(Bytes most) {
  options_.most = most;
  target_ = std::min(target_, most);
  step_ = 0;
}

void ResidencyPolicy::Remember(Bytes possible, absl::Time now) {
  seen_.push_back({now, possible});
  while (seen_.front().when < now - options_.longest_hold) seen_.pop_front();
}

// What could have been resident at every moment of the last `hold_`, with reserve and margin kept.
Bytes ResidencyPolicy::Lasting(absl::Time now) const {
  Bytes least = seen_.back().possible;
  for (const Seen& seen : seen_) {
    if (seen.when >= now - hold_) least = std::min(least, seen.possible);
  }
  return std::min(options_.most, least - options_.reserve - Margin());
}

// Stalls while memory is free are not ours to mend: somebody suffers inside a limit of his own. They leak away at the rate that is borne.
// After a shed, what was given back gets a second to help.
bool ResidencyPolicy::Stalled(const MemorySample& sample, absl::Time now) {
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

// Sheds of one shortage count as one: only the first after a step back tells whether that step was too early.
void ResidencyPolicy::Shed(Bytes target, Reason reason, absl::Time now) {
  target_ = std::clamp<Bytes>(target, 0, target_);
  reason_ = reason;
  step_ = 0;
  if (regained_) {
    const bool soon = now - *regained_ < std::max(options_.soon, 2 * hold_);
    hold_ = soon ? std::min(2 * hold_, options_.longest_hold) : options_.hold;
    regained_.reset();
  }
  not_before_ = now + hold_;
}

void ResidencyPolicy::MayRegain(absl::Time now) {
  const Bytes missing = options_.most - target_;
  const Bytes possible = Lasting(now) - target_;
  if (now < not_before_ || missing == 0 || possible < std::min(options_.block, missing)) return;
  if (step_ == 0) step_ = std::max(options_.block, (missing + 3) / 4);
  target_ += std::min(step_, possible);
  reason_ = Reason::kRegained;
  regained_ = now;
  not_before_ = now + options_.step_interval;
}

}  // namespace lime
