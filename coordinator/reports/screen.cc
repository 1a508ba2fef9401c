#include "coordinator/reports/screen.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

constexpr int kUsualColumns = 80;

struct ScreenState {
  absl::Mutex mutex;
  bool mid_line ABSL_GUARDED_BY(mutex) = false;  // text on stdout
};

ScreenState& State() {
  static ScreenState* const state = new ScreenState;  // lives as long as the process
  return *state;
}

bool OneScreen() {
  static const bool one = isatty(STDOUT_FILENO) == 1 && isatty(STDERR_FILENO) == 1;
  return one;
}

}  // namespace

int ErrorColumns() {
  if (isatty(STDERR_FILENO) != 1) return 0;
  winsize size = {};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  int columns = 0;
  const char* const stated = std::getenv("COLUMNS");
  return stated != nullptr && absl::SimpleAtoi(stated, &columns) && columns > 0 ? columns : kUsualColumns;
}

std::string_view CutToColumns(std::string_view line, int columns) {
  if (columns <= 0) return line;
  int characters = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    const bool begins = (static_cast<unsigned char>(line[i]) & 0xC0) != 0x80;
    if (begins && ++characters > columns) return line.substr(0, i);
  }
  return line;
}

void Screen::Text(std::string_view text) {
  if (text.empty()) return;
  absl::MutexLock lock(&State().mutex);
  std::cout << text << std::flush;
  State().mid_line = text.back() != '\n';
}

void Screen::Say(std::string_view sentence) {
  absl::MutexLock lock(&State().mutex);
  // Removes a progress line, if there is one.
  if (isatty(STDERR_FILENO) == 1 && !(OneScreen() && State().mid_line)) std::fputs("\r\033[K", stderr);
  const std::string line = SentenceLine(sentence, OneScreen() && State().mid_line);
  State().mid_line = State().mid_line && !OneScreen();
  std::fputs(line.c_str(), stderr);
}

bool Screen::InMidLine() {
  absl::MutexLock lock(&State().mutex);
  return OneScreen() && State().mid_line;
}

std::string SentenceLine(std::string_view sentence, bool in_mid_line) {
  return absl::StrCat(in_mid_line ? "\n" : "", "lime: ", lime::Text(sentence), "\n");
}

}  // namespace lime::cli
