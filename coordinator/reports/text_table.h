// Text in columns, and the width of the output.
#pragma once

#include <string>
#include <vector>

namespace lime::cli {

// Width of stdout if it is a terminal, else 100.
int OutputColumns();

class TextTable {
 public:
  enum class Align { kLeft, kRight };

  explicit TextTable(std::vector<Align> columns) : columns_(std::move(columns)) {}

  // One cell per column. Widths count bytes, so use ASCII.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Two spaces between columns, none at the end of a line. If the table is wider than `width`,
  // cells of the column `wrapped` (-1: none) break at spaces into several lines.
  std::string Text(int width, int wrapped) const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// Breaks `text` at spaces into lines of at most `width`. A longer word has a line of its own.
std::vector<std::string> Wrap(const std::string& text, int width);

}  // namespace lime::cli
