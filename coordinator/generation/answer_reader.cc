#include "coordinator/generation/answer_reader.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "planner/base/check.h"

namespace lime {
namespace {

using Time = ServingClock::time_point;

double Milliseconds(ServingClock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

// 0 if one of them did not happen.
double MillisecondsBetween(Time from, Time to) {
  return from == Time() || to == Time() ? 0 : Milliseconds(to - from);
}

}  // namespace

AnswerReader::AnswerReader(const ServedModel& model, const Generation& generation, const std::function<uint64_t()>& random,
                           AnswerWriter& writer)
    : prompts_(generation.prompts),
      prompt_tokens_(generation.prompt_tokens()),
      seed_(generation.seed),
      has_hash_state_(generation.has_hash_state),
      ends_(generation.requests.size()),
      running_(std::ssize(generation.requests)) {
  for (size_t i = 0; i < generation.requests.size(); ++i) {
    const auto add = [&writer, i](ChoiceEvent event) { writer.Add(static_cast<int64_t>(i), std::move(event)); };
    choices_.push_back(std::make_unique<ChoiceReader>(model, generation, i, random, add));
  }
}

bool AnswerReader::OnToken(int64_t choice, const ServedToken& token) {
  return choices_[static_cast<size_t>(choice)]->OnToken(token);
}

void AnswerReader::OnEnd(int64_t choice, const RequestEnd& end) {
  LIME_CHECK(end.status.ok() || has_ended(choice)) << std::string(end.status.message());
  RequestEnd& kept = ends_[static_cast<size_t>(choice)];
  kept = end;
  kept.text = {};
  --running_;
  choices_[static_cast<size_t>(choice)]->OnEnd(end.reason);
}

AnswerReport AnswerReader::Report() const {
  LIME_CHECK(is_over()) << running_;
  AnswerReport report = {.prompt_tokens = prompt_tokens_, .seed = seed_};
  const size_t n = choices_.size() / static_cast<size_t>(prompts_);
  for (size_t i = 0; i < choices_.size(); i += n) report.cached_tokens += ends_[i].cached_tokens;
  if (has_hash_state_) report.hash_state = ends_.front().hash_state;
  AddTokens(report);
  AddTimes(report);
  return report;
}

void AnswerReader::AddTokens(AnswerReport& report) const {
  double decode_ms = 0;
  int64_t later_tokens = 0;  // behind the first of a choice
  for (const auto& choice : choices_) {
    report.completion_tokens += choice->completion_tokens();
    report.reasoning_tokens += choice->reasoning_tokens();
    later_tokens += std::max<int64_t>(choice->completion_tokens() - 1, 0);
    decode_ms += MillisecondsBetween(choice->first_token(), choice->last_token());
  }
  if (later_tokens > 0) report.ms_per_token = decode_ms / static_cast<double>(later_tokens);
}

// Of the choice that was first: its wait, its prompt, its first token. In all: to the last token.
void AnswerReader::AddTimes(AnswerReport& report) const {
  size_t first = 0;
  Time last;
  for (size_t i = 0; i < choices_.size(); ++i) {
    const Time at = choices_[i]->first_token(), best = choices_[first]->first_token();
    if (at != Time() && (best == Time() || at < best)) first = i;
    last = std::max(last, choices_[i]->last_token());
  }
  const RequestEnd& end = ends_[first];
  const Time first_token = choices_[first]->first_token();
  report.queue_ms = MillisecondsBetween(end.submitted, end.started);
  report.prompt_ms = MillisecondsBetween(end.started, first_token);
  report.ttft_ms = MillisecondsBetween(end.submitted, first_token);
  report.generation_ms = MillisecondsBetween(first_token, last);
  report.total_ms = MillisecondsBetween(end.submitted, last);
}

}  // namespace lime
