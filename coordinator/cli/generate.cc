#include "coordinator/cli/generate.h"

#include <cmath>
#include <utility>

#include "coordinator/cli/text_stream.h"

namespace lime::cli {

Generator::Generator(std::unique_ptr<ClusterRun> run, const Tokenizer& tokenizer, const GenerateOptions& options,
                     std::optional<double> expected_prompt_seconds)
    : run_(std::move(run)), tokenizer_(tokenizer), options_(options), expected_prompt_seconds_(expected_prompt_seconds) {}

Generator::~Generator() = default;

absl::Status Generator::Add(const std::vector<int32_t>& prompt) {
  Request request{.prompt = prompt, .max_new_tokens = options_.MaxNewTokens(streams_.size()), .end_tokens = options_.end_tokens};
  LIME_RETURN_IF_ERROR(run_->Add(std::move(request), {.params = options_.sampling, .hash_logits = options_.hash_logits}).status());
  streams_.push_back(std::make_unique<TextStream>(tokenizer_, options_, streams_.size(), prompt));
  return absl::OkStatus();
}

absl::StatusOr<GenerateSummary> Generator::Run() {
  start_ = Clock::now();
  if (!streams_.empty() && expected_prompt_seconds_) prompt_line_.emplace("Prompt", *expected_prompt_seconds_);
  if (options_.on_prompt) run_->OnPrompt(options_.on_prompt);
  LIME_RETURN_IF_ERROR(run_->Run([this](const ClusterRun::Token& token) { return TakeToken(token); }, options_.cancel));
  return Summary();
}

bool Generator::TakeToken(const ClusterRun::Token& token) {
  prompt_line_.reset();
  if (!std::exchange(has_token_, true) && options_.on_first_token) options_.on_first_token();
  TextStream& stream = *streams_[static_cast<size_t>(token.request)];
  stream.result().logits_hash = token.logits_hash;
  CountStep(stream);
  const FinishReason reason = stream.Take(token.token, token.reason);
  if (reason != FinishReason::kNone) stream.Close(reason, start_);
  return reason == FinishReason::kNone;
}

// The time since the stream's token before. A step that a recovery or a change of plans held up is a pause, of all streams at once.
void Generator::CountStep(TextStream& stream) {
  const Clock::time_point now = Clock::now();
  const int64_t breaks = run_->recoveries() + run_->changes();
  if (breaks != breaks_ && last_ != Clock::time_point()) {
    summary_.pause_ms += Milliseconds(now - last_);
    ++summary_.pauses;
    for (const auto& other : streams_) {
      const Generated& result = other->result();
      if (!result.token_ids.empty() && result.finish == FinishReason::kNone) other->LeaveOut(now - last_);
    }
    pause_end_ = now;
  } else if (!stream.result().token_ids.empty() && stream.last_token() >= pause_end_) {
    const double ms = Milliseconds(now - stream.last_token());
    step_ms_squared_ += ms * ms, step_ms_ += ms, ++steps_;
  }
  breaks_ = breaks, last_ = now;
}

// Of the steps of all streams.
double Generator::StepDeviationMs() const {
  if (steps_ < 2) return 0;
  const double n = static_cast<double>(steps_), mean = step_ms_ / n;
  return std::sqrt(std::max(0.0, (step_ms_squared_ - n * mean * mean) / (n - 1)));
}

// All tokens after the first of all, over the time from then on, without the pauses.
GenerateSummary Generator::Summary() {
  GenerateSummary summary = summary_;
  summary.interrupted = options_.cancel != nullptr && options_.cancel->load();
  summary.ms_per_step = steps_ > 0 ? step_ms_ / static_cast<double>(steps_) : 0;
  summary.step_deviation_ms = StepDeviationMs();
  Clock::time_point first = Clock::time_point::max(), last = start_;
  int64_t tokens = 0, longest = 0;
  for (const std::unique_ptr<TextStream>& stream : streams_) {
    if (stream->result().finish == FinishReason::kNone) stream->Close(FinishReason::kInterrupted, start_);
    const int64_t count = static_cast<int64_t>(stream->result().token_ids.size());
    if (count > 0) first = std::min(first, stream->first_token()), last = std::max(last, stream->last_token());
    tokens += count, longest = std::max(longest, count);
    summary.results.push_back(std::move(stream->result()));
  }
  if (tokens == 0) return summary;
  summary.prefill_ms = Milliseconds(first - start_);
  summary.decode_ms = std::max(0.0, Milliseconds(last - first) - summary.pause_ms);
  summary.decode_steps = std::max<int64_t>(0, longest - 1 - summary.pauses);
  summary.decode_tokens = std::max<int64_t>(0, tokens - static_cast<int64_t>(streams_.size()) - summary.pauses);
  return summary;
}

}  // namespace lime::cli
