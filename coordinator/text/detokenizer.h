// Ids to text while they are being generated.
//
// Never gives half a character: bytes that may still become one are held back. All pieces and Finish() joined are
// Tokenizer::Decode of all ids. Time: linear in the bytes of the tokens. Allocates nothing after it was made, but for a token of
// kilobytes.
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

  // The text that `id` completes; often that of the token, sometimes none yet. Valid until the next call.
  std::string_view Push(int32_t id);

  // What was held back, broken characters as U+FFFD, and the front that strip rules were waiting for. Then starts afresh.
  std::string_view Finish();

 private:
  void Strip();
  std::string_view Emit(size_t length);

  const Tokenizer& tokenizer_;
  const DecodeOptions options_;
  bool first_ = true;        // no token has been decoded yet
  int64_t strips_left_ = 0;  // times the strip rule may still apply at the front
  std::string held_;         // bytes not yet given out
  std::string text_;         // what the last call returned
};

}  // namespace lime
