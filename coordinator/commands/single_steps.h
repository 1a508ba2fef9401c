// Single steps of a plan in this process, for measurements.
#pragma once

#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/sessions/local_session.h"
#include "planner/base/status.h"

namespace lime::cli {

// Runs single steps of a plan in this process, one at a time. All ids are known and each slot has a
// sequence as long as the context, so nothing is sampled.
//
// This is not the work of Serving, which keeps the device busy: it orders steps ahead, moves to the
// next position with every token, and fills a step with chunks of other prompts. Here a limit is
// measured between two steps, while the device does nothing.
//
// Thread: the caller's. The plan's threads report when a step has ended.
class SingleSteps {
 public:
  explicit SingleSteps(LocalDevice& device) : device_(device) {}
  ~SingleSteps() { device_.Abandon(); }

  absl::Status Open(const std::vector<int32_t>& ids) {
    LIME_RETURN_IF_ERROR(device_.Open([this](int32_t /*device*/, const FromDevice& what) { OnNews(what); }));
    for (int32_t slot = 0; slot < device_.plan().sequences; ++slot)
      Send(AdmitOrder{.sequence = slot, .request = slot, .positions = std::ssize(ids), .prompt = ids});
    return absl::OkStatus();
  }

  absl::Status Step(const MicroBatch& batch) {
    Send(StepOrder{.microbatches = {batch}});
    const int64_t wanted = ++ordered_;
    absl::MutexLock lock(&mutex_);
    const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_ >= wanted || !health_.ok(); };
    while (!mutex_.AwaitWithTimeout(absl::Condition(&done), kLook)) {
      if (Interrupted()) return absl::CancelledError("interrupted");
    }
    return health_;
  }

 private:
  static constexpr absl::Duration kLook = absl::Milliseconds(100);  // how often a wait looks for Ctrl-C

  void Send(decltype(Order::what) what) { device_.Send({.order = {.number = next_++, .what = std::move(what)}, .sampling = {}}); }

  void OnNews(const FromDevice& what) {
    absl::MutexLock lock(&mutex_);
    const auto* const sampled = std::get_if<SampledNews>(&what);
    if (std::holds_alternative<StepEndedNews>(what) || (sampled != nullptr && sampled->ends_step)) ++ended_;
    if (const auto* const failed = std::get_if<FailedNews>(&what)) health_ = failed->status;
  }

  LocalDevice& device_;
  int64_t next_ = 0;     // orders sent
  int64_t ordered_ = 0;  // steps ordered
  absl::Mutex mutex_;
  int64_t ended_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lime::cli
