// A hostile pattern and a text for it: the input is the pattern, a byte 1, and the text.
#include <cstdlib>

#include "coordinator/text/unicode/regex.h"
#include "coordinator/text/unicode/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), std::min<size_t>(size, 4096));
  const size_t end = std::min(input.find('\1'), input.size());
  const auto regex = lime::Regex::Compile(input.substr(0, end));
  if (!regex.ok()) return 0;
  std::string text;
  lime::AppendLossyUtf8(input.substr(std::min(end + 1, input.size())), text);
  std::vector<lime::TextRange> matches;
  if (!regex->FindAll(text, matches).ok()) return 0;
  size_t done = 0;
  for (const lime::TextRange& match : matches) {
    if (match.begin < done || match.end < match.begin || match.end > text.size()) std::abort();
    done = match.end;
  }
  return 0;
}
