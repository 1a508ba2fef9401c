// How long a search may go on: an amount of work, so that the same problem and seed end in the same plan whatever the machine, and beside
// it a limit of time. Where a machine is too slow for both, the work shrinks with the time that is left, so that a search that shares out
// what is left comes to its end all the same.
#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

namespace lime {

class SearchBudget {
 public:
  // About what a core of today does in two thirds of a millisecond: a unit of work is one block, load or hand-over looked at.
  static constexpr double kWorkPerMs = 270'000;

  // How far a search may lag behind its time before it has less to do: a machine that is busy for a moment ends in the same plan.
  static constexpr double kPatience = 1.5;

  // `elapsed_ms` may be empty: then work alone counts.
  SearchBudget(double work, double limit_ms, std::function<double()> elapsed_ms)
      : work_(work), left_(work), limit_ms_(limit_ms), elapsed_ms_(std::move(elapsed_ms)) {}

  // False when the search is to stop; and from then on.
  bool Spend(double work) {
    left_ -= work;
    since_look_ += work;
    if (elapsed_ms_ && since_look_ > kWorkPerMs) {
      since_look_ = 0;
      const double elapsed_ms = elapsed_ms_();
      const bool in_time = elapsed_ms < limit_ms_;  // not so of a clock that began when all time was over (infinity less infinity)
      left_ = in_time ? std::min(left_, kPatience * work_ * (1 - elapsed_ms / limit_ms_)) : -std::numeric_limits<double>::infinity();
    }
    return left_ > 0;
  }
  double left() const { return left_; }

  // Whether the limit of time has not passed.
  bool InTime() const { return !elapsed_ms_ || elapsed_ms_() < limit_ms_; }

 private:
  double work_;
  double left_;
  double limit_ms_;
  std::function<double()> elapsed_ms_;
  double since_look_ = 0;
};

}  // namespace lime
