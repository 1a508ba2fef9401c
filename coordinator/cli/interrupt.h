// Ctrl-C, SIGTERM and SIGHUP: every command ends at once, with exit code 130 and one sentence. A
// server receives the signals itself.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

namespace lime::cli {

inline constexpr int kInterrupted = 130;

// Handles the three signals (not SIGHUP if nohup(1) ignores it). From now on a signal ends the
// process at once, unless a GracefulStop exists. main() calls this first.
void HandleInterrupts();

// Also print {"error": ...} to stdout when a signal ends the process at once.
void SetInterruptJson(bool json);

// True after the first signal that arrived while a GracefulStop existed.
const std::atomic<bool>& Interrupted();

// While an object exists, Ctrl-C stops an answer, not the program: the first one only sets
// stopped(). A further one before Clear(), SIGTERM and SIGHUP act as without this object, and also set
// stopped(). One object at a time.
class AnswerStop {
 public:
  AnswerStop();
  ~AnswerStop();
  AnswerStop(const AnswerStop&) = delete;
  AnswerStop& operator=(const AnswerStop&) = delete;

  static const std::atomic<bool>& stopped();
  static void Clear();
};

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

// ---- For programs that end in steps

// Ends the process as a signal does when no GracefulStop exists.
[[noreturn]] void EndAtOnce();
// The same for a service that is stopped before it serves: nothing has failed, so the exit code is 0
// and no error is printed to stdout.
[[noreturn]] void EndUnserved();

// Receives the three signals from now on, in place of the above. They stay blocked in the thread
// that makes this object and in all threads that begin afterwards, so make it first.
class SignalListener {
 public:
  // `on_signal` is called on a thread of this object, one call at a time.
  explicit SignalListener(std::function<void(int signal)> on_signal);
  ~SignalListener();
  SignalListener(const SignalListener&) = delete;
  SignalListener& operator=(const SignalListener&) = delete;

 private:
  void Run();

  const std::function<void(int signal)> on_signal_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

}  // namespace lime::cli
