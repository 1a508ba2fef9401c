// A progress line, cut to the width of the terminal. It shows rate and remaining time; if the end
// is not known, the current work and the elapsed time. Redrawn on a terminal, silent in a pipe.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "planner/base/bytes.h"

namespace lime::cli {

class ProgressLine {
 public:
  // `label` opens the line ("Loading"). Writes to stderr only if that is a terminal, and only after
  // `quiet` has passed.
  explicit ProgressLine(std::string label, std::chrono::milliseconds quiet = std::chrono::milliseconds(0));
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Redraws at most ten times a second, and once when done == total.
  void Update(Bytes done, Bytes total);
  // The same for work that is not counted in bytes; `share` of it is done.
  void UpdateShare(double share);
  // Removes the line from the screen, before other output.
  void Finish();

 private:
  void Draw(double share, const std::string& figures);
  using Clock = std::chrono::steady_clock;

  const std::string label_;
  const std::chrono::milliseconds quiet_;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  Clock::time_point last_;
  bool drawn_ = false;
};

// For work that may end at once or take minutes: shown from the second second on.
class ElapsedLine {
 public:
  // `label` opens the line ("Planning"). Writes to stderr only if that is a terminal.
  // `expected_seconds`: the expected duration; 0: not known.
  explicit ElapsedLine(std::string label, double expected_seconds = 0);
  ~ElapsedLine();

  // The current work ("looks for stages").  Thread: any
  void Say(const std::string& what);

 private:
  void Run();
  using Clock = std::chrono::steady_clock;

  const std::string label_;
  const double expected_seconds_;
  const Clock::time_point start_ = Clock::now();
  absl::Mutex mutex_;
  std::string what_ ABSL_GUARDED_BY(mutex_);
  bool over_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // not started in a pipe
};

// "Planning: looks for stages, 3 s of about 12 s"; shorter without `what` or an expected time.
std::string ElapsedText(const std::string& label, const std::string& what, double seconds, double expected_seconds);

// "Loading [#####...............] 25 %, 12 s left" after `seconds`.
std::string ProgressText(const std::string& label, double share, const std::string& figures, double seconds);

// The screen output of one prompt: its progress, then the prompt and its text as it is generated.
//
// Thread: the one that generates.
class TextOutput {
 public:
  // On a terminal, shows progress of prompts that take long.
  TextOutput(std::string prompt, size_t prompt_tokens);

  void Prompt(double share);         // computed share
  void PromptDone();                 // removes its progress from the screen
  void Text(std::string_view text);  // the first call also writes the prompt
  void End();                        // ends the line

 private:
  void Begin();

  const std::string prompt_;
  std::optional<ProgressLine> progress_;
  bool begun_ = false;
};

}  // namespace lime::cli
