// Continues prompts over an installed plan: passes on text as it is generated, and sums up the
// times.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/sampling/sampler.h"
#include "coordinator/logic/request.h"
#include "coordinator/reports/progress.h"
#include "coordinator/serving/serving.h"
#include "coordinator/sessions/score.h"
#include "coordinator/text/tokenizer.h"
#include "daemon/profile/cpu_usage.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/plan/prediction.h"
#include "planner/unit_places.h"

namespace lime::cli {

struct GenerateOptions {
  SamplingParams sampling;
  // By prompt; the last one holds for the rest.  REQUIRES: not empty.
  std::vector<int64_t> max_new_tokens;
  std::vector<int32_t> end_tokens;
  std::vector<std::string> stop_strings;
  bool hash_logits = false;
  bool record_times = false;             // record token_times
  std::function<void()> on_first_token;  // called once, before its text; may be empty
  // Computed share of the prompts that begin together, until the first token. May be empty.
  std::function<void(double share)> on_prompt;
  const std::atomic<bool>* cancel = nullptr;
  // Text as soon as it is certain, by prompt index. May be empty.
  std::function<void(size_t prompt, std::string_view text)> on_text;

  int64_t MaxNewTokens(size_t prompt) const { return max_new_tokens[std::min(prompt, max_new_tokens.size() - 1)]; }
};

struct Generated {
  std::vector<int32_t> token_ids;  // generated ids, with the end token
  std::string text;                // without special tokens, cut before a stop string
  int64_t prompt_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  double ttft_ms = 0;        // from the start of generation to the first token
  double ms_per_token = 0;   // of the tokens after the first
  uint64_t logits_hash = 0;  // XXH3-64 of the logits of every generated position
  // When each token was sampled, in seconds of the steady clock, which all processes share on
  // Linux.
  std::vector<double> token_times;
};

// The resources that decoding used on this machine, if all of it runs here.
struct DecodeUse {
  CpuUsage cpu;
  Bytes disk_bytes = 0;          // read by this process
  Bytes streamed_bytes = 0;      // weights among them
  double disk_busy_seconds = 0;  // time of reading them
};

struct GenerateSummary {
  std::vector<Generated> results;
  double prefill_ms = 0;  // to the first token of any prompt
  double decode_ms = 0;   // from then on, without pauses
  int64_t decode_steps = 0;
  int64_t decode_tokens = 0;
  double ms_per_step = 0;        // mean time between tokens of a prompt, without pauses
  double step_deviation_ms = 0;  // its standard deviation; 0 for fewer than two
  int64_t pauses = 0;            // steps that a recovery or a new plan delayed; not in decode_*
  double pause_ms = 0;           // sum of these
  DecodeUse use;
  bool interrupted = false;
};

// Sends prompts to a Serving of its own and collects the results.
//
// Thread: the caller's. Callbacks of `options` run on the thread of Serving, one at a time, and
// delay all prompts.
class Generator {
 public:
  using Clock = ServingClock;

  // `expected_prompt_seconds`: for a terminal line with the time of the prompts so far; nullopt: no
  // line.
  // REQUIRES: a plan is installed, and all arguments but `serving` outlive this object.
  Generator(Devices& devices, Serving::Options serving, const Tokenizer& tokenizer, const GenerateOptions& options,
            std::optional<double> expected_prompt_seconds);
  ~Generator();

  // Prompts count from 0. The number seeds the prompt's random numbers.
  void Add(const std::vector<int32_t>& prompt);
  // Runs until all have ended or options.cancel is set. Errors: see Serving::Submit and Drain. Call
  // once.
  absl::StatusOr<GenerateSummary> Run();

  int64_t recoveries() const { return serving_ == nullptr ? 0 : serving_->recoveries(); }
  int64_t changes() const { return serving_ == nullptr ? 0 : serving_->changes(); }

 private:
  class Prompt;
  void ReportPrompts();
  void OnToken(Prompt& prompt, const ServedToken& token);
  void CountStep(Prompt& prompt, Clock::time_point now);
  GenerateSummary Summary();
  double StepDeviationMs() const;

  Devices& devices_;
  Serving::Options serving_options_;
  const Tokenizer& tokenizer_;
  const GenerateOptions& options_;
  const std::optional<double> expected_prompt_seconds_;
  const int64_t slots_;
  std::vector<Submission> submissions_;
  std::vector<std::shared_ptr<Prompt>> prompts_;
  std::optional<RequestEnds> ends_;
  absl::Status failure_;  // the first
  bool has_token_ = false;
  std::optional<ElapsedLine> prompt_line_;  // until the first token
  Clock::time_point start_, last_;          // last_: the newest token of any prompt
  Clock::time_point pause_end_;             // of the newest pause
  GenerateSummary summary_;                 // pauses so far
  int64_t breaks_ = 0;                      // recoveries and changes of plans so far
  double step_ms_ = 0, step_ms_squared_ = 0;
  int64_t steps_ = 0;
  std::unique_ptr<Serving> serving_;  // destroyed first
};

// A prediction and the measured time: {"predicted_ms", "measured_ms", "error", "cause", "why"}.
// error = predicted / measured - 1; null if too little was measured. why is null unless they
// differ.
nlohmann::json ToJson(const PredictionReport& report);

// The experts on demand of a device, expected and measured. The measured share is of decode steps;
// null: none has chosen experts.
nlohmann::json ExpertsJson(const UnitUse& units, const DeviceStatistics& statistics);

// The fields that every device has, in a cluster or as this process.
nlohmann::json DeviceJson(const PlanDevice& device, const InstalledPlan& installed, const DeviceStatistics& statistics);

}  // namespace lime::cli
