#include "daemon/stage/plan_sampler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lime {

struct PlanSampler::Sequence {
  int64_t request = 0;
  RequestSampling sampling;
  std::vector<int32_t> ids;                   // of the prompt, and the sampled ones
  size_t prompt = 0;                          // how many of them were not generated, now or under an earlier plan
  size_t given = 0;                           // how many of them came with its AdmitOrder
  std::shared_ptr<MaskMaker::Answer> answer;  // null: any token may come
  std::shared_ptr<LogitsHash> hash;
  absl::Status broken;  // the error if it cannot continue, for example because the state of its hash is none
};

PlanSampler::PlanSampler() = default;
PlanSampler::~PlanSampler() = default;

void PlanSampler::Expect(int64_t request, const RequestSampling& sampling) {
  absl::MutexLock lock(&mutex_);
  expected_[request] = sampling;
}

void PlanSampler::Admit(const AdmitOrder& order) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request = order.request;
  sequence->ids.reserve(static_cast<size_t>(order.positions));
  sequence->ids = order.prompt;
  sequence->prompt = order.prompt.size() - static_cast<size_t>(order.generated);
  sequence->given = order.prompt.size();
  absl::MutexLock lock(&mutex_);
  if (const auto found = expected_.find(order.request); found != expected_.end()) {
    sequence->sampling = std::move(found->second);
    expected_.erase(found);
  }
  // Not before: the sequence that had the slot has freed its format now.
  if (!sequence->sampling.format.empty()) sequence->answer = masks_.Begin(sequence->sampling.format);
  if (sequence->answer != nullptr)
    masks_.Follow(sequence->answer, std::span(sequence->ids).subspan(sequence->prompt), order.positions - std::ssize(sequence->ids));
  if (!scored_hash_) scored_hash_ = std::make_shared<LogitsHash>();
  const bool shares_hash = sequence->sampling.score_top && !sequence->sampling.hash_logits;
  sequence->hash = shares_hash ? scored_hash_ : std::make_shared<LogitsHash>();
  if (!sequence->sampling.hash_state.empty()) {
    absl::StatusOr<LogitsHash> before = LogitsHash::Continue(sequence->sampling.hash_state);
    sequence->broken = before.status();
    if (before.ok()) *sequence->hash = *std::move(before);
  }
  sequences_[order.sequence] = std::move(sequence);
}

void PlanSampler::Retire(int32_t sequence) {
  absl::MutexLock lock(&mutex_);
  sequences_.erase(sequence);
}

void PlanSampler::RollBack(int32_t sequence, int64_t positions) {
  absl::MutexLock lock(&mutex_);
  const auto found = sequences_.find(sequence);
  if (found == sequences_.end()) return;
  Sequence& back = *found->second;
  const size_t kept = std::max(back.given, static_cast<size_t>(positions) + 1);
  if (back.ids.size() <= kept) return;
  back.ids.resize(kept);
  const RequestSampling& sampling = back.sampling;
  if (back.answer != nullptr || sampling.hash_logits || sampling.score_top || sampling.logprobs)
    back.broken = absl::UnimplementedError(
        absl::StrCat("sequence slot ", sequence, " goes back behind sampled tokens, but its request has a hash, scores or a format"));
}

absl::StatusOr<PlanSampler::Sequence*> PlanSampler::Find(int32_t sequence) {
  const auto found = sequences_.find(sequence);
  if (found != sequences_.end()) {
    LIME_RETURN_IF_ERROR(found->second->broken);
    return found->second.get();
  }
  return Invalid("sequence slot ", sequence, " was not admitted");
}

// A hash and a score need all logits. A mask does too: the likeliest ids may be forbidden.
absl::StatusOr<int64_t> PlanSampler::LogitsUsed(int32_t sequence) {
  absl::MutexLock lock(&mutex_);
  LIME_ASSIGN_OR_RETURN(const Sequence* const found, Find(sequence));
  const RequestSampling& sampling = found->sampling;
  const bool uses_all = sampling.hash_logits || sampling.score_top || sampling.logprobs || !sampling.format.empty();
  return uses_all ? kAllLogits : lime::LogitsUsed(sampling.params);
}

absl::StatusOr<int32_t> PlanSampler::Sample(const BatchRow& row, std::span<const float> logits) {
  absl::MutexLock lock(&mutex_);
  LIME_ASSIGN_OR_RETURN(Sequence* const found, Find(row.sequence));
  Sequence& sequence = *found;
  const size_t next = static_cast<size_t>(row.position) + 1;
  if (next > sequence.ids.size()) {
    return Invalid("sequence slot ", row.sequence, ": position ", row.position, " asks for logits, but only ", sequence.ids.size(),
                   " ids are known");
  }
  const bool known = next < sequence.ids.size();
  int32_t token = 0;
  if (known) {
    token = sequence.ids[next];
  } else {
    LIME_ASSIGN_OR_RETURN(token, SampleNext(sequence, logits));
  }
  LIME_RETURN_IF_ERROR(Report(sequence, row, logits, token, known));
  return token;
}

absl::StatusOr<int32_t> PlanSampler::SampleNext(Sequence& sequence, std::span<const float> logits) {
  std::vector<int32_t>& ids = sequence.ids;
  SampleContext context{.ids = ids, .generated = ids.size() - sequence.prompt, .mask = {}};
  if (sequence.answer != nullptr) {
    LIME_ASSIGN_OR_RETURN(context.mask, MaskMaker::Await(*sequence.answer));
  }
  const SamplePoint point{.request = sequence.sampling.choice.value_or(static_cast<uint64_t>(sequence.request)), .position = ids.size()};
  LIME_ASSIGN_OR_RETURN(const int32_t token, sampler_.Sample(logits, sequence.sampling.params, context, point));
  ids.push_back(token);
  if (sequence.answer != nullptr) masks_.Push(sequence.answer, token);
  return token;
}

// Hash and score of a token's logits, if they were asked for.
absl::Status PlanSampler::Report(Sequence& sequence, const BatchRow& row, std::span<const float> logits, int32_t token, bool known) {
  const RequestSampling& sampling = sequence.sampling;
  const std::optional<int32_t> top = !known && sampling.logprobs ? sampling.logprobs : sampling.score_top;
  if (!sampling.hash_logits && !top) return absl::OkStatus();
  TokenReport& report = reports_.emplace_back(ReportOf{.sequence = row.sequence, .position = row.position + 1, .report = {}}).report;
  if (sampling.hash_logits || sampling.score_top) {
    sequence.hash->Add(logits);
    report.logits_hash = sequence.hash->value();
    const bool ends_prompt = row.position + 1 == static_cast<int64_t>(sequence.prompt);
    if (sampling.hash_logits && sampling.score_top && ends_prompt) report.hash_state = sequence.hash->State();
  }
  if (!top) return absl::OkStatus();
  report.score = row_scorer_.Score(logits, *top, known || sampling.logprobs ? std::optional(token) : std::nullopt);
  if (report.score) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("the logits after position ", row.position, " contain NaN, so the weights are broken; check the checkpoint's files"));
}

std::vector<std::pair<int32_t, std::string>> PlanSampler::HashStates() {
  absl::MutexLock lock(&mutex_);
  std::vector<std::pair<int32_t, std::string>> states;
  for (const auto& [slot, sequence] : sequences_) {
    if (sequence->sampling.hash_logits) states.emplace_back(slot, sequence->hash->State());
  }
  return states;
}

PlanSampler::TokenReport PlanSampler::OnSampled(const SampledToken& token) {
  absl::MutexLock lock(&mutex_);
  if (returned_ == reports_.size()) return {};
  ReportOf& next = reports_[returned_];
  if (next.sequence != token.sequence || next.position != token.position) return {};
  TokenReport report = std::move(next.report);
  if (++returned_ == reports_.size()) reports_.clear(), returned_ = 0;
  return report;
}

}  // namespace lime
