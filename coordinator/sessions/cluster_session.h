// lime run --cluster: installs a plan on the devices of a cluster and runs prompts over it.
// Survives lost devices.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cli/interrupt.h"
#include "coordinator/cluster_view/cluster_watch.h"
#include "coordinator/logic/cluster_difference.h"
#include "coordinator/planning/held_plan.h"
#include "coordinator/planning/plan_inputs.h"
#include "coordinator/reports/trace_timeline.h"
#include "coordinator/rpc/cluster_client.h"
#include "coordinator/rpc/device_client.h"
#include "coordinator/rpc/trace_collector.h"
#include "coordinator/serving/cluster_run.h"
#include "coordinator/serving/plan_watcher.h"
#include "coordinator/sessions/generate.h"
#include "coordinator/sessions/score.h"
#include "nlohmann/json.hpp"
#include "planner/demand/route_curve.h"
#include "planner/kv/kv_levels.h"
#include "planner/snapshot_choice.h"

namespace lime::cli {

class ClusterSession {
 public:
  struct Options {
    std::string cluster;               // path of cluster.toml
    std::string model;                 // folder on this machine: its config and tensor headers
    std::vector<std::string> without;  // excluded devices
    bool push = false;                 // first sends the blocks that devices lack
    std::string plan;                  // file of `lime plan --out`; empty: plan now
    int64_t context = 0;               // positions of the longest request
    int64_t sequences = 1;
    SnapshotWish snapshots;     // if planned now
    int64_t prompt_tokens = 0;  // of the longest prompt
    int64_t kv_tokens = 0;      // KV at first, if planned now; 0: all
    KvBounds kv;                // if planned now
    RouteCurve routes;          // if planned now; empty: a generic curve
    // If planned now, as in PlanInputs.
    std::optional<int64_t> unit_places;
    std::optional<int32_t> ahead_places;
    SparseInputs sparse;  // without what devices hold
    // If planned now: other memory of the device with the head, such as masks. Counts as runtime of
    // each device, since the plan chooses which one it is.
    Bytes beside = 0;
    KvGrowth online = kLimeRule;
    bool insecure = false;  // allows devices on other machines without keys
    Recovery::Options recovery;
    bool replan = true;    // change to a better plan when rates change; a given plan stays
    bool trace = false;    // devices record spans, see DrainTrace
    bool watched = false;  // devices record spans while a ClusterWatch asks for them
    const std::atomic<bool>* cancel = nullptr;
    std::function<void(Bytes done, Bytes total)> progress = nullptr;  // of loading, beside the line.  Thread: any

    // --plan, --without, --push, --insecure.
    void AddTo(const CommandFlags& command);
  };
  // Asks the devices which blocks they hold, reads or makes a plan, sends missing blocks if
  // allowed, and installs the plan under a progress line.
  static absl::StatusOr<std::unique_ptr<ClusterSession>> Open(const Options& options);

  absl::StatusOr<GenerateSummary> Generate(const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options);
  // Asks the devices for statistics, then unloads the plan.
  absl::Status Close();

  // For callers with a Serving of their own over devices(): it survives lost devices and changes
  // plans as Generate does. `in_use` gets every plan that replaces another one. Call once, and Close
  // after the Serving.  REQUIRES: this object outlives it
  Serving::Options HowToServe(std::function<void(const Plan& plan)> in_use = nullptr);
  Devices& devices() { return *client_; }
  // All devices of the cluster's file but the excluded ones, for a ClusterWatch.  REQUIRES:
  // Options::watched
  const ClusterWatch::Cluster& Watched() const { return watched_; }

  // Teacher-forced logits of sequences, one after another, with all companions beside each. Ends
  // with an error when a device fails.
  absl::StatusOr<Scores> Score(const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options);

  const Plan& plan() const { return client_->plan(); }
  // The prediction of the plan, corrected with the disk rates seen while the prompt was computed.
  double predicted_ms_per_token() const { return Stated().predicted.ms_per_token; }

  // Fields common to every JSON answer: predicted_ms_per_token, peak_rss_bytes, devices, plan,
  // load.
  nlohmann::json Describe() const;
  // Compares the plan's prediction with the measured time per token, and explains the difference.
  // Call after the prompts have run.
  PredictionReport Compare(const GenerateSummary& summary) const;
  // One line per device: its work and its waits.
  std::string DeviceLines() const;
  // Bytes that the disks of all devices read while the prompts ran.
  Bytes disk_bytes() const;
  // The trace of the last plan. Call once, after the prompts have run.  REQUIRES: Options::trace
  absl::StatusOr<MeasuredTimeline> DrainTrace();

 private:
  ClusterSession(const Options& options, ClusterHoldings holdings, PlanSource source)
      : options_(options), holdings_(std::move(holdings)), source_(source) {}
  absl::Status Install(const Plan& plan);
  Devices::InstallOptions HowToInstall() const;
  void StartTrace(const ClusterClient::Options& cluster);
  void DescribeForWatch(const std::string& name, const ClusterClient::Options& cluster);
  std::unique_ptr<PlanWatcher> WatchPlan();
  // Runs on the watcher's thread.
  absl::StatusOr<PlanWatcher::Candidate> SearchAgain(const PlanWatcher::Search& search);
  Plan Stated() const;
  std::string SparsityWhy() const;
  void CorrectPrediction(const Plan& plan);
  ClusterRun::Survival HowToSurvive(std::function<void(const Plan& plan)> in_use) const;
  ClusterRun::LevelsOf LevelsForServing();
  std::vector<Residency> WorkOutLevels(const Plan& plan, const std::atomic<bool>* cancelled);

  Options options_;
  const ClusterHoldings holdings_;  // at the start
  const PlanSource source_;
  std::string sparsity_why_;     // HeldPlan, of the first plan
  const GracefulStop graceful_;  // unloads the plan from devices on Ctrl-C
  std::unique_ptr<ClusterClient> client_;
  std::vector<DeviceStatistics> statistics_;   // by device of the plan; epoch -1: no part
  std::unique_ptr<TraceCollector> collector_;  // if there is a trace
  std::vector<DeviceTrace> traces_;
  ClusterWatch::Cluster watched_;                               // if it may be watched
  std::map<std::string, std::shared_ptr<DeviceClient>> asked_;  // by name, for rates of devices and links
  Plan first_;                                                  // installed first; it took install_seconds_
  double install_seconds_ = 0;
  mutable absl::Mutex search_mutex_;
  Plan levels_of_ ABSL_GUARDED_BY(search_mutex_), levels_before_of_ ABSL_GUARDED_BY(search_mutex_);
  // The levels of these two plans. The level of the plan itself is first, and the only one if all
  // KV is reserved from the start.
  KvLevels levels_ ABSL_GUARDED_BY(search_mutex_), levels_before_ ABSL_GUARDED_BY(search_mutex_);
  std::vector<Residency> levels_in_use_ ABSL_GUARDED_BY(search_mutex_);
  Plan found_ ABSL_GUARDED_BY(search_mutex_);  // by the last search
  KvLevels found_levels_ ABSL_GUARDED_BY(search_mutex_);
  std::shared_ptr<const PlanInputs> inputs_;  // of the first plan; null: unreadable
  mutable absl::Mutex corrected_mutex_;
  std::optional<Plan> corrected_ ABSL_GUARDED_BY(corrected_mutex_);  // with the seen disk rates
  int64_t recoveries_ = 0, changes_ = 0;
  std::unique_ptr<PlanWatcher> watcher_;  // until Close; destroyed first
};

}  // namespace lime::cli
