// The text of one answer while its tokens come: without special tokens, whole characters alone, and cut before a stop string.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_strings.h"

namespace lime {

// Owner: one generated sequence.   Allocates nothing after it was made, but for a token of kilobytes.
class AnswerText {
 public:
  // The text goes on where the prompt ends.  REQUIRES: `tokenizer` outlives this
  AnswerText(const Tokenizer& tokenizer, const std::vector<std::string>& stop_strings, std::span<const int32_t> prompt);

  // The text that has become certain with `token`, sometimes none. Valid until the next call.
  std::string_view Push(int32_t token) { return stop_strings_.Push(detokenizer_.Push(token)); }
  // What was held back. Valid until the next call.
  std::string_view Finish();
  // A stop string has come: the answer ends before it.
  bool stopped() const { return stop_strings_.stopped(); }

 private:
  StreamingDetokenizer detokenizer_;
  StopStrings stop_strings_;
  std::string rest_;
};

}  // namespace lime
