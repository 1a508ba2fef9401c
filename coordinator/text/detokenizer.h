// Converts ids to text while they are being generated.
//
// Never returns part of a character: bytes that may still become one are held back. The joined
// results of Push and Finish() are Tokenizer::Decode of all ids. Time: linear in the bytes of the
// tokens. Allocates nothing after construction, except for a token of kilobytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "coordinator/text/tokenizer.h"

namespace lime {

// Owner: one generated sequence.
class StreamingDetokenizer {
 public:
  // REQUIRES: `tokenizer` outlives this object.
  explicit StreamingDetokenizer(const Tokenizer& tokenizer, const DecodeOptions& options = {});

  // The text that is complete with `id`: often the text of its token, sometimes none yet. Valid
  // until the next call.
  std::string_view Push(int32_t id);

  // The bytes that were held back, with broken characters as U+FFFD, and text that a strip rule has
  // not decided. Then starts a new text.
  std::string_view Finish();

 private:
  void Strip();
  std::string_view Emit(size_t length);

  const Tokenizer& tokenizer_;
  const DecodeOptions options_;
  bool first_ = true;        // no token was decoded yet
  int64_t strips_left_ = 0;  // how often the strip rule may still apply
  std::string held_;         // bytes not returned yet
  std::string text_;         // result of the last call
};

}  // namespace lime
