#include "coordinator/cli/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <cstddef>
#include <utility>

namespace lime::cli {
namespace {

constexpr unsigned kGraceSeconds = 3;
constexpr char kSentence[] = "lime: interrupted\n";
constexpr char kJson[] = "{\"error\":{\"exit_code\":130,\"kind\":\"interrupted\",\"message\":\"interrupted\"}}\n";

std::atomic<bool> interrupted{false};
std::atomic<bool> json_wanted{false};
std::atomic<bool> on_terminal{false};  // stderr, which may show a progress line
std::atomic<int> graceful{0};
std::atomic<bool> stops_answers{false};  // an AnswerStop exists
std::atomic<bool> answer_stopped{false};
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free, "signal handlers use them");

void Write(int file, const char* text, size_t bytes) {
  [[maybe_unused]] const ssize_t written = write(file, text, bytes);
}

// The functions from here to OnAlarm call only what a signal handler may call (signal-safety(7)).
void SayInterrupted() {
  constexpr char kClearLine[] = "\r\033[K";
  if (on_terminal.load()) Write(STDERR_FILENO, kClearLine, sizeof(kClearLine) - 1);
  Write(STDERR_FILENO, kSentence, sizeof(kSentence) - 1);
}

[[noreturn]] void EndNow() {
  if (json_wanted.load()) Write(STDOUT_FILENO, kJson, sizeof(kJson) - 1);
  SayInterrupted();
  _exit(kInterrupted);
}

void OnSignal(int signal) {
  if (stops_answers.load() && !answer_stopped.exchange(true) && signal == SIGINT) return;
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

constexpr int kStopListening = SIGUSR2;  // to the thread of a SignalListener

sigset_t ListenedSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, kStopListening}) sigaddset(&signals, signal);
  return signals;
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

void EndAtOnce() {
  EndNow();
}

void EndUnserved() {
  SayInterrupted();
  _exit(0);
}

SignalListener::SignalListener(std::function<void(int signal)> on_signal) : on_signal_(std::move(on_signal)) {
  const sigset_t signals = ListenedSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  thread_ = std::thread([this] { Run(); });
}

SignalListener::~SignalListener() {
  stopping_ = true;
  pthread_kill(thread_.native_handle(), kStopListening);
  thread_.join();
}

void SignalListener::Run() {
  const sigset_t signals = ListenedSignals();
  for (int signal = 0; !stopping_;) {
    if (sigwait(&signals, &signal) == 0 && signal != kStopListening) on_signal_(signal);
  }
}

GracefulStop::GracefulStop() {
  graceful.fetch_add(1);
}

GracefulStop::~GracefulStop() {
  graceful.fetch_sub(1);
}

AnswerStop::AnswerStop() {
  answer_stopped.store(false);
  stops_answers.store(true);
}

AnswerStop::~AnswerStop() {
  stops_answers.store(false);
}

const std::atomic<bool>& AnswerStop::stopped() {
  return answer_stopped;
}

void AnswerStop::Clear() {
  answer_stopped.store(false);
}

}  // namespace lime::cli
