// What the commands that compute share: the files of a model, and an engine opened over it with its prediction and its summary lines.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "coordinator/cli/command.h"
#include "coordinator/text/tokenizer.h"
#include "daemon/engine/engine.h"
#include "nlohmann/json.hpp"
#include "planner/plan/device_profile.h"
#include "planner/plan/prediction.h"

namespace lime::cli {

// Tokens of a prompt computed in one step where the call does not say: enough to reuse every weight hundreds of times.
inline constexpr int64_t kDefaultChunk = 512;

inline constexpr int64_t kMaxBatch = 16;  // sequences in one step of one process

// The small files of a checkpoint folder.
struct ModelFiles {
  ModelSpec spec;
  std::unique_ptr<Tokenizer> tokenizer;  // null where no text is read or written
  std::vector<int32_t> end_tokens;       // of generation_config.json, else of config.json, else the tokenizer's

  static absl::StatusOr<ModelFiles> Open(const std::string& dir, bool with_text = true);

  // Ids of a prompt, BOS in front as the tokenizer says; an empty prompt is BOS alone.
  absl::StatusOr<std::vector<int32_t>> EncodePrompt(std::string_view text) const;
  std::optional<int32_t> bos() const;
};

// That the weights of `dir` make its model. Says on stderr what of them it does not use although the result may depend on it.
absl::Status CheckWeights(const std::string& dir);

class ModelSession {
 public:
  struct Shape {
    int64_t max_rows = 0;  // 0: chosen for `work`
    Workload work;
    int64_t max_logit_rows = 0;
    int64_t max_sequences = 0;
    int64_t context = 0;
    int64_t planned_steps = 1;       // how often the weights will be read
    int64_t expected_positions = 0;  // for the prediction: KV read per step and sequence
    TraceRing* trace = nullptr;      // outlives the session
  };

  // Loads with a progress line. Where loading shows that the disk is not what was planned with, says what is predicted now.
  static absl::StatusOr<std::unique_ptr<ModelSession>> Open(const ModelFlags& flags, const Shape& shape);

  Engine& engine() { return *engine_; }
  const DeviceProfile& profile() const { return profile_; }
  int64_t threads() const { return threads_; }     // that compute
  bool has_budget() const { return has_budget_; }  // of memory, given by the user
  // As stated last: before anything was loaded, after that, or after the prompt, each with what the run had seen by then.
  double predicted_ms_per_token() const { return predicted_ms_; }
  double planned_ms_per_token() const { return planned_ms_; }  // the first of these
  double disk_rate() const;                                    // bytes per second that it is made with; 0: nothing streams
  RateSource disk_rate_source() const;
  RateSource memory_rate_source() const { return profile_given_ || profile_.flops > 0 ? RateSource::kProfile : RateSource::kSeen; }
  // Takes what streamed so far into the prediction.
  void CorrectPrediction();

  // Fields common to every JSON answer: predicted_ms_per_token, peak_rss_bytes, devices, load.
  nlohmann::json Describe() const;
  // "loaded 2.31 GiB in 1.2 s (…)".
  std::string LoadLine() const;
  // "memory peak 2.60 GiB: weights …".
  std::string MemoryLine() const;

 private:
  DeviceProfile profile_;  // what was known of this machine before
  std::unique_ptr<Engine> engine_;
  int64_t threads_ = 0;
  bool has_budget_ = false;
  bool profile_given_ = false;
  Shape shape_;
  double planned_ms_ = 0, predicted_ms_ = 0;
};

}  // namespace lime::cli
