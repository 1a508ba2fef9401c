#include "coordinator/sessions/generate.h"

#include <cmath>
#include <utility>

#include "nlohmann/json.hpp"

namespace lime::cli {
namespace {

// Bytes reserved for the text of a prompt, so that it does not grow while tokens come: more than
// the mean of a tokenizer.
constexpr int64_t kBytesPerToken = 16;
constexpr int64_t kMaxReservedBytes = 16 * kMiB;

double Milliseconds(Generator::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace

// The state of one prompt. Its memory is reserved ahead, so its tokens allocate nothing.
class Generator::Prompt final : public RequestSink {
 public:
  Prompt(Generator& generator, size_t index, int64_t prompt_tokens) : generator_(generator), index_(index) {
    const int64_t most = options().MaxNewTokens(index);
    result.prompt_tokens = prompt_tokens;
    result.token_ids.reserve(static_cast<size_t>(most));
    if (options().record_times) result.token_times.reserve(static_cast<size_t>(most));
    result.text.reserve(static_cast<size_t>(std::min(most * kBytesPerToken, kMaxReservedBytes)));
  }

  void OnPrompt(double computed) override {
    share = computed;
    generator_.ReportPrompts();
  }
  void OnToken(const ServedToken& token) override {
    generator_.OnToken(*this, token);
    if (result.token_ids.empty()) first_token = token.at;
    last_token = token.at;
    result.logits_hash = token.logits_hash;
    result.token_ids.push_back(token.token);
    if (options().record_times) result.token_times.push_back(std::chrono::duration<double>(token.at.time_since_epoch()).count());
    Deliver(token.text);
  }
  void OnEnd(const RequestEnd& end) override {
    Deliver(end.text);
    result.finish = end.reason;
    generator_.failure_.Update(end.status);
    if (!result.token_ids.empty()) result.ttft_ms = Milliseconds(first_token - generator_.start_);
    const int64_t later = std::ssize(result.token_ids) - 1 - steps_left_out_;
    if (later > 0) result.ms_per_token = Milliseconds(last_token - first_token - left_out_) / static_cast<double>(later);
    generator_.ends_->Count();
  }
  // Excludes the step that ends with the next token from ms_per_token: a recovery or a change of
  // plans delayed it.
  void Exclude(Clock::duration step) {
    if (!result.token_ids.empty() && result.finish == FinishReason::kNone) left_out_ += step, ++steps_left_out_;
  }

  Generated result;
  double share = 0;  // computed share of the prompt
  Clock::time_point first_token, last_token;

 private:
  const GenerateOptions& options() const { return generator_.options_; }
  void Deliver(std::string_view text) {
    if (text.empty()) return;
    result.text.append(text);
    if (options().on_text) options().on_text(index_, text);
  }

  Generator& generator_;
  const size_t index_;
  Clock::duration left_out_ = {};
  int64_t steps_left_out_ = 0;
};

Generator::Generator(Devices& devices, Serving::Options serving, const Tokenizer& tokenizer, const GenerateOptions& options,
                     std::optional<double> expected_prompt_seconds)
    : devices_(devices),
      serving_options_(std::move(serving)),
      tokenizer_(tokenizer),
      options_(options),
      expected_prompt_seconds_(expected_prompt_seconds),
      slots_(devices.plan().sequences) {}

Generator::~Generator() = default;

void Generator::Add(const std::vector<int32_t>& prompt) {
  const size_t index = prompts_.size();
  prompts_.push_back(std::make_shared<Prompt>(*this, index, std::ssize(prompt)));
  submissions_.push_back({{.prompt = prompt,
                           .max_new_tokens = options_.MaxNewTokens(index),
                           .end_tokens = options_.end_tokens,
                           .stop_strings = options_.stop_strings,
                           .sampling = {.params = options_.sampling, .choice = index, .hash_logits = options_.hash_logits}},
                          prompts_.back()});
}

absl::StatusOr<GenerateSummary> Generator::Run() {
  if (prompts_.empty()) return summary_;
  ends_.emplace(std::ssize(prompts_));
  serving_options_.queue.most_waiting = std::ssize(prompts_);
  serving_options_.tokenizer = &tokenizer_;
  serving_ = std::make_unique<Serving>(devices_, std::move(serving_options_));
  start_ = Clock::now();
  if (expected_prompt_seconds_) prompt_line_.emplace("Prompt", *expected_prompt_seconds_);
  if (const absl::Status refused = serving_->SubmitTogether(std::move(submissions_)).status(); !refused.ok()) {
    (void)serving_->Drain(absl::InfinitePast());  // the caller unloads its plan
    return refused;
  }
  const bool ended = ends_->Wait(options_.cancel);
  const absl::Status status = serving_->Drain(ended ? absl::InfiniteFuture() : absl::InfinitePast());
  if (!ended) return Summary();
  LIME_RETURN_IF_ERROR(status);
  LIME_RETURN_IF_ERROR(failure_);  // the current plan had no room for a request
  return Summary();
}

// Reports the prompts that begin together, until the first token.
void Generator::ReportPrompts() {
  if (!options_.on_prompt || has_token_) return;
  double computed = 0, rows = 0;
  for (size_t i = 0; i < prompts_.size() && static_cast<int64_t>(i) < slots_; ++i) {
    const auto tokens = static_cast<double>(prompts_[i]->result.prompt_tokens);
    computed += prompts_[i]->share * tokens, rows += tokens;
  }
  options_.on_prompt(computed / rows);
}

void Generator::OnToken(Prompt& prompt, const ServedToken& token) {
  prompt_line_.reset();
  if (!std::exchange(has_token_, true) && options_.on_first_token) options_.on_first_token();
  CountStep(prompt, token.at);
}

// Counts the time since the prompt's previous token. If a recovery or a change of plans delayed the
// step, it counts as one pause of all prompts.
void Generator::CountStep(Prompt& prompt, Clock::time_point now) {
  const int64_t breaks = serving_->recoveries() + serving_->changes();
  if (breaks != breaks_ && last_ != Clock::time_point()) {
    summary_.pause_ms += Milliseconds(now - last_);
    ++summary_.pauses;
    for (const auto& other : prompts_) other->Exclude(now - last_);
    pause_end_ = now;
  } else if (!prompt.result.token_ids.empty() && prompt.last_token >= pause_end_) {
    const double ms = Milliseconds(now - prompt.last_token);
    step_ms_squared_ += ms * ms, step_ms_ += ms, ++steps_;
  }
  breaks_ = breaks, last_ = now;
}

// Standard deviation over the steps of all prompts.
double Generator::StepDeviationMs() const {
  if (steps_ < 2) return 0;
  const double n = static_cast<double>(steps_), mean = step_ms_ / n;
  return std::sqrt(std::max(0.0, (step_ms_squared_ - n * mean * mean) / (n - 1)));
}

// Counts all tokens after the very first one and the time since then, without the pauses.
GenerateSummary Generator::Summary() {
  GenerateSummary summary = summary_;
  summary.interrupted = options_.cancel != nullptr && options_.cancel->load();
  summary.ms_per_step = steps_ > 0 ? step_ms_ / static_cast<double>(steps_) : 0;
  summary.step_deviation_ms = StepDeviationMs();
  Clock::time_point first = Clock::time_point::max(), last = start_;
  int64_t tokens = 0, longest = 0;
  for (const std::shared_ptr<Prompt>& prompt : prompts_) {
    const int64_t count = std::ssize(prompt->result.token_ids);
    if (count > 0) first = std::min(first, prompt->first_token), last = std::max(last, prompt->last_token);
    tokens += count, longest = std::max(longest, count);
    summary.results.push_back(std::move(prompt->result));
  }
  if (tokens == 0) return summary;
  summary.prefill_ms = Milliseconds(first - start_);
  summary.decode_ms = std::max(0.0, Milliseconds(last - first) - summary.pause_ms);
  summary.decode_steps = std::max<int64_t>(0, longest - 1 - summary.pauses);
  summary.decode_tokens = std::max<int64_t>(0, tokens - std::ssize(prompts_) - summary.pauses);
  return summary;
}

nlohmann::json ToJson(const PredictionReport& report) {
  return {{"predicted_ms", report.predicted_ms},
          {"measured_ms", report.measured_ms},
          {"error", report.cause == DifferenceCause::kTooShort ? nlohmann::json() : nlohmann::json(report.error)},
          {"cause", kCauseNames.Of(report.cause)},
          {"why", report.sentence.empty() ? nlohmann::json() : nlohmann::json(report.sentence)}};
}

nlohmann::json ExpertsJson(const UnitUse& units, const DeviceStatistics& statistics) {
  const std::optional<double> measured = statistics.decode_hit_share();
  return {{"kept", units.places},
          {"of", units.units},
          {"expected_hit_share", units.hit_share},
          {"measured_hit_share", measured ? nlohmann::json(*measured) : nlohmann::json()},
          {"expected_bytes_per_step", units.bytes},
          {"hits", statistics.unit_hits},
          {"misses", statistics.unit_misses},
          {"bytes_read", statistics.unit_bytes},
          {"suggested", statistics.units_suggested},
          {"read_ahead", statistics.units_read_ahead},
          {"read_ahead_used", statistics.read_ahead_used},
          {"read_ahead_wasted_bytes", statistics.read_ahead_wasted}};
}

nlohmann::json DeviceJson(const PlanDevice& device, const InstalledPlan& installed, const DeviceStatistics& of) {
  return {{"name", device.name},
          {"numerics_id", installed.numerics_id},
          {"budget_bytes", device.budget},
          {"peak_rss_bytes", of.peak_resident},
          {"steps", of.steps},
          {"bytes_read", of.bytes_read},
          {"kv_written_bytes", of.kv_written},
          {"kv_read_bytes", of.kv_read},
          {"kv_fetched_bytes", of.kv_fetched},
          {"compute_ms", of.compute_ms},
          {"wait_weights_ms", of.wait_weights_ms},
          {"wait_input_ms", of.wait_input_ms},
          {"residency_changes", of.residency_changes},
          {"sent_messages", of.sent_messages},
          {"sent_bytes", of.sent_bytes}};
}

}  // namespace lime::cli
