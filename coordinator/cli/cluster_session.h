// lime run --cluster: a plan installed on the devices of a cluster, and prompts run over it, whatever happens to the devices.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/cli/generate.h"
#include "coordinator/cli/held_plan.h"
#include "coordinator/cli/interrupt.h"
#include "coordinator/cli/plan_inputs.h"
#include "coordinator/cli/score.h"
#include "coordinator/cli/trace_timeline.h"
#include "coordinator/logic/cluster_difference.h"
#include "coordinator/rpc/cluster_client.h"
#include "coordinator/rpc/device_client.h"
#include "coordinator/rpc/trace_collector.h"
#include "coordinator/serving/cluster_run.h"
#include "coordinator/serving/plan_watcher.h"
#include "nlohmann/json.hpp"
#include "planner/kv_levels.h"

namespace lime::cli {

class ClusterSession {
 public:
  struct Options {
    std::string cluster;               // path of cluster.toml
    std::string model;                 // folder here: its config and headers, where nothing was planned before
    std::vector<std::string> without;  // devices that are left out
    bool push = false;                 // what the plan needs and devices lack is sent to them first
    std::string plan;                  // path of what `lime plan --out` wrote; empty: planned now
    int64_t context = 0;               // positions of the longest request
    int64_t sequences = 1;
    int64_t prompt_tokens = 0;  // of the longest prompt
    int64_t kv_tokens = 0;      // that KV is reserved for at first, where it is planned now; 0: all
    KvBounds kv;                // likewise
    // How a plan goes on as its KV grows; nothing: it does not, and requests have the KV that it begins with.
    std::optional<OnlineRule> online = OnlineRule::kLime;
    bool insecure = false;  // devices elsewhere may be talked to without keys
    Recovery::Options recovery;
    bool replan = true;  // go on with another plan where links or devices change and that pays; a plan that is given stays
    bool trace = false;  // devices record what they do, see Trace
    const std::atomic<bool>* cancel = nullptr;

    // --plan, --without, --push, --insecure.
    void AddTo(const CommandFlags& command);
  };
  // Asks the devices what they hold, reads or makes a plan for that, sends what is missing where it may, installs the plan with a progress
  // line.
  static absl::StatusOr<std::unique_ptr<ClusterSession>> Open(const Options& options);

  absl::StatusOr<GenerateSummary> Generate(const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options);
  // Asks the devices what they did, then unloads the plan.
  absl::Status Close();

  // Teacher-forced logits of sequences, one after another, with the companions beside each. A device that fails is the end of it.
  absl::StatusOr<Scores> Score(const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options);

  const Plan& plan() const { return client_->plan(); }
  // By the plan, or by the plan as the disks turned out while the prompt was computed.
  double predicted_ms_per_token() const { return Stated().predicted.ms_per_token; }
  // What streams as KV grows, the plan's own first; that alone where all KV is there from the start.
  const KvLevels& levels() const { return levels_; }

  // Fields common to every JSON answer: predicted_ms_per_token, peak_rss_bytes, devices, plan, load.
  nlohmann::json Describe() const;
  // The plan's prediction beside what the tokens took, and why the two part. Once the prompts have run.
  PredictionReport Compare(const GenerateSummary& summary) const;
  // A line for each device: what it took and what it waited for.
  std::string DeviceLines() const;
  // Read by all devices' disks while the prompts ran.
  Bytes disk_bytes() const;
  // What the devices did under the last plan, once the prompts have run. Once.  REQUIRES: Options::trace
  absl::StatusOr<MeasuredTimeline> TakeTrace();

 private:
  ClusterSession(const Options& options, ClusterHoldings holdings, PlanSource source)
      : options_(options), holdings_(std::move(holdings)), source_(source) {}
  absl::Status Install(const Plan& plan);
  void StartTrace(const ClusterClient::Options& cluster);
  std::unique_ptr<PlanWatcher> WatchPlan();
  absl::StatusOr<Plan> PlanAgain(const Recovery::Devices& devices) const;
  absl::StatusOr<PlanWatcher::Candidate> SearchAgain(const PlanWatcher::Search& search);  // on the watcher's thread
  Plan Stated() const;
  void CorrectPrediction(const Plan& plan);
  ClusterRun::Survival HowToSurvive(PlanWatcher* watcher) const;
  std::vector<Residency> WorkOutLevels(const Plan& plan);

  const Options options_;
  const ClusterHoldings holdings_;  // as they were at the start
  const PlanSource source_;
  const GracefulStop graceful_;  // devices are left free
  std::unique_ptr<ClusterClient> client_;
  Plan levels_of_, levels_before_of_;  // the plans that they were worked out for
  KvLevels levels_, levels_before_;
  std::map<std::string, std::string> addresses_;  // by device
  std::vector<DeviceStatistics> statistics_;      // by device of the plan; epoch -1 where it has no part
  std::unique_ptr<TraceCollector> collector_;     // where there is a trace
  std::vector<DeviceTrace> traces_;
  std::vector<std::shared_ptr<DeviceClient>> asked_;  // how fast they and their links are
  Plan first_;                                        // that was installed, and how long that took
  double install_seconds_ = 0;
  absl::Mutex search_mutex_;
  std::vector<Residency> levels_in_use_ ABSL_GUARDED_BY(search_mutex_);
  Plan found_ ABSL_GUARDED_BY(search_mutex_);  // by the last search
  KvLevels found_levels_ ABSL_GUARDED_BY(search_mutex_);
  std::shared_ptr<const PlanInputs> inputs_;  // as they were at first; null where they cannot be read
  mutable absl::Mutex corrected_mutex_;
  std::optional<Plan> corrected_ ABSL_GUARDED_BY(corrected_mutex_);  // a plan with the rates of its disks as they turned out
  int64_t recoveries_ = 0, changes_ = 0;
};

}  // namespace lime::cli
