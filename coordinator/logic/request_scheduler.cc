#include "coordinator/logic/request_scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {

RequestScheduler::RequestScheduler(const Options& options) : options_(options) {
  LIME_CHECK_GE(options.chunk, 1);
  LIME_CHECK_GE(options.max_rows, options.max_sequences);
  for (int64_t slot = options.max_sequences; slot-- > 0;) free_slots_.push_back(static_cast<int32_t>(slot));
  running_.reserve(options.max_sequences);
}

absl::StatusOr<RequestId> RequestScheduler::Add(Request request) {
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens and the model no BOS token; give a prompt");
  if (request.max_new_tokens < 1) return absl::InvalidArgumentError("max-tokens must be at least 1");
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt + request.max_new_tokens > options_.context) {
    return absl::ResourceExhaustedError(absl::StrCat("the request needs ", prompt, " prompt + ", request.max_new_tokens,
                                                     " new = ", prompt + request.max_new_tokens, " positions and the context is ",
                                                     options_.context, "; give a larger --context, or a shorter prompt or --max-tokens"));
  }
  Entry entry;
  entry.request = std::move(request);
  requests_.push_back(std::move(entry));
  const RequestId id = static_cast<RequestId>(requests_.size()) - 1;
  waiting_.push_back(id);
  return id;
}

bool RequestScheduler::NextStep(Step& step) {
  step.admitted.clear();
  step.batch.Clear();
  step.sampled.clear();
  Admit(step);
  AddDecodeRows(step);
  AddPromptRows(step);
  return !step.batch.rows.empty();
}

void RequestScheduler::Admit(Step& step) {
  while (!waiting_.empty() && !free_slots_.empty()) {
    const RequestId id = waiting_.front();
    waiting_.pop_front();
    Entry& entry = requests_[id];
    entry.state = State::kRunning;
    entry.slot = free_slots_.back();
    free_slots_.pop_back();
    entry.generated.reserve(entry.request.max_new_tokens);
    running_.push_back(id);
    const int64_t positions = static_cast<int64_t>(entry.request.prompt.size()) + entry.request.max_new_tokens;
    step.admitted.push_back({id, entry.slot, positions});
  }
}

void RequestScheduler::AddDecodeRows(Step& step) {
  for (const RequestId id : running_) {
    Entry& entry = requests_[id];
    if (entry.generated.empty()) continue;
    step.batch.rows.push_back(
        {.sequence = entry.slot, .token = entry.generated.back(), .position = static_cast<int32_t>(entry.computed), .wants_logits = true});
    step.sampled.push_back(id);
    ++entry.computed;
  }
}

void RequestScheduler::AddPromptRows(Step& step) {
  int64_t room = std::min<int64_t>(options_.chunk, options_.max_rows - static_cast<int64_t>(step.batch.rows.size()));
  for (const RequestId id : running_) {
    Entry& entry = requests_[id];
    const int64_t prompt = static_cast<int64_t>(entry.request.prompt.size());
    if (!entry.generated.empty() || entry.computed == prompt) continue;
    const int64_t end = std::min(prompt, entry.computed + room);
    room -= end - entry.computed;
    for (; entry.computed < end; ++entry.computed) {
      const bool last = entry.computed + 1 == prompt;
      step.batch.rows.push_back({.sequence = entry.slot,
                                 .token = entry.request.prompt[entry.computed],
                                 .position = static_cast<int32_t>(entry.computed),
                                 .wants_logits = last});
      if (last) step.sampled.push_back(id);
    }
    if (room == 0) return;
  }
}

FinishReason RequestScheduler::OnToken(RequestId request, int32_t token) {
  Entry& entry = requests_.at(request);
  LIME_CHECK(entry.state == State::kRunning) << "request " << request;
  entry.generated.push_back(token);
  FinishReason reason = FinishReason::kNone;
  if (std::ranges::find(entry.request.end_tokens, token) != entry.request.end_tokens.end()) {
    reason = FinishReason::kEndToken;
  } else if (static_cast<int64_t>(entry.generated.size()) >= entry.request.max_new_tokens) {
    reason = FinishReason::kLength;
  }
  if (reason != FinishReason::kNone) Finish(entry);
  return reason;
}

void RequestScheduler::Stop(RequestId request) {
  Entry& entry = requests_.at(request);
  LIME_CHECK(entry.state != State::kFinished) << "request " << request;
  Finish(entry);
}

void RequestScheduler::Finish(Entry& entry) {
  const RequestId id = static_cast<RequestId>(&entry - requests_.data());
  if (entry.state == State::kRunning) {
    std::erase(running_, id);
    free_slots_.push_back(entry.slot);
  } else {
    std::erase(waiting_, id);
  }
  entry.state = State::kFinished;
}

}  // namespace lime
