// Text, sentences and progress on what is often one screen: text on stdout, the others on stderr.
#pragma once

#include <string>
#include <string_view>

namespace lime::cli {

// Columns of the terminal that stderr is; COLUMNS of the environment where the terminal does not say. 0: stderr is no terminal.
int ErrorColumns();

// The first `columns` characters of a line of UTF-8; the whole line where it has no more, or `columns` is 0.
std::string_view CutToColumns(std::string_view line, int columns);

// Knows whether generated text on stdout ends in the middle of a line, which a sentence on the same screen must not go on with.
//
// Thread: any; what is written by one call is not broken by another.
class Screen {
 public:
  // Writes generated text to stdout, at once.
  static void Text(std::string_view text);
  // "lime: SENTENCE" on a line of its own on stderr.
  static void Say(std::string_view sentence);
  // Whether progress on stderr would be drawn over text: both are one screen, and the text ends in the middle of a line.
  static bool InMidLine();
};

// A sentence with what has to come before it, where text on the same screen is `in_mid_line`.
std::string SentenceLine(std::string_view sentence, bool in_mid_line);

}  // namespace lime::cli
