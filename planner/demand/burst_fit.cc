#include "planner/demand/burst_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

namespace lime {
namespace {

using Row = std::array<double, 4>;  // of a, b, 1 / r, and of the time; divided by the time

Row RowOf(const BurstPoint& point) {
  const auto reads = static_cast<double>(point.reads);
  return {1 / point.ms, reads / point.ms, reads * static_cast<double>(point.bytes) / point.ms, 1};
}

// The numbers `used` of {a, b, 1 / r} with the least squares; the others are 0. Nothing if the
// points do not determine them. Columns are scaled, since they differ by many orders of magnitude.
std::optional<std::array<double, 3>> Solve(std::span<const Row> rows, std::span<const size_t> used) {
  std::array<double, 3> scale{};
  for (const size_t column : used) {
    for (const Row& row : rows) scale[column] = std::max(scale[column], row[column]);
  }
  std::array<std::array<double, 4>, 3> normal{};
  for (const Row& row : rows) {
    for (const size_t i : used) {
      for (const size_t j : used) normal[i][j] += row[i] / scale[i] * row[j] / scale[j];
      normal[i][3] += row[i] / scale[i] * row[3];
    }
  }
  for (const size_t pivot : used) {
    if (normal[pivot][pivot] < 1e-12) return std::nullopt;
    for (const size_t other : used) {
      if (other == pivot) continue;
      const double factor = normal[other][pivot] / normal[pivot][pivot];
      for (size_t column = 0; column < 4; ++column) normal[other][column] -= factor * normal[pivot][column];
    }
  }
  std::array<double, 3> solved{};
  for (const size_t i : used) solved[i] = normal[i][3] / normal[i][i] / scale[i];
  return solved;
}

double SquaresOf(std::span<const Row> rows, const std::array<double, 3>& solved) {
  double squares = 0;
  for (const Row& row : rows) squares += std::pow(row[0] * solved[0] + row[1] * solved[1] + row[2] * solved[2] - row[3], 2);
  return squares;
}

}  // namespace

absl::StatusOr<BurstCost> FitBursts(std::span<const BurstPoint> points) {
  if (points.size() < 3) return Invalid("bursts: ", points.size(), " points, need at least 3");
  std::vector<Row> rows;
  for (const BurstPoint& point : points) {
    if (point.reads < 1 || point.bytes < 1 || !(point.ms > 0) || !std::isfinite(point.ms))
      return Invalid("bursts: ", point.reads, " reads of ", point.bytes, " bytes in ", point.ms, " ms, all must be positive");
    rows.push_back(RowOf(point));
  }
  if (std::ranges::all_of(points, [&](const BurstPoint& point) { return point.bytes == points.front().bytes; }))
    return Invalid("bursts: all reads have ", points.front().bytes, " bytes, need two sizes");
  // Without those that would be negative.
  constexpr std::array<size_t, 3> kAll = {0, 1, 2};
  constexpr std::array<size_t, 2> kNoFixed = {1, 2}, kNoRead = {0, 2};
  constexpr std::array<size_t, 1> kRateAlone = {2};
  std::optional<std::array<double, 3>> best;
  double least = std::numeric_limits<double>::infinity();
  for (const std::span<const size_t> used : {std::span<const size_t>(kAll), std::span<const size_t>(kNoFixed),
                                             std::span<const size_t>(kNoRead), std::span<const size_t>(kRateAlone)}) {
    const std::optional<std::array<double, 3>> solved = Solve(rows, used);
    if (!solved || (*solved)[0] < 0 || (*solved)[1] < 0 || (*solved)[2] <= 0) continue;
    const double squares = SquaresOf(rows, *solved);
    if (squares < least) best = solved, least = squares;
  }
  if (!best) return Invalid("bursts: larger reads take no more time than smaller ones; measure the disk again");
  return BurstCost{.burst_ms = (*best)[0], .read_ms = (*best)[1], .bytes_per_ms = 1 / (*best)[2]};
}

double MeanError(std::span<const BurstPoint> points, const BurstCost& cost) {
  double sum = 0;
  for (const BurstPoint& point : points)
    sum += std::abs(point.ms / cost.MsOf(static_cast<double>(point.reads), static_cast<double>(point.bytes)) - 1);
  return sum / static_cast<double>(points.size());
}

}  // namespace lime
