#include "planner/demand/sparse_mlp.h"

#include <algorithm>
#include <cmath>

#include "planner/base/check.h"

namespace lime {
namespace {

bool IsShare(double share) {
  return share >= 0 && share <= 1;  // false for NaN
}

}  // namespace

absl::Status CheckShares(const SparseShares& shares) {
  if (shares.matrices != 2 && shares.matrices != 3) return Invalid("sparse MLP: ", shares.matrices, " matrices, need 2 or 3");
  if (!IsShare(shares.computed) || !IsShare(shares.missing))
    return Invalid("sparse MLP: shares of ", shares.computed, " computed and ", shares.missing, " missing neurons, need 0 to 1");
  return absl::OkStatus();
}

double ReadShare(SparseDecider decider, const SparseShares& shares) {
  LIME_CHECK(CheckShares(shares).ok()) << CheckShares(shares).message();
  const double read = shares.computed * shares.missing;
  if (decider == SparseDecider::kProven) return read;
  const double of_decider = 1.0 / shares.matrices;
  return (shares.decider_resident ? 0 : of_decider) + (1 - of_decider) * read;
}

Bytes CopyBytes(int64_t rows, int64_t cols, int bits, int64_t directions) {
  constexpr int kDirectionBits = 12;
  return rows * ((cols * bits + directions * kDirectionBits + 7) / 8);
}

double UnionOfRows(std::span<const double> shares) {
  double none = 1;
  for (const double share : shares) {
    LIME_CHECK(IsShare(share)) << share;
    none *= 1 - share;
  }
  return 1 - none;
}

double ReadMs(const SparseStep& step, const BurstCost& burst) {
  LIME_CHECK(step.neurons_per_read >= 1 && step.sequential_bytes_per_ms > 0) << step.neurons_per_read;
  const double reads = step.new_neurons / step.neurons_per_read;
  const double burst_ms = burst.MsOf(reads, step.neurons_per_read * static_cast<double>(step.bundle_bytes));
  return std::min(burst_ms, static_cast<double>(step.region_bytes) / step.sequential_bytes_per_ms);
}

double StepMs(const SparseStep& step, const BurstCost& burst) {
  return step.decide_ms + std::max(step.held_ms, ReadMs(step, burst)) + step.new_ms;
}

}  // namespace lime
