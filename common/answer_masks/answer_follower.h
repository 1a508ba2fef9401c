// Follows the generated tokens of one request by its format: where its answer begins, and where in
// the grammar it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/json_schema/answer_format.h"
#include "common/json_schema/matcher.h"

namespace lime::json_schema {

// A function of the tokens so far. Owner: one thread.
class AnswerFollower {
 public:
  explicit AnswerFollower(AnswerFormatPtr format);

  // The next token, as bytes. One that ends the answer has none.
  void Push(std::string_view token);

  // Null: any token may come next, because the answer has not begun, or is none of the format.
  const Matcher* matcher() const { return state_ == State::kAnswer ? &*matcher_ : nullptr; }

 private:
  enum class State : uint8_t {
    kStart,     // blanks, or the beginning of <think>
    kThinking,  // until </think>
    kContent,   // a start is looked for
    kAnswer,    // the matcher follows it
    kLost,      // a token came that no answer has: no mask any more
  };

  void Read(char byte, std::string_view behind);
  void ReadStart(char byte, std::string_view behind);
  void ReadThinking(char byte);
  void ReadContent(char byte, std::string_view behind);
  bool Begin(const AnswerStart& start, std::string_view behind);

  const AnswerFormatPtr format_;
  State state_ = State::kAnswer;
  std::optional<Matcher> matcher_;
  std::string seen_;          // the newest bytes, as many as count
  size_t content_bytes_ = 0;  // behind the blanks that it begins with
  SqueezedJson squeezed_;     // the content
};

}  // namespace lime::json_schema
