// lime run without a cluster: makes a plan for this process, installs it here, and runs prompts
// over it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/cli/command.h"
#include "coordinator/cluster_view/cluster_watch.h"
#include "coordinator/local/local_device.h"
#include "coordinator/local/local_plan.h"
#include "coordinator/planning/calibrations.h"
#include "coordinator/reports/trace_timeline.h"
#include "coordinator/sessions/generate.h"
#include "coordinator/sessions/score.h"
#include "daemon/logic/route_recorder.h"
#include "daemon/weights/checkpoint.h"
#include "nlohmann/json.hpp"
#include "planner/kv/kv_levels.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/prediction.h"

namespace lime::cli {

inline constexpr int64_t kMaxBatch = 16;  // sequences in one step of one process

struct LocalOpening {
  bool trace = false;                                     // records spans, see DrainTrace
  bool watched = false;                                   // records spans while a ClusterWatch asks for them
  std::shared_ptr<RouteRecorder> routes = nullptr;        // receives the experts that layers choose
  std::function<void(Bytes done, Bytes total)> progress;  // of loading, beside the line.  Thread: any
  bool says_predictor = true;                             // false: whoever opens it measures the predictor, and says so
};

class LocalSession {
 public:
  // Makes the plan for the workload of `request`, whose other fields come from `flags`, and loads
  // the weights under a progress line. Reserves `kv_tokens` at first with --kv grow only. If
  // loading shows another disk rate than planned, states a new prediction. With `routes` a wrong call
  // if no experts are on demand, since nobody sees their choices then.
  static absl::StatusOr<std::unique_ptr<LocalSession>> Open(const ModelFlags& flags, const LocalPlanRequest& request,
                                                            const LocalOpening& options = {});

  // Corrects the prediction with the weights that streamed until the first token.
  absl::StatusOr<GenerateSummary> Generate(const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options);
  absl::StatusOr<Scores> Score(const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options);
  // For callers that send orders themselves.
  LocalDevice& device() { return *device_; }
  // For callers with a Serving of their own over device().  REQUIRES: this object outlives it
  Serving::Options HowToServe() const;
  // This process, for a ClusterWatch.  REQUIRES: this object outlives what asks
  ClusterWatch::Cluster Watched() const;

  const ModelSpec& spec() const { return spec_; }
  const Plan& plan() const { return device_->plan(); }
  // How the weights were loaded.
  LoadSummary load() const { return load_; }
  std::string numerics_id() const { return device_->installed().front().numerics_id; }
  int threads() const { return threads_; }  // compute threads
  bool streams() const { return summary_.streams(); }
  DeviceStatistics statistics() const { return device_->Statistics(0).value_or(DeviceStatistics{}); }

  // The latest prediction: before loading, after loading, or after the prompt. Each uses the
  // measurements so far.
  double predicted_ms_per_token() const { return predicted_ms_; }
  double planned_ms_per_token() const { return summary_.ms_per_step; }  // before loading

  // Fields common to every JSON answer: predicted_ms_per_token, peak_rss_bytes, devices, load,
  // memory, streaming.
  nlohmann::json Describe() const;
  // "loaded 2.31 GiB in 1.2 s (…)".
  std::string LoadLine() const;
  // "memory peak 2.60 GiB: weights …", and if weights stream, a second line: "streamed 1.20 GiB a
  // step, …".
  std::string MemoryLine() const;
  // Compares the prediction with the measured decode time, and explains the difference. If no
  // counter explains it and there is no memory budget, measures for a moment whether memory is
  // slower than before.
  PredictionReport Compare(const GenerateSummary& summary) const;
  // The recorded spans. Unloads the plan first, because the trace is written in the memory that the
  // model used. Call once, as the last call.
  // REQUIRES: the session was opened with `trace`
  absl::StatusOr<MeasuredTimeline> DrainTrace();

 private:
  LocalSession(const ModelFlags& flags, ModelSpec spec, const LocalOpening& options);
  absl::Status MakePlan(const Checkpoint& checkpoint, LocalPlanRequest request);
  absl::Status CheckRoutes() const;
  std::string SparsityWhy() const;
  absl::Status Install(const LocalPlanRequest& request, const LocalOpening& options);
  void ApplyDiskRate(const SteadyReads& reads);
  void CorrectPrediction();

  const ModelFlags flags_;
  const ModelSpec spec_;
  const int64_t trace_spans_;  // capacity; 0: no trace
  const bool says_predictor_;
  const bool watched_;
  const std::shared_ptr<RouteRecorder> routes_;  // null: no record
  DeviceProfile profile_;                        // known before this run
  LocalPlan local_;                              // as it was made
  SparseModel sparse_;                           // what its plan may be sparse with
  LocalPlanSummary summary_;
  KvLevels levels_;  // streamed parts, and KV on the disk, as KV grows
  int threads_ = 0;
  bool has_budget_ = false;  // of memory, from the user
  LoadSummary load_;
  Bytes read_before_ = 0;  // bytes that loading read
  std::unique_ptr<LocalDevice> device_;
  SteadyReads seen_;  // of the disk, by this process; no bytes: rate unknown
  double predicted_ms_ = 0;
};

}  // namespace lime::cli
