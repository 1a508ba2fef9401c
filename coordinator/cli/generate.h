// Prompts continued over a plan that is installed: their text as it comes, and the figures of all.
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

#include "common/sampler.h"
#include "coordinator/cli/progress.h"
#include "coordinator/cli/score.h"
#include "coordinator/logic/request.h"
#include "coordinator/serving/serving.h"
#include "coordinator/text/tokenizer.h"
#include "daemon/profile/cpu_usage.h"
#include "nlohmann/json_fwd.hpp"
#include "planner/plan/prediction.h"

namespace lime::cli {

struct GenerateOptions {
  SamplingParams sampling;
  std::vector<int64_t> max_new_tokens;  // by prompt; the last one's holds for all others.  REQUIRES: at least one
  std::vector<int32_t> end_tokens;
  std::vector<std::string> stop_strings;
  bool hash_logits = false;
  bool keep_times = false;                      // token_times
  std::function<void()> on_first_token;         // called once, before its text. May be empty
  std::function<void(double share)> on_prompt;  // how much is computed of the prompts that begin together, until the first token. May be
                                                // empty
  const std::atomic<bool>* cancel = nullptr;
  // Text as it becomes certain, by prompt index. May be empty.
  std::function<void(size_t prompt, std::string_view text)> on_text;

  int64_t MaxNewTokens(size_t prompt) const { return max_new_tokens[std::min(prompt, max_new_tokens.size() - 1)]; }
};

struct Generated {
  std::vector<int32_t> token_ids;  // generated, an end token included
  std::string text;                // without special tokens, cut before a stop string
  int64_t prompt_tokens = 0;
  FinishReason finish = FinishReason::kNone;
  double ttft_ms = 0;               // from the start of generation to the first token
  double ms_per_token = 0;          // of the tokens after the first
  uint64_t logits_hash = 0;         // XXH3-64 of the logits of every generated position
  std::vector<double> token_times;  // when each was sampled: seconds of the steady clock, which on Linux all processes share
};

// What decoding took of this machine, where all of it happens here.
struct DecodeUse {
  CpuUsage cpu;
  Bytes disk_bytes = 0;          // that this process read
  Bytes streamed_bytes = 0;      // of them, weights
  double disk_busy_seconds = 0;  // streaming them
};

struct GenerateSummary {
  std::vector<Generated> results;
  double prefill_ms = 0;  // to the first token of all
  double decode_ms = 0;   // from then on, without pauses
  int64_t decode_steps = 0;
  int64_t decode_tokens = 0;
  double ms_per_step = 0;        // from a token of a prompt to its next one, on average, without pauses
  double step_deviation_ms = 0;  // standard deviation of that; 0 for fewer than two
  int64_t pauses = 0;            // steps that a recovery or a change of plans held up, which decode_* do not count
  double pause_ms = 0;           // of them together
  DecodeUse use;
  bool interrupted = false;
};

// Sends prompts to a Serving of its own, and hears of all of them.
//
// Thread: the caller's; what `options` are told comes on the Serving's, one call at a time, and holds up all prompts.
class Generator {
 public:
  using Clock = ServingClock;

  // `expected_prompt_seconds`: for a line on the terminal that says how long the prompts have taken so far; nothing: no such line.
  // REQUIRES: a plan is installed, and all but `serving` outlive this.
  Generator(Devices& devices, Serving::Options serving, const Tokenizer& tokenizer, const GenerateOptions& options,
            std::optional<double> expected_prompt_seconds);
  ~Generator();

  // Prompts count from 0: so they seed their random numbers.
  void Add(const std::vector<int32_t>& prompt);
  // Until all have ended or options.cancel is set. Errors as of Serving::Submit and Drain. Once.
  absl::StatusOr<GenerateSummary> Run();

  int64_t recoveries() const { return serving_ == nullptr ? 0 : serving_->recoveries(); }
  int64_t changes() const { return serving_ == nullptr ? 0 : serving_->changes(); }

 private:
  class Prompt;
  void TellPrompts();
  void TakeToken(Prompt& prompt, const ServedToken& token);
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
  Clock::time_point start_, last_;          // the latter: of the newest token of all
  Clock::time_point pause_end_;             // of the newest
  GenerateSummary summary_;                 // pauses so far
  int64_t breaks_ = 0;                      // recoveries and changes of plans so far
  double step_ms_ = 0, step_ms_squared_ = 0;
  int64_t steps_ = 0;
  std::unique_ptr<Serving> serving_;  // goes first
};

// The prediction beside what a generation took: {"predicted_ms", "measured_ms", "error", "cause", "why"}: error = predicted / measured - 1,
// null where too little was measured to tell; why is null unless they differ.
nlohmann::json ToJson(const PredictionReport& report);

}  // namespace lime::cli
