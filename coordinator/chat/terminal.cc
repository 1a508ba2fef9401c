#include "coordinator/chat/terminal.h"

#include <poll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "coordinator/reports/screen.h"

namespace lime::cli {
namespace {

constexpr int kLookMs = 50;  // how often the wait for a line looks for Ctrl-C
constexpr std::string_view kPrompt = "> ", kPromptOfNextLine = "… ", kDim = "\033[2m", kPlain = "\033[0m";

void ToStderr(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace

std::optional<std::string> LineCutter::Next() {
  while (true) {
    const size_t end = waiting_.find('\n');
    if (end == std::string::npos) return std::nullopt;
    std::string line = waiting_.substr(0, end);
    waiting_.erase(0, end + 1);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.ends_with('\\')) return std::exchange(begun_, {}) + line;
    line.back() = '\n';
    begun_ += line;
  }
}

std::string LineCutter::Rest() {
  return std::exchange(begun_, {}) + std::exchange(waiting_, {});
}

ChatScreen::Input Terminal::ReadLine(std::string& line) {
  const bool was_stopped = stopped().load();
  bool prompted = false;
  while (true) {
    if (std::optional<std::string> next = lines_.Next()) {
      line = *std::move(next);
      return Input::kLine;
    }
    if (!std::exchange(prompted, true)) ToStderr(lines_.goes_on() ? kPromptOfNextLine : kPrompt);
    if (Interrupted()) return Input::kEnd;
    if (stopped() && !was_stopped) {
      lines_ = LineCutter();  // a message that has begun is dropped
      ToStderr("\n");
      return Input::kStopped;
    }
    pollfd waits{.fd = input_, .events = POLLIN, .revents = 0};
    if (poll(&waits, 1, kLookMs) <= 0) continue;
    std::array<char, 4096> bytes;
    const ssize_t count = read(input_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      ToStderr("\n");
      line = lines_.Rest();
      return line.empty() ? Input::kEnd : Input::kLine;
    }
    lines_.Add(std::string_view(bytes.data(), static_cast<size_t>(count)));
    prompted = !lines_.goes_on();
  }
}

void Terminal::Show(Showing what) {
  if (std::exchange(showing_, what) == what) return;
  if (what == Showing::kReasoning && colours_) Screen::Text(kDim);
}

void Terminal::Reasoning(std::string_view text) {
  Show(Showing::kReasoning);
  Screen::Text(text);
}

void Terminal::Content(std::string_view text) {
  if (showing_ == Showing::kReasoning) EndAnswer();
  Show(Showing::kContent);
  Screen::Text(text);
}

void Terminal::EndAnswer() {
  if (showing_ == Showing::kReasoning && colours_) Screen::Text(kPlain);
  if (showing_ != Showing::kNothing) Screen::Text("\n");
  showing_ = Showing::kNothing;
}

void Terminal::Say(std::string_view text) {
  ToStderr(text);
  if (!text.ends_with('\n')) ToStderr("\n");
}

}  // namespace lime::cli
