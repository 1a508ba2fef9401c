// Waits for requests that were sent together, unless the user wants no more of them.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace lime::cli {

// Owner: who sends them. It outlives them.
class RequestEnds {
 public:
  // REQUIRES: requests > 0
  explicit RequestEnds(int64_t requests) : left_(requests) {}

  // One has ended.  Thread: the Serving's
  void Count() {
    if (--left_ == 0) all_.Notify();
  }
  // False where `cancel` was set before the last has ended.
  bool Wait(const std::atomic<bool>* cancel) const {
    constexpr absl::Duration kLook = absl::Milliseconds(100);  // how often a wait looks for Ctrl-C
    while (!all_.WaitForNotificationWithTimeout(kLook)) {
      if (cancel != nullptr && cancel->load(std::memory_order_relaxed)) return false;
    }
    return true;
  }

 private:
  int64_t left_;
  absl::Notification all_;
};

}  // namespace lime::cli
