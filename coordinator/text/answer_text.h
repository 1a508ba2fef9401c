// The text of one answer while its tokens arrive: without special tokens, in whole characters, and
// cut before a stop string.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_strings.h"

namespace lime {

// Owner: one generated sequence.   Allocates nothing after construction, except for a token of
// kilobytes.
class AnswerText {
 public:
  // The text continues the prompt. REQUIRES: `tokenizer` outlives this object.
  AnswerText(const Tokenizer& tokenizer, const std::vector<std::string>& stop_strings, std::span<const int32_t> prompt);

  // Text that is certain after `token`; may be empty. Valid until the next call.
  std::string_view Push(int32_t token) { return stop_strings_.Push(detokenizer_.Push(token)); }
  // The rest of the text. Valid until the next call.
  std::string_view Finish();
  // A stop string was found; the answer ends before it.
  bool stopped() const { return stop_strings_.stopped(); }

 private:
  StreamingDetokenizer detokenizer_;
  StopStrings stop_strings_;
  std::string rest_;
};

}  // namespace lime
