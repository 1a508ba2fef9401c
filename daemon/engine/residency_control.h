// Carries the pressure of the machine's memory to the computation: how many bytes of blocks should be resident now.
//
// Thread: the monitor's thread feeds the policy; everything here is called by the compute thread. One atomic flag is all that a step looks
// at while nothing happens.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "daemon/logic/residency_policy.h"
#include "daemon/pressure/pressure_monitor.h"

namespace lime {

class ResidencyControl {
 public:
  // `on_change`, which may be empty, is called by the monitor's thread, under no lock, whenever changed() has become true.
  static absl::StatusOr<std::unique_ptr<ResidencyControl>> Start(const ResidencyPolicy::Options& policy, PressureMonitor::Options watching,
                                                                 std::function<void()> on_change = {});

  // Whether the target may have changed since Target() was asked.
  bool changed() const { return changed_.load(std::memory_order_relaxed); }
  // Bytes that should be resident.
  Bytes Target();
  // The plan has changed: at most so much may be resident.
  void SetMost(Bytes most);
  // Tells what is resident.
  void SetResident(Bytes resident);

 private:
  ResidencyControl(const ResidencyPolicy::Options& policy, std::function<void()> on_change)
      : on_change_(std::move(on_change)), policy_(policy), resident_(policy.most) {}
  void OnSample(const MemorySample& sample);

  const std::function<void()> on_change_;
  std::atomic<bool> changed_ = false;
  absl::Mutex mutex_;
  ResidencyPolicy policy_ ABSL_GUARDED_BY(mutex_);
  Bytes resident_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<PressureMonitor> monitor_;  // last: its thread ends before what it calls goes
};

}  // namespace lime
