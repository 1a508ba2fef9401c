// Makes RowScores of rows of logits.
//
// Thread: one at a time.   Bits: those of TopK and LogSumExp, wherever the row was computed.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/row_score.h"
#include "kernels/cpu/softmax.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/topk.h"

namespace lime::cpu {

class RowScorer {
 public:
  RowScorer() : pool_(1) {}

  // `logits` [vocab]; `next`: the id whose log-probability is asked for, below vocab. Nothing where a logit is NaN.
  std::optional<RowScore> Score(std::span<const float> logits, int64_t top, std::optional<int32_t> next);

 private:
  ThreadPool pool_;
  std::vector<RangeStatistics> ranges_;
  std::vector<TopEntry> top_;
};

}  // namespace lime::cpu
