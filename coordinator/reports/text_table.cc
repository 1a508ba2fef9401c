#include "coordinator/reports/text_table.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_split.h"

namespace lime::cli {
namespace {

constexpr int kPlainColumns = 100;
constexpr int kLeastColumns = 60, kMostColumns = 240;
constexpr int kLeastWrapped = 16;

void Append(std::string& line, const std::string& cell, size_t width, TextTable::Align align) {
  const std::string padding(width > cell.size() ? width - cell.size() : 0, ' ');
  line += align == TextTable::Align::kRight ? padding + cell : cell + padding;
}

}  // namespace

int OutputColumns() {
  winsize size = {};
  if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kPlainColumns;
  return std::clamp<int>(size.ws_col, kLeastColumns, kMostColumns);
}

std::vector<std::string> Wrap(const std::string& text, int width) {
  std::vector<std::string> lines;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    if (!lines.empty() && lines.back().size() + 1 + word.size() <= static_cast<size_t>(width)) {
      lines.back() += " " + word;
    } else {
      lines.push_back(word);
    }
  }
  return lines;
}

std::string TextTable::Text(int width, int wrapped) const {
  std::vector<size_t> widths(columns_.size());
  for (const auto& row : rows_) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  size_t total = 2 * (widths.size() - 1);
  for (const size_t w : widths) total += w;
  if (wrapped >= 0 && total > static_cast<size_t>(width)) {
    const size_t over = total - static_cast<size_t>(width);
    widths[wrapped] = std::max<size_t>(kLeastWrapped, widths[wrapped] > over ? widths[wrapped] - over : 0);
  }
  std::string text;
  for (const auto& row : rows_) {
    const std::vector<std::string> below =
        wrapped >= 0 ? Wrap(row[wrapped], static_cast<int>(widths[wrapped])) : std::vector<std::string>{""};
    for (size_t i = 0; i < below.size(); ++i) {
      std::string line;
      for (size_t c = 0; c < row.size(); ++c) {
        const bool is_wrapped = static_cast<int>(c) == wrapped;
        Append(line, is_wrapped ? below[i] : i == 0 ? row[c] : "", widths[c], columns_[c]);
        line += "  ";
      }
      line.erase(line.find_last_not_of(' ') + 1);
      text += line + "\n";
    }
  }
  return text;
}

}  // namespace lime::cli
