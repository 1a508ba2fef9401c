// Watches the links, disks and computing of a run's plan. If the speed of one changes, searches for
// a better plan in the background.
//
// Threads: a thread of its own asks the devices and searches. The owner calls Next often and OnPlan
// after a change of plans; neither of them waits.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/logic/replanner.h"
#include "coordinator/serving/cluster_run.h"
#include "planner/kv/kv_levels.h"

namespace lime {

class PlanWatcher {
 public:
  struct Candidate {
    Plan plan;
    double ms_per_step = 0;  // mean over the remaining steps
    double current_ms = 0;   // the same for the plan in use
    KvLevels levels;         // of the plan, as KV grows
    // Upper bounds on the time from the last token of one plan to the first token of another.
    std::optional<Pause> taking_over;  // if KV can be taken over
    Pause computing_again;             // if KV is computed again
    Pause going_back;                  // if devices refuse the plan and the one before continues
    // The fields above hold up to this number of KV pages per layer.
    int64_t most_pages = std::numeric_limits<int64_t>::max();
    bool in_prompt = false;  // also usable before the first token
  };
  struct Search {
    const Plan& current;
    const ClusterRates& made_with;  // rates of disks and computing; missing ones are 1
    const ClusterRates& now;
    const OrderWriter::Remaining& remaining;
    const std::atomic<bool>& cancelled;  // set when the result is not needed any more
  };
  struct Options {
    Replanner::Options when;
    absl::Duration look = absl::Seconds(1);
    std::function<absl::Time()> now = absl::Now;
    // The rates that a plan depends on, as the cluster's files give them.
    std::function<ClusterRates(const Plan& plan)> planned;
    // Both may block. Rates of disks and computing are relative to the rates in the plan.
    std::function<ClusterRates(const Plan& plan, RateAges& ages)> measure;
    std::function<absl::StatusOr<Candidate>(const Search& search)> search;
    std::function<void(const std::string& sentence)> say;
  };
  PlanWatcher(Options options, const Plan& plan);
  ~PlanWatcher();  // cancels a running search

  // The plan to change to. Returns each plan once.
  std::optional<ClusterRun::Change> Next(const OrderWriter::Remaining& remaining);
  void OnPlan(const Plan& plan);

  // Measures and may search, unless a result waits for Next. The thread calls this every `look`.
  void Look();

 private:
  void Watch();

  const Options options_;
  absl::Mutex mutex_;
  Plan plan_ ABSL_GUARDED_BY(mutex_);
  Replanner replanner_ ABSL_GUARDED_BY(mutex_);
  ClusterRates made_with_ ABSL_GUARDED_BY(mutex_);            // of disks and computing, used to make plan_
  ClusterRates rates_ ABSL_GUARDED_BY(mutex_);                // of the last search
  OrderWriter::Remaining remaining_ ABSL_GUARDED_BY(mutex_);  // when the owner last called Next
  std::optional<Candidate> found_ ABSL_GUARDED_BY(mutex_);
  std::optional<Plan> proposed_ ABSL_GUARDED_BY(mutex_);  // by Next
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> cancelled_ = false;  // stops the running search
  std::thread thread_;
};

}  // namespace lime
