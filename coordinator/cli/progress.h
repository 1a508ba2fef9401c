// A progress line, cut to the width of the terminal: with rate and remaining time, or where nobody knows the end with what is being done
// and since when. Redrawn on a terminal, silent in a pipe.
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
  // `label` opens the line ("Loading"). Writes to stderr, only where that is a terminal, and from `quiet` after its construction on.
  explicit ProgressLine(std::string label, std::chrono::milliseconds quiet = std::chrono::milliseconds(0));
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // Redraws at most ten times a second, and once when done == total.
  void Update(Bytes done, Bytes total);
  // The same for work that is not bytes; `share` of it is done.
  void UpdateShare(double share);
  // Takes the line off the screen, before something else is written there.
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

// For work that may be over at once or take minutes: from its second second on.
class ElapsedLine {
 public:
  // `label` opens the line ("Planning"). Writes to stderr, only where that is a terminal. `expected_seconds`: what it will take, as far
  // as is known; 0: nobody knows.
  explicit ElapsedLine(std::string label, double expected_seconds = 0);
  ~ElapsedLine();

  // What it is at ("looks for stages").  Thread: any
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
  std::thread thread_;  // none in a pipe
};

// "Planning: looks for stages, 3 s of about 12 s"; without `what` or an expectation less.
std::string ElapsedText(const std::string& label, const std::string& what, double seconds, double expected_seconds);

// "Loading [#####...............] 25 %, 12 s left" after `seconds`.
std::string ProgressText(const std::string& label, double share, const std::string& figures, double seconds);

// What a person sees of one prompt: its progress while it is computed, then the prompt and its text as it comes.
//
// Thread: the one that generates.
class TextOutput {
 public:
  // Progress is shown on a terminal, of prompts that take long.
  TextOutput(std::string prompt, size_t prompt_tokens);

  void Prompt(double share);         // computed so far
  void PromptDone();                 // takes its progress off the screen
  void Text(std::string_view text);  // the prompt before it, the first time
  void End();                        // ends the line

 private:
  void Begin();

  const std::string prompt_;
  std::optional<ProgressLine> progress_;
  bool begun_ = false;
};

}  // namespace lime::cli
