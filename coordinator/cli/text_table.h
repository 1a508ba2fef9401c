// Columns of text for people, and the width there is for them.
#pragma once

#include <string>
#include <vector>

namespace lime::cli {

// Columns of stdout where it is a terminal, else 100.
int OutputColumns();

class TextTable {
 public:
  enum class Align { kLeft, kRight };

  explicit TextTable(std::vector<Align> columns) : columns_(std::move(columns)) {}

  // One cell for each column; UTF-8 is not counted in characters, so keep to ASCII.
  void AddRow(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  // Two spaces between columns, none at the end of a line. A cell of the column `wrapped` (-1: none) goes on in lines below where the table
  // would be wider than `width`, broken at its spaces.
  std::string Text(int width, int wrapped) const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

// `text` broken at spaces into lines of at most `width`; a word that is longer has a line of its own.
std::vector<std::string> Wrap(const std::string& text, int width);

}  // namespace lime::cli
