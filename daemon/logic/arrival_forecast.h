// When what the computation waits for is likely to come, from how long it waited at the same place in the steps before.
//
// A thread that sleeps takes a while to wake, most of all where its core sleeps too, and then computes at the pace of a core that has just
// awoken. Steps are alike, so that a wait ends when it did the last times: who is awake in a short window around that loses nothing, and
// sleeps through the rest.
//
// Pure; thread: the owner's.   Owner: StageEngine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace lime {

class ArrivalForecast {
 public:
  // `places`: where there are waits, from 0.
  explicit ArrivalForecast(int64_t places) : places_(static_cast<size_t>(places)) {}

  // A wait at `place` took so long.
  void Waited(int64_t place, double ms) {
    Place& what = places_[static_cast<size_t>(place)];
    what.ms[static_cast<size_t>(what.count++ % kRemembered)] = ms;
  }

  // Of the wait, since it began.
  struct Window {
    double from_ms = 0;
    double to_ms = 0;
  };
  // Nothing where too little is known, or waits differ by so much that the window would be too long. Else the middle ones of the last
  // waits, without the shortest and the longest, and twice as much again to each side.
  std::optional<Window> Expect(int64_t place) const {
    const Place& what = places_[static_cast<size_t>(place)];
    if (what.count < kRemembered) return std::nullopt;
    std::array<double, kRemembered> ms = what.ms;
    std::ranges::sort(ms);
    const double low = ms[1], middle = ms[kRemembered / 2], high = ms[kRemembered - 2];
    const double side = std::max(kLeastMs, 2 * (high - low)), most = std::max(kLeastMs, std::min(kMostMs, kMostShare * middle));
    if (high - low > 2 * most) return std::nullopt;
    return Window{.from_ms = std::max(0.0, middle - std::min(side + middle - low, most)),
                  .to_ms = middle + std::min(side + high - middle, most)};
  }

  static constexpr int kRemembered = 5;
  // To each side of what is likely: this share of a wait, and this long, at most; and at least what a timer and a thread that wakes need.
  static constexpr double kMostShare = 0.1, kMostMs = 1, kLeastMs = 0.05;

 private:
  struct Place {
    std::array<double, kRemembered> ms = {};  // of the last waits, in a ring
    int64_t count = 0;
  };
  std::vector<Place> places_;
};

}  // namespace lime
