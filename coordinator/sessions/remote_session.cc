#include "coordinator/sessions/remote_session.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/client/request_body.h"
#include "coordinator/reports/progress.h"

namespace lime::cli {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double MillisecondsBetween(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double, std::milli>(end - begin).count();
}

RequestedSampling RequestedOf(const SamplingParams& params) {
  RequestedSampling sampling;
  sampling.temperature = params.temperature;
  sampling.top_k = params.top_k;
  sampling.top_p = params.top_p;
  sampling.min_p = params.min_p;
  sampling.repetition_penalty = params.repetition_penalty;
  sampling.seed = params.seed;
  return sampling;
}

FinishReason FinishOf(const std::string& finish) {
  if (finish == "stop") return FinishReason::kEndToken;  // or a stop string: see EndsAtStop
  return finish == "length" ? FinishReason::kLength : FinishReason::kNone;
}

uint64_t HashOf(const std::string& text) {
  uint64_t hash = 0;
  return absl::SimpleHexAtoi(text, &hash) ? hash : 0;
}

}  // namespace

// Collects the choices of one request from its chunks.
class RemoteSession::Answers {
 public:
  Answers(size_t choices, const GenerateOptions& options) : options_(options), choices_(choices) {}

  absl::Status Take(const AnswerChunk& chunk) {
    const Clock::time_point now = Clock::now();
    if (chunk.has_usage || chunk.has_lime) report_ = chunk.report;
    has_lime_ = has_lime_ || chunk.has_lime;
    for (const ChoicePart& part : chunk.choices) {
      if (part.index >= std::ssize(choices_)) return Invalid("the server answers choice ", part.index, ", for which nobody asked");
      waiting_.reset();
      if (!std::exchange(has_token_, true) && options_.on_first_token) options_.on_first_token();
      Take(part, static_cast<size_t>(part.index), now);
    }
    return absl::OkStatus();
  }

  GenerateSummary Summary(bool interrupted) {
    GenerateSummary summary;
    summary.interrupted = interrupted;
    int64_t tokens = 0, longest = 0;
    for (Choice& choice : choices_) {
      Complete(choice, interrupted);
      tokens += std::ssize(choice.result.token_ids);
      longest = std::max<int64_t>(longest, std::ssize(choice.result.token_ids));
      summary.results.push_back(std::move(choice.result));
    }
    if (tokens == 0) return summary;
    summary.decode_steps = std::max<int64_t>(0, longest - 1);
    summary.decode_tokens = std::max<int64_t>(0, tokens - std::ssize(choices_));
    summary.prefill_ms = std::ranges::min(summary.results, {}, &Generated::ttft_ms).ttft_ms;
    double ms = 0;
    for (const Generated& result : summary.results) ms += result.ms_per_token;
    summary.ms_per_step = ms / static_cast<double>(summary.results.size());
    summary.decode_ms = summary.ms_per_step * static_cast<double>(summary.decode_steps);
    return summary;
  }

  const AnswerReport& report() const { return report_; }

 private:
  struct Choice {
    Generated result;
    Clock::time_point first, last;  // arrivals of its chunks
  };

  void Take(const ChoicePart& part, size_t index, Clock::time_point now) {
    Choice& choice = choices_[index];
    if (choice.first == Clock::time_point()) choice.first = now;
    choice.last = now;
    choice.result.text += part.content;
    if (options_.on_text && !part.content.empty()) options_.on_text(index, part.content);
    if (!part.finish.empty()) choice.result.finish = FinishOf(part.finish);
    if (!part.token_ids.empty()) choice.result.token_ids = part.token_ids;
    if (!part.logits_xxh3.empty()) choice.result.logits_hash = HashOf(part.logits_xxh3);
  }

  // One choice has the times of the server, several have those of the arrivals.
  void Complete(Choice& choice, bool interrupted) const {
    Generated& result = choice.result;
    const bool alone = choices_.size() == 1;
    if (alone) result.prompt_tokens = report_.prompt_tokens;
    if (interrupted && result.finish == FinishReason::kNone) result.finish = FinishReason::kInterrupted;
    if (alone && has_lime_) {
      result.ttft_ms = report_.ttft_ms;
      result.ms_per_token = report_.ms_per_token;
      return;
    }
    if (choice.first == Clock::time_point()) return;
    result.ttft_ms = MillisecondsBetween(start_, choice.first);
    const int64_t later = std::ssize(result.token_ids) - 1;
    if (later > 0) result.ms_per_token = MillisecondsBetween(choice.first, choice.last) / static_cast<double>(later);
  }

  const GenerateOptions& options_;
  const Clock::time_point start_ = Clock::now();
  std::vector<Choice> choices_;
  AnswerReport report_;
  bool has_lime_ = false, has_token_ = false;
  std::optional<ElapsedLine> waiting_{"Waiting for the server"};  // until the first token
};

absl::StatusOr<std::unique_ptr<RemoteSession>> RemoteSession::Open(std::unique_ptr<ApiClient> client, const std::string& model,
                                                                   const std::atomic<bool>* cancel) {
  LIME_ASSIGN_OR_RETURN(RemoteModel served, client->Model(model, cancel));
  return std::unique_ptr<RemoteSession>(new RemoteSession(std::move(client), std::move(served), cancel));
}

absl::StatusOr<GenerateSummary> RemoteSession::Generate(const std::vector<std::string>& prompts, const GenerateOptions& options,
                                                        bool ignore_eos) {
  std::vector<int64_t> prompt_tokens;  // of several prompts, which share one count in the answer
  for (size_t i = 0; i < prompts.size() && prompts.size() > 1; ++i) {
    LIME_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, Tokenize({{"prompt", prompts[i]}, {"add_special_tokens", true}}));
    prompt_tokens.push_back(std::ssize(ids));
  }
  ApiRequest request;
  request.model = model_.id;
  request.prompt = TextPrompts(prompts.begin(), prompts.end());
  request.sampling = RequestedOf(options.sampling);
  request.max_tokens = options.max_new_tokens.front();
  request.stop = options.stop_strings;
  request.stream = request.include_usage = request.return_token_ids = true;
  request.hash_logits = options.hash_logits;
  request.ignore_eos = ignore_eos;
  Answers answers(prompts.size(), options);
  const absl::Status status = client_->Generate(
      "/v1/completions", CompletionBody(request), [&](const AnswerChunk& chunk) { return answers.Take(chunk); }, cancel_);
  const bool interrupted = absl::IsCancelled(status);
  if (!status.ok() && !interrupted) return status;
  report_ = answers.report();
  GenerateSummary summary = answers.Summary(interrupted);
  for (size_t i = 0; i < summary.results.size(); ++i) {
    Generated& result = summary.results[i];
    if (!prompt_tokens.empty()) result.prompt_tokens = prompt_tokens[i];
    LIME_ASSIGN_OR_RETURN(const bool stopped, EndsAtStop(result, options.stop_strings));
    if (stopped) result.finish = FinishReason::kStopped;
  }
  return summary;
}

// OpenAI's API has one word for end tokens and stop strings. The text is cut before a stop string,
// but the ids are not.
absl::StatusOr<bool> RemoteSession::EndsAtStop(const Generated& result, const std::vector<std::string>& stops) const {
  if (result.finish != FinishReason::kEndToken || stops.empty()) return false;
  LIME_ASSIGN_OR_RETURN(const json answer, client_->Post("/detokenize", {{"tokens", result.token_ids}}, cancel_));
  const auto content = answer.find("content");
  if (content == answer.end() || !content->is_string())
    return Invalid(client_->Url(), " gives no text of ids; it may be another server than `lime serve`");
  const std::string text = content->get<std::string>();
  return std::ranges::any_of(stops, [&](const std::string& stop) { return !stop.empty() && text.find(stop) != std::string::npos; });
}

absl::StatusOr<std::vector<int32_t>> RemoteSession::Tokenize(const json& body) const {
  LIME_ASSIGN_OR_RETURN(const json answer, client_->Post("/tokenize", body, cancel_));
  const auto tokens = answer.find("tokens");
  if (tokens == answer.end() || !tokens->is_array() ||
      !std::ranges::all_of(*tokens, [](const json& id) { return id.is_number_unsigned(); }))
    return Invalid(client_->Url(), " gives no ids of a text; it may be another server than `lime serve`");
  return tokens->get<std::vector<int32_t>>();
}

absl::StatusOr<std::vector<int32_t>> RemoteSession::Encode(const std::string& text) const {
  return Tokenize({{"content", text}, {"add_special", false}});
}

absl::StatusOr<std::optional<int32_t>> RemoteSession::Bos() const {
  const absl::StatusOr<std::vector<int32_t>> ids = Tokenize({{"prompt", ""}, {"add_special_tokens", true}});
  if (absl::IsInvalidArgument(ids.status())) return std::nullopt;  // no prompt can be empty
  LIME_RETURN_IF_ERROR(ids.status());
  return ids->empty() ? std::nullopt : std::optional(ids->front());
}

absl::Status RemoteSession::ScoreWindow(const std::vector<int32_t>& window, int64_t top, std::optional<std::string>& hash_state,
                                        Scores& scores) {
  ApiRequest request;
  request.model = model_.id;
  request.prompt = TextPrompts{window};
  request.max_tokens = 0;
  request.cache_prompt = false;  // all positions are asked for
  request.echo = request.hash_logits = request.return_token_ids = true;
  request.top_logprobs = static_cast<int32_t>(top);
  request.hash_state = hash_state;
  std::vector<ChoicePart> choices;
  const auto take = [&](const AnswerChunk& chunk) {
    choices = chunk.choices;
    report_ = chunk.report;
    return absl::OkStatus();
  };
  LIME_RETURN_IF_ERROR(client_->Generate("/v1/completions", CompletionBody(request), take, cancel_));
  if (choices.size() != 1 || choices.front().token_logprobs.size() != window.size())
    return absl::InternalError(
        absl::StrCat(client_->Url(), " does not score all ids of the prompt; it may not know echo with max_tokens 0"));
  ChoicePart& choice = choices.front();
  choice.top_logits.resize(window.size());
  for (size_t i = 0; i < window.size(); ++i)
    scores.positions.push_back({.id = window[i], .logprob = choice.token_logprobs[i], .top = std::move(choice.top_logits[i])});
  scores.logits_hash = HashOf(choice.logits_xxh3);
  if (hash_state) hash_state = report_.hash_state.empty() ? std::nullopt : std::optional(report_.hash_state);
  return absl::OkStatus();
}

absl::StatusOr<Scores> RemoteSession::Score(const std::vector<std::vector<int32_t>>& windows, const ScoreOptions& options) {
  Scores scores;
  std::optional<std::string> hash_state;
  if (windows.size() > 1) hash_state.emplace();
  for (const std::vector<int32_t>& window : windows) LIME_RETURN_IF_ERROR(ScoreWindow(window, options.top, hash_state, scores));
  if (windows.size() > 1 && !hash_state) scores.logits_hash.reset();  // an older server hashes each window by itself
  return scores;
}

json RemoteSession::Describe() const {
  return {{"url", client_->Url()},
          {"model", model_.id},
          {"numerics_id", report_.numerics_id},
          {"predicted_ms_per_token", predicted_ms_per_token()},
          {"recoveries", report_.recoveries},
          {"plan_changes", report_.plan_changes}};
}

PredictionReport RemoteSession::Compare(const GenerateSummary& summary) const {
  return ExplainDifference(predicted_ms_per_token(), summary.ms_per_step,
                           {.steps = static_cast<double>(summary.decode_steps), .decode_seconds = summary.decode_ms / 1000});
}

}  // namespace lime::cli
