// When what the computation waits for is likely to come, from how long it waited at the same place in the steps before.
//
// A thread that sleeps takes a while to wake, most of all where its core sleeps too, and then computes at the pace of a core that has just
// awoken. Steps are alike, so that a wait ends when it did the last times: who is awake in a short window around that loses nothing, and
// sleeps through the rest.
//
// Pure; thread: the owner's.   Owner: StageEngine.
#pragma once

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
  void Waited(int64_t place, double ms);

  // Of the wait, since it began.
  struct Window {
    double from_ms = 0;
    double to_ms = 0;
  };
  // Nothing where too little is known, or waits differ by so much that the window would be too long.
  std::optional<Window> Expect(int64_t place) const;

  static constexpr int kRemembered = 5;
  // To each side of what is likely: this share of a wait, and this long, at most.
  static constexpr double kMostShare = 0.1, kMostMs = 1;

 private:
  struct Place {
    std::array<double, kRemembered> ms = {};  // of the last waits, in a ring
    int64_t count = 0;
  };
  std::vector<Place> places_;
};

}  // namespace lime
