// Watches the links of a run's plan, and searches for a better plan in the background where they have changed.
//
// Threads: one of its own asks the devices and searches; the owner asks Next often and tells OnPlan, neither of which waits.
#pragma once

#include <functional>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/logic/replanner.h"
#include "coordinator/rpc/cluster_run.h"

namespace lime::cli {

class PlanWatcher {
 public:
  struct Candidate {
    Plan plan;
    double current_ms = 0;  // a step of the plan in use
    double install_ms = 0;  // until the devices have loaded it, at most
    double replay_ms = 0;   // per position that is computed again, at most
  };
  struct Options {
    Replanner::Options when;
    absl::Duration look = absl::Seconds(1);
    std::function<Replanner::Links(const Plan& plan)> planned;  // rates that it is made with where nothing is measured
    // Both may wait.
    std::function<Replanner::Links(const Plan& plan)> measure;
    std::function<absl::StatusOr<Candidate>(const Plan& current, const Replanner::Links& links)> search;
    std::function<void(const std::string& sentence)> say;
  };
  PlanWatcher(Options options, const Plan& plan);
  ~PlanWatcher();  // waits for a search that is under way

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
  Replanner::Links rates_ ABSL_GUARDED_BY(mutex_);  // of the last search
  std::optional<Candidate> found_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace lime::cli
