// Limits a search by time and by an amount of work. A problem and a seed give the same plan on
// every machine, unless the time is too short for the work. The work then shrinks with the
// remaining time, so that a search that divides the remaining work still finishes.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace lime {

class SearchBudget {
 public:
  // Work of a current core in about two thirds of a millisecond. A unit is one block, load or hop
  // examined.
  static constexpr double kWorkPerMs = 270'000;

  // How far a search may lag behind its time before its work shrinks. A machine that is busy for a
  // moment still gives the same plan.
  static constexpr double kPatience = 1.5;

  // An empty `elapsed_ms` limits only the work.
  SearchBudget(double work, double limit_ms, std::function<double()> elapsed_ms)
      : work_(work), remaining_(work), limit_ms_(limit_ms), elapsed_ms_(std::move(elapsed_ms)) {}

  // Counts `work` as used. Returns false once the search must stop, and in all later calls.
  bool Spend(double work) {
    remaining_ -= work;
    since_look_ += work;
    if (elapsed_ms_ && since_look_ > kWorkPerMs) {
      since_look_ = 0;
      const double elapsed_ms = elapsed_ms_();
      // False for NaN: a clock that started at infinity gives infinity minus infinity.
      const bool in_time = elapsed_ms < limit_ms_;
      remaining_ =
          in_time ? std::min(remaining_, kPatience * work_ * (1 - elapsed_ms / limit_ms_)) : -std::numeric_limits<double>::infinity();
    }
    return remaining_ > 0;
  }
  double remaining() const { return remaining_; }

  // Whether the time limit has not passed.
  bool InTime() const { return !elapsed_ms_ || elapsed_ms_() < limit_ms_; }

 private:
  double work_;
  double remaining_;
  double limit_ms_;
  std::function<double()> elapsed_ms_;
  double since_look_ = 0;
};

}  // namespace lime
