#include "daemon/engine/residency_control.h"

#include "absl/time/clock.h"

namespace lime {

absl::StatusOr<std::unique_ptr<ResidencyControl>> ResidencyControl::Start(const ResidencyPolicy::Options& policy,
                                                                          PressureMonitor::Options watching,
                                                                          std::function<void()> on_change) {
  std::unique_ptr<ResidencyControl> control(new ResidencyControl(policy, std::move(on_change)));
  watching.reserve = policy.reserve;
  watching.on_sample = [self = control.get()](const MemorySample& sample) { self->OnSample(sample); };
  LIME_ASSIGN_OR_RETURN(control->monitor_, PressureMonitor::Start(std::move(watching)));
  return control;
}

void ResidencyControl::OnSample(const MemorySample& sample) {
  {
    absl::MutexLock lock(&mutex_);
    if (policy_.OnSample(sample, resident_, absl::Now()) == resident_) return;
    changed_.store(true, std::memory_order_relaxed);
  }
  if (on_change_) on_change_();
}

Bytes ResidencyControl::Target() {
  changed_.store(false, std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  return policy_.target();
}

void ResidencyControl::SetMost(Bytes most) {
  absl::MutexLock lock(&mutex_);
  policy_.SetMost(most);
}

void ResidencyControl::SetResident(Bytes resident) {
  absl::MutexLock lock(&mutex_);
  resident_ = resident;
}

}  // namespace lime
