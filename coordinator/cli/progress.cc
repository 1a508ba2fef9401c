#include "coordinator/cli/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace lime::cli {

ProgressLine::ProgressLine(std::string label) : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (drawn_) std::fputs("\r\033[K", stderr);
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
  if (!terminal_ || (share < 1 && now - last_ < std::chrono::milliseconds(100))) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const int filled = std::clamp(static_cast<int>(20 * share), 0, 20);
  const std::string bar = std::string(filled, '#') + std::string(20 - filled, '.');
  const double remaining = share > 0 ? seconds * (1 - share) / share : 0;
  absl::FPrintF(stderr, "\r\033[K%s [%s] %s, %.0f s left", label_, bar, figures, std::max(0.0, remaining));
  std::fflush(stderr);
}

ElapsedLine::ElapsedLine(std::string label) : label_(std::move(label)) {
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
    absl::FPrintF(stderr, "\r\033[K%s: %s%s%.0f s", label_, what_, what_.empty() ? "" : ", ", seconds);
    std::fflush(stderr);
    drawn = true;
  }
  if (drawn) std::fputs("\r\033[K", stderr);
}

}  // namespace lime::cli
