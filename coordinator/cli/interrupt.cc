#include "coordinator/cli/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstddef>

namespace lime::cli {
namespace {

constexpr unsigned kGraceSeconds = 3;
constexpr char kSentence[] = "lime: interrupted\n";
constexpr char kJson[] = "{\"error\":{\"exit_code\":130,\"kind\":\"interrupted\",\"message\":\"interrupted\"}}\n";

std::atomic<bool> interrupted{false};
std::atomic<bool> json_wanted{false};
std::atomic<bool> on_terminal{false};  // stderr, which may show a progress line
std::atomic<int> graceful{0};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free, "signal handlers use them");

void Write(int file, const char* text, size_t bytes) {
  [[maybe_unused]] const ssize_t written = write(file, text, bytes);
}

// Calls only what a signal handler may call (signal-safety(7)).
[[noreturn]] void EndNow() {
  constexpr char kClearLine[] = "\r\033[K";
  if (on_terminal.load()) Write(STDERR_FILENO, kClearLine, sizeof(kClearLine) - 1);
  if (json_wanted.load()) Write(STDOUT_FILENO, kJson, sizeof(kJson) - 1);
  Write(STDERR_FILENO, kSentence, sizeof(kSentence) - 1);
  _exit(kInterrupted);
}

void OnSignal(int) {
  if (graceful.load() == 0 || interrupted.exchange(true)) EndNow();
  alarm(kGraceSeconds);
}

void OnAlarm(int) {
  EndNow();
}

void Handle(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigemptyset(&action.sa_mask);
  sigaction(signal, &action, nullptr);
}

bool IsIgnored(int signal) {
  struct sigaction action = {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

void HandleInterrupts() {
  on_terminal.store(isatty(STDERR_FILENO) == 1);
  Handle(SIGINT, OnSignal);
  Handle(SIGTERM, OnSignal);
  if (!IsIgnored(SIGHUP)) Handle(SIGHUP, OnSignal);
  Handle(SIGALRM, OnAlarm);
}

void SetInterruptJson(bool json) {
  json_wanted.store(json);
}

const std::atomic<bool>& Interrupted() {
  return interrupted;
}

GracefulStop::GracefulStop() {
  graceful.fetch_add(1);
}

GracefulStop::~GracefulStop() {
  graceful.fetch_sub(1);
}

}  // namespace lime::cli
