// Ctrl-C, SIGTERM and SIGHUP: every command ends at once, with exit code 130 and one sentence.
#pragma once

#include <atomic>

namespace lime::cli {

inline constexpr int kInterrupted = 130;

// Takes over the three signals (SIGHUP not where nohup(1) has them ignored). From now on a signal
// ends the process at once, unless a GracefulStop lives. main() calls it first.
void HandleInterrupts();

// Also print {"error": ...} to stdout when a signal ends the process at once.
void SetInterruptJson(bool json);

// True from the first signal on that arrived while a GracefulStop lived.
const std::atomic<bool>& Interrupted();

// While one lives, the first signal only sets Interrupted(): the work at hand polls that, gives back
// what it holds (devices, half-written files) and ends. Work that has not ended 3 s after the signal,
// or when a second one comes, is ended as if no GracefulStop lived. Any thread; they nest.
class GracefulStop {
 public:
  GracefulStop();
  ~GracefulStop();
  GracefulStop(const GracefulStop&) = delete;
  GracefulStop& operator=(const GracefulStop&) = delete;
};

}  // namespace lime::cli
