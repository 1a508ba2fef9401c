#include "coordinator/cli/score.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lime::cli {

void TakeScore(cpu::RowScore score, ScoredPosition& here, ScoredPosition* next) {
  here.top = std::move(score.top);
  if (next != nullptr) next->logprob = score.logprob;
}

Scorer::Scorer(Engine& engine, const ScoreOptions& options) : engine_(engine), options_(options) {}

absl::Status Scorer::Score(std::span<const int32_t> ids, std::vector<ScoredPosition>& positions) {
  LIME_RETURN_IF_ERROR(StartSlots(ids));
  const size_t first = positions.size();
  for (const int32_t id : ids) positions.push_back({.id = id, .top = {}});
  const size_t vocab = engine_.spec().config.vocab_size;
  for (int64_t begin = 0; begin < static_cast<int64_t>(ids.size());) {
    if (options_.cancel != nullptr && options_.cancel->load(std::memory_order_relaxed)) return absl::CancelledError("interrupted");
    const int64_t end = FillBatch(ids, begin);
    LIME_ASSIGN_OR_RETURN(const std::span<const float> logits, engine_.Step(batch_));
    for (int64_t i = begin; i < end; ++i) {
      ScoredPosition* const next = i + 1 < static_cast<int64_t>(ids.size()) ? &positions[first + i + 1] : nullptr;
      LIME_RETURN_IF_ERROR(TakeRow(logits.subspan((i - begin) * vocab, vocab), positions[first + i], next));
    }
    begin = end;
  }
  for (int32_t slot = 0; slot <= static_cast<int32_t>(options_.companions.size()); ++slot) engine_.EndSequence(slot);
  return absl::OkStatus();
}

absl::Status Scorer::StartSlots(std::span<const int32_t> ids) {
  LIME_RETURN_IF_ERROR(engine_.StartSequence(0, static_cast<int64_t>(ids.size())));
  for (size_t i = 0; i < options_.companions.size(); ++i) {
    LIME_RETURN_IF_ERROR(engine_.StartSequence(static_cast<int32_t>(i) + 1, static_cast<int64_t>(options_.companions[i].size())));
  }
  return absl::OkStatus();
}

// The next chunk of the scored sequence, then the same positions of its companions. Returns where the chunk ends.
int64_t Scorer::FillBatch(std::span<const int32_t> ids, int64_t begin) {
  batch_.Clear();
  const int64_t end = std::min<int64_t>(static_cast<int64_t>(ids.size()), begin + options_.chunk);
  const auto add = [&](int32_t slot, std::span<const int32_t> tokens) {
    for (int64_t i = begin; i < std::min<int64_t>(end, static_cast<int64_t>(tokens.size())); ++i) {
      batch_.rows.push_back({.sequence = slot, .token = tokens[i], .position = static_cast<int32_t>(i), .wants_logits = slot == 0});
    }
  };
  add(0, ids);
  for (size_t i = 0; i < options_.companions.size(); ++i) add(static_cast<int32_t>(i) + 1, options_.companions[i]);
  return end;
}

absl::Status Scorer::TakeRow(std::span<const float> logits, ScoredPosition& here, ScoredPosition* next) {
  hash_.Add(logits);
  std::optional<cpu::RowScore> score =
      row_scorer_.Score(logits, options_.top, next == nullptr ? std::nullopt : std::optional<int32_t>(next->id));
  if (!score) {
    return absl::DataLossError(
        absl::StrCat("the logits after id ", here.id, " hold NaN; the weights are broken, check the checkpoint's files"));
  }
  TakeScore(*std::move(score), here, next);
  return absl::OkStatus();
}

}  // namespace lime::cli
