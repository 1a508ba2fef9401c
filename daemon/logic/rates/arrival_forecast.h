// Forecasts when the input of a computation is likely to arrive, from how long the last steps
// waited at the same place.
//
// A sleeping thread takes a while to wake, most of all if its core sleeps too, and then computes on
// a slow core. Steps are alike, so a wait takes about as long as the last ones did. A thread that
// is awake only in a short window around that moment loses nothing.
//
// Pure.   Thread: the owner's.   Owner: StageEngine.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace lime {

class ArrivalForecast {
 public:
  // `places`: how many kinds of waits there are.
  explicit ArrivalForecast(int64_t places) : places_(static_cast<size_t>(places)) {}

  // A wait at `place` has taken `ms`.
  void Waited(int64_t place, double ms) {
    Place& what = places_[static_cast<size_t>(place)];
    what.ms[static_cast<size_t>(what.count++ % kRemembered)] = ms;
  }

  // Counted from the beginning of the wait.
  struct Window {
    double from_ms = 0;
    double to_ms = 0;
  };
  // Nothing if too little is known, or if waits differ so much that the window would be too long.
  // Otherwise the window goes from the second shortest to the second longest of the last waits, and
  // on each side twice that range further, within the bounds below.
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
  // Each side of the window has at most this share of a wait and this length, and at least the time
  // that a timer and a waking thread need.
  static constexpr double kMostShare = 0.1, kMostMs = 1, kLeastMs = 0.05;

 private:
  struct Place {
    std::array<double, kRemembered> ms = {};  // of the last waits, in a ring
    int64_t count = 0;
  };
  std::vector<Place> places_;
};

}  // namespace lime
