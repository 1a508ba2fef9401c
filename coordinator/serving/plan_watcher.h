// Watches what a run's plan runs on, links, disks and computing, and searches for a better plan in the background where that has changed.
//
// Threads: one of its own asks the devices and searches; the owner asks Next often and tells OnPlan, neither of which waits.
#pragma once

#include <atomic>
#include <functional>
#include <limits>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/logic/replanner.h"
#include "coordinator/serving/cluster_run.h"
#include "planner/kv_levels.h"

namespace lime {

class PlanWatcher {
 public:
  struct Candidate {
    Plan plan;
    double ms_per_step = 0;  // on average over all that are left
    double current_ms = 0;   // likewise, of the plan in use
    KvLevels levels;         // of the plan, as KV grows
    // From the last token to the first by another plan, at most.
    std::optional<Pause> taking_over;                          // where KV is taken over; nothing: it cannot be
    Pause computing_again;                                     // where it is not
    Pause going_back;                                          // to the plan in use, where the other one turns out to be none
    int64_t most_pages = std::numeric_limits<int64_t>::max();  // of KV of a layer for which all this holds
    bool in_prompt = false;                                    // it also does where no request has made a token
  };
  struct Search {
    const Plan& current;
    const ClusterRates& made_with;  // of disks and computing; those not named: 1
    const ClusterRates& now;
    const OrderWriter::Left& left;
    const std::atomic<bool>& cancelled;  // nobody waits for the answer any more
  };
  struct Options {
    Replanner::Options when;
    absl::Duration look = absl::Seconds(1);
    std::function<ClusterRates(const Plan& plan)> planned;  // the rates that matter to it, as the cluster's files tell them
    // Both may wait. What is measured of disks and computing is in times what the plan says of them.
    std::function<ClusterRates(const Plan& plan, RateAges& ages)> measure;
    std::function<absl::StatusOr<Candidate>(const Search& search)> search;
    std::function<void(const std::string& sentence)> say;
  };
  PlanWatcher(Options options, const Plan& plan);
  ~PlanWatcher();  // cancels a search that is under way

  // The plan to change to, once for each that was found.
  std::optional<ClusterRun::Change> Next(const OrderWriter::Left& left);
  void OnPlan(const Plan& plan);

 private:
  void Watch();
  void Look();

  const Options options_;
  absl::Mutex mutex_;
  Plan plan_ ABSL_GUARDED_BY(mutex_);
  Replanner replanner_ ABSL_GUARDED_BY(mutex_);
  ClusterRates made_with_ ABSL_GUARDED_BY(mutex_);  // disks and computing that plan_ was made with
  ClusterRates rates_ ABSL_GUARDED_BY(mutex_);      // of the last search
  OrderWriter::Left left_ ABSL_GUARDED_BY(mutex_);  // when the owner asked last
  std::optional<Candidate> found_ ABSL_GUARDED_BY(mutex_);
  std::optional<Plan> proposed_ ABSL_GUARDED_BY(mutex_);  // by Next
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<bool> cancelled_ = false;  // the search under way
  std::thread thread_;
};

}  // namespace lime
