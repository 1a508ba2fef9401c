// Teacher-forced logits: what the model gives each id of a sequence, given those before it.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/logits_hash.h"
#include "daemon/engine/engine.h"
#include "kernels/cpu/row_scorer.h"

namespace lime::cli {

struct ScoreOptions {
  int64_t chunk = 0;  // rows of the scored sequence in one step
  int64_t top = 5;    // likeliest ids kept for each position
  // Sequences that share the steps of the scored one and whose logits are thrown away: they must not change a bit. Slots 1, 2, ...
  std::vector<std::vector<int32_t>> companions;
  const std::atomic<bool>* cancel = nullptr;
};

struct ScoredPosition {
  int32_t id = 0;
  std::optional<double> logprob;               // natural logarithm; of the first id: not given
  std::vector<std::pair<int32_t, float>> top;  // of the distribution after this id, likeliest first
};

// What one row's logits say goes to its id and to the next one, where there is one.
void TakeScore(cpu::RowScore score, ScoredPosition& here, ScoredPosition* next);

// Scores sequences one after another and keeps one hash over all their logits.
//
// Thread: the caller's.   Owner: the command.
class Scorer {
 public:
  // REQUIRES: the engine has 1 + companions slots, and rows and logit rows for `chunk` of each.
  Scorer(Engine& engine, const ScoreOptions& options);

  // Appends one position for each id.
  absl::Status Score(std::span<const int32_t> ids, std::vector<ScoredPosition>& positions);

  uint64_t hash() const { return hash_.value(); }

 private:
  absl::Status StartSlots(std::span<const int32_t> ids);
  int64_t FillBatch(std::span<const int32_t> ids, int64_t begin);
  absl::Status TakeRow(std::span<const float> logits, ScoredPosition& here, ScoredPosition* next);

  Engine& engine_;
  const ScoreOptions& options_;
  MicroBatch batch_;
  LogitsHash hash_;
  cpu::RowScorer row_scorer_;
};

}  // namespace lime::cli
