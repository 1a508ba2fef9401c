// Ctrl-C, SIGTERM and SIGHUP: every command ends at once, with exit code 130 and one sentence.
#pragma once

#include <atomic>

namespace lime::cli {

inline constexpr int kInterrupted = 130;

// Handles the three signals (not SIGHUP if nohup(1) ignores it). From now on a signal ends the
// process at once, unless a GracefulStop exists. main() calls this first.
void HandleInterrupts();

// Also print {"error": ...} to stdout when a signal ends the process at once.
void SetInterruptJson(bool json);

// True after the first signal that arrived while a GracefulStop existed.
const std::atomic<bool>& Interrupted();

// While an object exists, the first signal only sets Interrupted(). The running work polls it,
// releases its resources (devices, half-written files) and ends. If the work has not ended 3 s
// later, or a second signal comes, the process ends at once. Any thread; objects may nest.
class GracefulStop {
 public:
  GracefulStop();
  ~GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;
};

}  // namespace lime::cli
