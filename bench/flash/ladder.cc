#include "bench/flash/ladder.h"

#include <algorithm>
#include <cmath>

#include "planner/base/check.h"

namespace lime::flash {
namespace {

constexpr int32_t kLeastRowsShare = 32;  // a mask in many rounds reads a few neurons at a time

}  // namespace

absl::StatusOr<MemorySplit> SplitMemory(const FlashShape& shape, Bytes budget, const RungRule& rule) {
  if (budget <= 0) return Invalid("memory: ", budget, " bytes, need at least 1");
  const Bytes fixed = shape.weights - shape.mlps + (rule.decider ? shape.decider : rule.copy ? shape.copies : shape.predictor);
  const Bytes row = (rule.decider ? shape.tail_slot : shape.slot) * shape.layers;
  const int32_t least = std::max(1, shape.neurons / kLeastRowsShare);
  MemorySplit split{.rows = static_cast<int32_t>(std::clamp<int64_t>((budget - fixed) / row, least, shape.neurons))};
  split.streamed = std::clamp<Bytes>(fixed + split.rows * row - budget, 0, fixed);
  split.held = fixed - split.streamed + split.rows * row;
  return split;
}

double PredictedMs(const DiskLoad& load, const DiskCost& cost) {
  const BurstCost& burst = cost.burst;
  return static_cast<double>(load.bursts) * burst.burst_ms + static_cast<double>(load.reads) * burst.read_ms +
         static_cast<double>(load.neurons) / burst.bytes_per_ms + static_cast<double>(load.streamed) / cost.sequential_bytes_per_ms;
}

RungFigures FiguresOf(const RungCounts& counts, const DiskBeside& disk) {
  LIME_CHECK(counts.tokens > 0);
  const auto tokens = static_cast<double>(counts.tokens), bytes = static_cast<double>(counts.load.neurons + counts.load.streamed);
  const double predicted_ms = disk.PredictedMs(counts.load);
  const auto each = [&](auto sum) { return static_cast<double>(sum) / tokens; };
  return {.held_gb = static_cast<double>(counts.held) / 1e9,
          .read_mb = bytes / tokens / 1e6,
          .gb_per_s = counts.io_ms > 0 ? bytes / counts.io_ms / 1e6 : 0,
          .neurons = each(counts.neurons),
          .reads = each(counts.reads),
          .io_ms = each(counts.io_ms),
          .predicted_ms = each(predicted_ms),
          .ratio = predicted_ms > 0 ? counts.io_ms / predicted_ms : 0,
          .manage_ms = each(counts.manage_ms),
          .moves = each(counts.moves)};
}

double WholeMs(const RungRule& rule, const RungFigures& figures, double computing_ms) {
  if (!rule.neurons) return std::max(figures.io_ms, computing_ms);
  return figures.io_ms + figures.manage_ms + computing_ms;
}

}  // namespace lime::flash
