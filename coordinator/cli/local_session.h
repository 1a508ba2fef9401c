// lime run without a cluster: a plan for this process alone, installed here, and prompts run over it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/cli/command.h"
#include "coordinator/cli/generate.h"
#include "coordinator/cli/score.h"
#include "coordinator/cli/trace_timeline.h"
#include "coordinator/local/local_device.h"
#include "coordinator/local/local_plan.h"
#include "nlohmann/json.hpp"
#include "planner/kv_levels.h"
#include "planner/plan/device_profile.h"
#include "planner/plan/prediction.h"

namespace lime::cli {

inline constexpr int64_t kMaxBatch = 16;  // sequences in one step of one process

class LocalSession {
 public:
  // What the plan is made for.
  struct Shape {
    int64_t context = 0;             // positions of each sequence
    int64_t kv_tokens = 0;           // of them, those that --kv grow reserves KV for at first; 0: all, as without it
    int64_t expected_positions = 0;  // of them, those of a sequence on average; 0: all
    int64_t sequences = 1;           // at a time
    int64_t prompt_tokens = 1;       // of the longest prompt
    int64_t all_prompt_tokens = 0;   // of all of them; 0: of one
    int64_t new_tokens = 0;          // steps of decoding
    int64_t logit_rows = 0;          // of a chunk of a prompt, rows that may ask for logits
    bool trace = false;
  };

  // Plans, and loads with a progress line. Where loading shows that the disk is not what was planned with, says what is predicted now.
  static absl::StatusOr<std::unique_ptr<LocalSession>> Open(const ModelFlags& flags, const Shape& shape);

  // Takes what streamed until the first token into the prediction.
  absl::StatusOr<GenerateSummary> Generate(const Tokenizer& tokenizer, const std::vector<std::vector<int32_t>>& prompts,
                                           const GenerateOptions& options);
  absl::StatusOr<Scores> Score(const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options);
  // For who gives orders of its own.
  LocalDevice& device() { return *device_; }

  const ModelSpec& spec() const { return spec_; }
  const Plan& plan() const { return device_->plan(); }
  // How the weights came into memory.
  LoadSummary load() const { return load_; }
  std::string numerics_id() const { return device_->installed().front().numerics_id; }
  int threads() const { return threads_; }  // that compute
  bool streams() const { return summary_.streams(); }
  DeviceStatistics statistics() const { return device_->Statistics(0).value_or(DeviceStatistics{}); }

  // As stated last: before anything was loaded, after that, or after the prompt, each with what the run had seen by then.
  double predicted_ms_per_token() const { return predicted_ms_; }
  double planned_ms_per_token() const { return summary_.ms_per_step; }  // the first of these

  // Fields common to every JSON answer: predicted_ms_per_token, peak_rss_bytes, devices, load, memory, streaming.
  nlohmann::json Describe() const;
  // "loaded 2.31 GiB in 1.2 s (…)".
  std::string LoadLine() const;
  // "memory peak 2.60 GiB: weights …", and where something streams a further line: "streamed 1.20 GiB a step, …".
  std::string MemoryLine() const;
  // The prediction beside what decoding took, and why the two part. Where nothing that was counted explains the difference, and there is no
  // budget to keep, reads memory for a moment to see whether it is slower than it was.
  PredictionReport Compare(const GenerateSummary& summary) const;
  // What was done when. The plan is unloaded first: a trace is written in the room that the model had. Once, as the last call.
  // REQUIRES: Shape::trace
  absl::StatusOr<MeasuredTimeline> TakeTrace();

 private:
  LocalSession(const ModelFlags& flags, ModelSpec spec) : flags_(flags), spec_(std::move(spec)) {}
  absl::Status MakePlan(const Shape& shape);
  absl::Status Install(const Shape& shape);
  Serving::Options HowToServe() const;
  void TakeDiskRate(const SteadyReads& reads);
  void CorrectPrediction();

  const ModelFlags flags_;
  const ModelSpec spec_;
  DeviceProfile profile_;  // what was known of this machine before
  LocalPlan local_;        // as it was made
  LocalPlanSummary summary_;
  KvLevels levels_;  // what streams, and goes to the disk, as KV grows
  int threads_ = 0;
  bool has_budget_ = false;  // of memory, given by the user
  LoadSummary load_;
  Bytes read_before_ = 0;  // steps: by loading
  std::unique_ptr<LocalDevice> device_;
  SteadyReads seen_;  // of the disk, by this process; no bytes: nothing that tells its rate
  double predicted_ms_ = 0;
};

}  // namespace lime::cli
