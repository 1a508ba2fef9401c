#include "coordinator/reports/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "coordinator/reports/screen.h"

namespace lime::cli {
namespace {

// Replaces the line before. Leaves the last column free: some terminals break the line after it.
void Redraw(const std::string& line) {
  if (Screen::InMidLine()) return;
  const int columns = ErrorColumns();
  absl::FPrintF(stderr, "\r\033[K%s", std::string(CutToColumns(line, columns > 1 ? columns - 1 : columns)));
  std::fflush(stderr);
}

}  // namespace

ProgressLine::ProgressLine(std::string label, std::chrono::milliseconds quiet)
    : label_(std::move(label)), quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  Finish();
}

void ProgressLine::Finish() {
  if (std::exchange(drawn_, false)) std::fputs("\r\033[K", stderr);
}

void ProgressLine::Update(Bytes done, Bytes total) {
  if (total <= 0) return;
  const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  Draw(static_cast<double>(done) / static_cast<double>(total),
       absl::StrCat(FormatBytes(done), " of ", FormatBytes(total), ", ", FormatBytes(static_cast<Bytes>(rate)), "/s"));
}

void ProgressLine::UpdateShare(double share) {
  Draw(share, absl::StrFormat("%.0f %%", 100 * share));
}

void ProgressLine::Draw(double share, const std::string& figures) {
  const Clock::time_point now = Clock::now();
  if (!terminal_ || now - start_ < quiet_ || (share < 1 && now - last_ < std::chrono::milliseconds(100))) return;
  last_ = now;
  drawn_ = true;
  Redraw(ProgressText(label_, share, figures, std::chrono::duration<double>(now - start_).count()));
}

std::string ProgressText(const std::string& label, double share, const std::string& figures, double seconds) {
  const int filled = std::clamp(static_cast<int>(20 * share), 0, 20);
  const std::string bar = std::string(filled, '#') + std::string(20 - filled, '.');
  const std::string line = absl::StrCat(label, " [", bar, "] ", figures);
  return share > 0 ? absl::StrCat(line, absl::StrFormat(", %.0f s left", std::max(0.0, seconds * (1 - share) / share))) : line;
}

ElapsedLine::ElapsedLine(std::string label, double expected_seconds) : label_(std::move(label)), expected_seconds_(expected_seconds) {
  if (isatty(STDERR_FILENO) == 1) thread_ = std::thread([this] { Run(); });
}

ElapsedLine::~ElapsedLine() {
  if (!thread_.joinable()) return;
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
  }
  thread_.join();
}

void ElapsedLine::Say(const std::string& what) {
  absl::MutexLock lock(&mutex_);
  what_ = what;
}

void ElapsedLine::Run() {
  constexpr absl::Duration kEvery = absl::Seconds(1);
  bool drawn = false;
  absl::MutexLock lock(&mutex_);
  while (!mutex_.AwaitWithTimeout(absl::Condition(&over_), kEvery)) {
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    Redraw(ElapsedText(label_, what_, seconds, expected_seconds_));
    drawn = true;
  }
  if (drawn) std::fputs("\r\033[K", stderr);
}

std::string ElapsedText(const std::string& label, const std::string& what, double seconds, double expected_seconds) {
  return absl::StrCat(label, ": ", what, what.empty() ? "" : ", ", absl::StrFormat("%.0f s", seconds),
                      expected_seconds > 0 ? absl::StrFormat(" of about %.0f s", expected_seconds) : "");
}

TextOutput::TextOutput(std::string prompt, size_t prompt_tokens) : prompt_(std::move(prompt)) {
  progress_.emplace(absl::StrCat("Prompt of ", prompt_tokens, " tokens"), std::chrono::milliseconds(500));
}

void TextOutput::Prompt(double share) {
  if (progress_) progress_->UpdateShare(share);
}

void TextOutput::PromptDone() {
  progress_.reset();
}

void TextOutput::Begin() {
  if (begun_) return;
  begun_ = true;
  PromptDone();
  Screen::Text(prompt_);
}

void TextOutput::Text(std::string_view text) {
  Begin();
  Screen::Text(text);
}

void TextOutput::End() {
  Begin();
  Screen::Text("\n");
}

}  // namespace lime::cli
