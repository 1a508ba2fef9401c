// Scores from one row of logits: the likeliest ids, and the log-probability of one id.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace lime::cpu {

struct RowScore {
  std::optional<double> logprob;               // natural logarithm, for the requested id
  std::vector<std::pair<int32_t, float>> top;  // ids and their logits, likeliest first

  friend bool operator==(const RowScore&, const RowScore&) = default;
};

}  // namespace lime::cpu
