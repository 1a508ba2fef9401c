#include "planner/problem/unit_shares.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/base/random.h"
#include "planner/problem/unit_demand.h"

namespace lime {
namespace {

constexpr int kBalanceRounds = 40;
constexpr double kNoReadMs = 1e-9;  // what rounding may leave

// Of layers that are drawn: of one device, at least, and before the first one that counts.
constexpr int64_t kDraws = 16'384, kFewestDraws = 1024, kSettling = 16;

int64_t Trials(double chosen) {
  return std::lround(std::max(1.0, chosen));
}

// The probability of each number of `trials` that come true, each with the probability `share`.
std::vector<double> Binomial(int64_t trials, double share) {
  share = std::clamp(share, 0.0, 1.0);
  std::vector<double> probabilities;
  for (int64_t m = 0; m <= trials; ++m) {
    const auto yes = static_cast<double>(m), no = static_cast<double>(trials - m);
    const double log_ways = std::lgamma(static_cast<double>(trials) + 1) - std::lgamma(yes + 1) - std::lgamma(no + 1);
    probabilities.push_back(std::exp(log_ways + (m > 0 ? yes * std::log(share) : 0) + (m < trials ? no * std::log1p(-share) : 0)));
  }
  return probabilities;
}

int64_t Draw(std::span<const double> probabilities, Random& random) {
  double left = random.Uniform();
  size_t number = 0;
  while (number + 1 < probabilities.size() && left >= probabilities[number]) left -= probabilities[number++];
  return static_cast<int64_t>(number);
}

// The time of a device whose reads take `read_ms`.
double DoneMs(const UnitTime& of, double read_ms) {
  return of.fixed_ms + std::max(of.compute_ms, read_ms > kNoReadMs ? read_ms + of.late_ms : 0);
}

// Whole units in proportion to `weights`, by largest remainder; at least one for each positive
// weight.
std::vector<int64_t> Apportion(std::span<const double> weights, int64_t units) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> of(weights.size(), 0);
  std::vector<double> left(weights.size(), 0);
  int64_t given = 0;
  for (size_t d = 0; d < weights.size(); ++d) {
    if (weights[d] <= 0) continue;
    const double exact = static_cast<double>(units) * weights[d] / sum;
    of[d] = std::max<int64_t>(1, static_cast<int64_t>(exact));
    left[d] = exact - static_cast<double>(of[d]), given += of[d];
  }
  for (; given < units; ++given) {
    const auto most = static_cast<size_t>(std::ranges::max_element(left) - left.begin());
    ++of[most], --left[most];
  }
  for (; given > units; --given) {  // some have got one instead of less
    const auto most = static_cast<size_t>(std::ranges::max_element(of) - of.begin());
    --of[most];
  }
  return of;
}

// The share of hits of a device that has `units` of a layer and places for some of them: that of a
// layer of which the same share is in memory.
double HitShareOf(const ExpertsConfig& experts, const UnitShare& share, std::span<const double> hits) {
  return HitShare(hits, experts.count, WholePlaces(experts.count, share));
}

}  // namespace

std::vector<PlanPart> DividedParts(const BlockSpec& block, std::span<const UnitShare> shares, int32_t owner, const PlanPart& whole) {
  const std::vector<std::span<const MatrixRows>> units = UnitsIn(whole.rows);
  std::vector<int32_t> order = {owner};
  for (int32_t d = 0; d < std::ssize(shares); ++d) {
    if (d != owner && shares[static_cast<size_t>(d)].units > 0) order.push_back(d);
  }
  std::vector<PlanPart> parts;
  size_t next = 0;
  for (const int32_t d : order) {
    const UnitShare& share = shares[static_cast<size_t>(d)];
    LIME_CHECK(share.places > 0 && share.places <= share.units) << share.places << " places for " << share.units << " units, device " << d;
    PlanPart& part = parts.emplace_back(whole);
    part.rows.clear();
    for (int64_t unit = 0; unit < share.units; ++unit) {
      const std::span<const MatrixRows> rows = units.at(next++);
      part.rows.insert(part.rows.end(), rows.begin(), rows.end());
    }
    part.bytes = PartBytes(block, part.rows), part.unit_bytes = UnitBytes(block, part.rows);
    part.places = share.places;
    part.ahead_places = static_cast<int32_t>(std::min<int64_t>(part.ahead_places, part.places - 1));
    if (d != owner) part.host = d, part.pinned_bytes = PinnedBytes(block);
  }
  LIME_CHECK_EQ(next, units.size());
  return parts;
}

absl::StatusOr<std::vector<UnitShare>> BalancedShares(std::span<const UnitHolder> devices, const ExpertsConfig& experts, int64_t layers,
                                                      Bytes unit_bytes, std::span<const double> hits) {
  std::vector<double> weights(devices.size(), 0);
  for (size_t d = 0; d < devices.size(); ++d) weights[d] = devices[d].mb_per_ms;
  const auto with_disk = std::ranges::count_if(weights, [](double weight) { return weight > 0; });
  if (with_disk < 2 || with_disk > experts.count)
    return absl::ResourceExhaustedError(
        absl::StrCat(experts.count, " experts cannot be divided over the disks of ", with_disk, " devices"));
  std::vector<UnitShare> shares(devices.size());
  for (int round = 0; round <= kBalanceRounds; ++round) {
    const std::vector<int64_t> units = Apportion(weights, experts.count);
    std::vector<double> read_ms(devices.size(), 0);
    for (size_t d = 0; d < devices.size(); ++d) {
      if (units[d] == 0) continue;
      shares[d] = {.units = units[d], .places = std::min(units[d], devices[d].place_bytes / (layers * unit_bytes))};
      if (shares[d].places < std::min(units[d], experts.per_token))
        return absl::ResourceExhaustedError(absl::StrCat("a device has memory for ", shares[d].places, " of its ", units[d], " experts"));
      read_ms[d] = static_cast<double>(units[d]) * (1 - HitShareOf(experts, shares[d], hits)) / devices[d].mb_per_ms;
    }
    const double mean = std::accumulate(read_ms.begin(), read_ms.end(), 0.0) / static_cast<double>(with_disk);
    if (mean <= 0) break;  // all are in memory
    for (size_t d = 0; d < devices.size(); ++d) {
      if (units[d] > 0) weights[d] *= std::clamp(std::sqrt(mean / std::max(read_ms[d], mean / 4)), 0.8, 1.25);
    }
  }
  return shares;
}

double ExpectedLongestMs(std::span<const UnitTime> devices, double chosen) {
  const int64_t trials = Trials(chosen);
  // A number of misses and the time with them, by device; in order of time over all devices.
  struct Point {
    double ms = 0, probability = 0;
    size_t device = 0;
  };
  std::vector<Point> points;
  for (size_t d = 0; d < devices.size(); ++d) {
    const std::vector<double> probabilities = Binomial(trials, devices[d].miss_share);
    for (int64_t m = 0; m <= trials; ++m) {
      const double probability = probabilities[static_cast<size_t>(m)];
      if (probability > 0) points.push_back({DoneMs(devices[d], static_cast<double>(m) * devices[d].unit_ms), probability, d});
    }
  }
  std::ranges::sort(points, {}, &Point::ms);
  std::vector<double> until(devices.size(), 0);      // the probability that a device is done
  size_t may_be_done = 0;                            // devices with a probability above 0
  double expected = 0, log_all = 0, all_before = 0;  // log_all: of the product over these devices
  for (const Point& point : points) {
    double& done = until[point.device];
    may_be_done += done == 0 ? 1 : 0;
    log_all += std::log((done + point.probability) / (done == 0 ? 1 : done));
    done += point.probability;
    if (may_be_done < devices.size()) continue;
    const double all = std::exp(log_all);
    expected += (all - all_before) * point.ms;
    all_before = all;
  }
  return all_before > 0 ? expected / all_before : 0;  // the sum of all probabilities is not quite 1
}

double ExpectedLongestMs(std::span<const UnitTime> devices, double chosen, const UnitsAhead& ahead) {
  const int64_t trials = Trials(chosen);
  std::vector<std::vector<double>> misses_of, wrong_of;
  for (const UnitTime& of : devices) {
    misses_of.push_back(Binomial(trials, of.miss_share));
    wrong_of.push_back(Binomial(trials, (1 - kGuessedShare) * of.absent_share));
  }
  Random random(1);
  std::vector<double> read_ms(devices.size(), 0), idle_ms(devices.size(), 0);
  const int64_t layers = std::max<int64_t>(kFewestDraws, kDraws / std::ssize(devices));
  double sum_ms = 0;
  for (int64_t layer = -kSettling; layer < layers; ++layer) {
    double longest_ms = 0;
    for (size_t d = 0; d < devices.size(); ++d) {
      const UnitTime& of = devices[d];
      const int64_t misses = Draw(misses_of[d], random);
      int64_t wrong = Draw(wrong_of[d], random), right = 0;
      for (int64_t m = 0; m < misses; ++m) right += random.Uniform() < kGuessedShare ? 1 : 0;
      read_ms[d] = static_cast<double>(misses) * of.unit_ms;
      for (int32_t n = 0; n < ahead.places && right > 0 && idle_ms[d] > 0; ++n) {
        const double ms = std::min(idle_ms[d], of.unit_ms);
        const bool is_right = random.Uniform() * static_cast<double>(right + wrong) < static_cast<double>(right);
        if (is_right) read_ms[d] = std::max(0.0, read_ms[d] - ms);
        --(is_right ? right : wrong), idle_ms[d] -= ms;
      }
      longest_ms = std::max(longest_ms, DoneMs(of, read_ms[d]));
    }
    for (size_t d = 0; d < devices.size(); ++d) idle_ms[d] = longest_ms + ahead.rest_ms - read_ms[d];
    if (layer >= 0) sum_ms += longest_ms;
  }
  return sum_ms / static_cast<double>(layers);
}

}  // namespace lime
