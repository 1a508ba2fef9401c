// The plan that answers requests, as answers, metrics and the page show it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "planner/plan/plan.h"

namespace lime {

struct ServedPlan {
  Plan plan;
  std::string numerics_id;  // of its devices, each name once, joined by +
  // Predicted time of a step with one micro-batch, with two, up to those of the plan. Few requests
  // fill few of them.
  std::vector<double> step_ms = {0};

  // Predicted, of each request if so many run: all of them get a token in a step.
  double MsPerToken(int64_t running) const {
    const int64_t microbatches = (running + plan.batch - 1) / plan.batch;
    return step_ms[static_cast<size_t>(std::clamp<int64_t>(microbatches, 1, std::ssize(step_ms)) - 1)];
  }
};

// Thread: any. A plan that is in use replaces the one before.
class PlanInUse {
 public:
  // Null until the first plan is installed.
  std::shared_ptr<const ServedPlan> get() const {
    const absl::MutexLock lock(&mutex_);
    return plan_;
  }
  void Set(ServedPlan plan) {
    auto next = std::make_shared<const ServedPlan>(std::move(plan));
    const absl::MutexLock lock(&mutex_);
    plan_.swap(next);
  }

 private:
  mutable absl::Mutex mutex_;
  std::shared_ptr<const ServedPlan> plan_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lime
