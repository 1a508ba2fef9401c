// One prompt on its way to text, wherever its tokens are computed.
#pragma once

#include <chrono>
#include <cstddef>
#include <string_view>
#include <vector>

#include "coordinator/cli/generate.h"
#include "coordinator/text/detokenizer.h"
#include "coordinator/text/stop_strings.h"

namespace lime::cli {

class TextStream {
 public:
  using Clock = std::chrono::steady_clock;

  // `index`: of the prompt, for options.on_text and how many tokens it may have: for what is usual of so many no memory is taken later.
  // REQUIRES: tokenizer and options outlive this.
  TextStream(const Tokenizer& tokenizer, const GenerateOptions& options, size_t index, const std::vector<int32_t>& prompt);

  // The next token, and whether the prompt ends with it for whoever schedules it. Answers whether, and why, it ends: maybe at a stop
  // string, which only the text knows of.
  FinishReason Take(int32_t token, FinishReason reason);
  // Hands out what was held back, and settles the figures, of which the first token's time counts from `start`.
  void Close(FinishReason reason, Clock::time_point start);

  // The step that ends with the next token was held up for something else: it does not count in ms_per_token.
  void LeaveOut(Clock::duration step);

  Generated& result() { return result_; }
  Clock::time_point first_token() const { return first_token_; }
  Clock::time_point last_token() const { return last_token_; }

 private:
  void Emit(std::string_view text) { Deliver(stop_strings_.Push(text)); }
  void Deliver(std::string_view text);

  const GenerateOptions& options_;
  const size_t index_;
  StreamingDetokenizer detokenizer_;
  StopStrings stop_strings_;
  Generated result_;
  Clock::time_point first_token_, last_token_;
  Clock::duration left_out_ = {};
  int64_t steps_left_out_ = 0;
};

inline double Milliseconds(TextStream::Clock::duration duration) {
  return std::chrono::duration<double, std::milli>(duration).count();
}

}  // namespace lime::cli
