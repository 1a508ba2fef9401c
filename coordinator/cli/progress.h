// A progress line with rate and remaining time: redrawn on a terminal, silent in a pipe.
#pragma once

#include <chrono>
#include <string>

#include "planner/base/bytes.h"

namespace lime::cli {

class ProgressLine {
 public:
  // `label` opens the line ("Loading"). Writes to stderr, only where that is a terminal.
  explicit ProgressLine(std::string label);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Redraws at most ten times a second, and once when done == total.
  void Update(Bytes done, Bytes total);
  // The same for work that is not bytes; `share` of it is done.
  void UpdateShare(double share);

 private:
  void Draw(double share, const std::string& figures);
  using Clock = std::chrono::steady_clock;

  const std::string label_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_;
  bool drawn_ = false;
};

}  // namespace lime::cli
