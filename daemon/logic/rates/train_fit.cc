#include "daemon/logic/rates/train_fit.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace lime {
namespace {

constexpr double kBeginningShare = 0.2;  // of the train's time, at least
// Share of the tail's bytes that is left out: the last point is on the hull, however late it is.
constexpr double kEndShare = 0.1;
constexpr double kSteady = 0.12;  // difference between the slopes of the two halves
// The tail without its end, nine tenths of its bytes, takes at least this share of its time.
constexpr double kLeastSteadyShare = 0.5;
constexpr int64_t kTailPerJitter = 10;  // a tail must be longer than its jitter by this factor
constexpr int64_t kGoodTailPerJitter = 25;
constexpr int64_t kGoodTailPerPause = 8;
constexpr size_t kLeastPoints = 6;  // to see where a bucket was empty

struct Point {
  double bytes = 0, us = 0;
};

// us as a function of bytes.
class LowerHull {
 public:
  explicit LowerHull(std::span<const TrainPoint> points) {
    for (const TrainPoint& point : points) {
      const Point next{static_cast<double>(point.bytes - points.front().bytes),
                       static_cast<double>(point.arrived_us - points.front().arrived_us)};
      while (hull_.size() > 1 && !IsConvex(hull_[hull_.size() - 2], hull_.back(), next)) hull_.pop_back();
      hull_.push_back(next);
    }
  }

  double UsAt(double bytes) const {
    const auto after = std::ranges::lower_bound(hull_, bytes, {}, &Point::bytes);
    if (after == hull_.begin()) return hull_.front().us;
    if (after == hull_.end()) return hull_.back().us;
    const Point &a = *(after - 1), &b = *after;
    return a.us + (b.us - a.us) * (bytes - a.bytes) / (b.bytes - a.bytes);
  }
  double BytesAt(double us) const {
    const auto after = std::ranges::lower_bound(hull_, us, {}, &Point::us);
    if (after == hull_.begin()) return hull_.front().bytes;
    if (after == hull_.end()) return hull_.back().bytes;
    const Point &a = *(after - 1), &b = *after;
    return a.bytes + (b.bytes - a.bytes) * (us - a.us) / (b.us - a.us);
  }
  double us() const { return hull_.back().us; }
  double bytes() const { return hull_.back().bytes; }

 private:
  static bool IsConvex(const Point& a, const Point& b, const Point& c) {
    return (b.us - a.us) * (c.bytes - b.bytes) < (c.us - b.us) * (b.bytes - a.bytes);
  }
  std::vector<Point> hull_;
};

// The pause for which half of the time lies in pauses at least as long. Sorts them.
int64_t MiddleOfTime(std::vector<int64_t>& pauses_us) {
  std::ranges::sort(pauses_us);
  const int64_t all_us = std::accumulate(pauses_us.begin(), pauses_us.end(), int64_t{0});
  int64_t sum_us = 0;
  for (const int64_t pause_us : pauses_us) {
    sum_us += pause_us;
    if (2 * sum_us >= all_us) return pause_us;
  }
  return 0;
}

}  // namespace

bool TrainFit::Good() const {
  return tail_us >= kGoodTailPerJitter * jitter_us;
}

bool TrainFit::GoodOfSmall() const {
  return Good() && tail_us >= kGoodTailPerPause * pause_us;
}

std::optional<TrainFit> FitTrain(std::span<const TrainPoint> points, bool drained) {
  if (points.size() < 2 || points.back().arrived_us - points.front().arrived_us < kLeastTailUs) return std::nullopt;
  const LowerHull hull(points);
  const double beginning_us = drained ? 0 : std::max<double>(kMostBurstUs, kBeginningShare * hull.us());
  const double begin = hull.BytesAt(beginning_us), end = hull.bytes() - kEndShare * (hull.bytes() - begin), middle = (begin + end) / 2;
  TrainFit fit{.tail_us = std::llround(hull.us() - hull.UsAt(begin))};
  if (fit.tail_us < kLeastTailUs || end <= begin) return std::nullopt;

  std::vector<int64_t> late, pauses_us;  // of the tail's messages
  for (size_t i = 1; i < points.size(); ++i) {
    const double bytes = static_cast<double>(points[i].bytes - points.front().bytes);
    if (bytes <= begin) continue;
    late.push_back(points[i].arrived_us - points.front().arrived_us - std::llround(hull.UsAt(bytes)));
    pauses_us.push_back(points[i].arrived_us - points[i - 1].arrived_us);
  }
  std::ranges::nth_element(late, late.begin() + static_cast<int64_t>(late.size() / 2));
  fit.jitter_us = std::max<int64_t>(late[late.size() / 2], 0);
  if ((!drained && late.size() < kLeastPoints) || fit.tail_us < kTailPerJitter * fit.jitter_us) return std::nullopt;

  const double first_us = hull.UsAt(middle) - hull.UsAt(begin), second_us = hull.UsAt(end) - hull.UsAt(middle);
  // Never less, since the hull is convex.
  if (second_us - first_us > kSteady * first_us) return std::nullopt;
  if (first_us + second_us < kLeastSteadyShare * static_cast<double>(fit.tail_us)) return std::nullopt;
  fit.pause_us = MiddleOfTime(pauses_us);
  fit.bytes_per_second = (end - begin) / (first_us + second_us) * 1e6;
  return fit;
}

}  // namespace lime
