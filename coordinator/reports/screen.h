// Text, sentences and progress on one screen: text goes to stdout, sentences and progress go to
// stderr.
#pragma once

#include <string>
#include <string_view>

namespace lime::cli {

// Width of the terminal at stderr, else COLUMNS. 0: stderr is not a terminal.
int ErrorColumns();

// The first `columns` characters of a UTF-8 line; all of it if it is shorter or `columns` is 0.
std::string_view CutToColumns(std::string_view line, int columns);

// Knows whether generated text on stdout ends in the middle of a line. A sentence on the same
// screen must then begin a new line.
//
// Thread: any; calls do not mix their output.
class Screen {
 public:
  // Writes generated text to stdout, at once.
  static void Text(std::string_view text);
  // "lime: SENTENCE" on a line of its own on stderr.
  static void Say(std::string_view sentence);
  // Whether progress on stderr would overwrite text: stdout and stderr are one screen, and the text
  // ends in the middle of a line.
  static bool InMidLine();
};

// A sentence, with a line break in front if text on the same screen is `in_mid_line`.
std::string SentenceLine(std::string_view sentence, bool in_mid_line);

}  // namespace lime::cli
