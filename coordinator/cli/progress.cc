#include "coordinator/cli/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"

namespace lime::cli {

ProgressLine::ProgressLine(std::string label) : label_(std::move(label)), terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressLine::~ProgressLine() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void ProgressLine::Update(Bytes done, Bytes total) {
  const Clock::time_point now = Clock::now();
  if (!terminal_ || total <= 0 || (done < total && now - last_ < std::chrono::milliseconds(100))) return;
  last_ = now;
  drawn_ = true;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const int filled = static_cast<int>(20 * done / total);
  const std::string bar = std::string(filled, '#') + std::string(20 - filled, '.');
  const double remaining = rate > 0 ? static_cast<double>(total - done) / rate : 0;
  absl::FPrintF(stderr, "\r\033[K%s [%s] %s of %s, %s/s, %.0f s left", label_, bar, FormatBytes(done), FormatBytes(total),
                FormatBytes(static_cast<Bytes>(rate)), remaining);
  std::fflush(stderr);
}

}  // namespace lime::cli
