#include "kernels/cpu/row_scorer.h"

#include <algorithm>

namespace lime::cpu {

std::optional<RowScore> RowScorer::Score(std::span<const float> logits, int64_t top, std::optional<int32_t> next) {
  const auto vocab = static_cast<int64_t>(logits.size());
  top_.resize(static_cast<size_t>(std::min(top, vocab)) + 1);
  const int64_t kept = TopK(logits.data(), vocab, std::min(top, vocab), top_.data());
  if (kept < 0) return std::nullopt;
  RowScore score;
  for (int64_t i = 0; i < kept; ++i) score.top.emplace_back(top_[static_cast<size_t>(i)].id, top_[static_cast<size_t>(i)].value);
  if (!next) return score;
  ranges_.resize(static_cast<size_t>(NumVocabRanges(vocab)));
  VocabStatistics(pool_, logits.data(), vocab, ranges_.data());
  score.logprob = logits[static_cast<size_t>(*next)] - LogSumExp(ranges_.data(), static_cast<int64_t>(ranges_.size()));
  return score;
}

}  // namespace lime::cpu
