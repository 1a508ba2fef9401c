#include "coordinator/cli/text_stream.h"

#include <algorithm>

namespace lime::cli {
namespace {

// Of the text of one prompt, reserved so that nothing grows while tokens come: more than a tokenizer gives on average.
constexpr int64_t kBytesPerToken = 16;
constexpr int64_t kMaxReservedBytes = 16 * kMiB;

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, const GenerateOptions& options, size_t index, const std::vector<int32_t>& prompt)
    : options_(options), index_(index), detokenizer_(tokenizer), stop_strings_(options.stop_strings) {
  result_.prompt_tokens = static_cast<int64_t>(prompt.size());
  const int64_t max_new_tokens = options.MaxNewTokens(index);
  result_.token_ids.reserve(static_cast<size_t>(max_new_tokens));
  if (options.keep_times) result_.token_times.reserve(static_cast<size_t>(max_new_tokens));
  result_.text.reserve(static_cast<size_t>(std::min(max_new_tokens * kBytesPerToken, kMaxReservedBytes)));
  for (const int32_t token : prompt) detokenizer_.Push(token);  // the text goes on where the prompt ends
}

FinishReason TextStream::Take(int32_t token, FinishReason reason) {
  last_token_ = Clock::now();
  if (result_.token_ids.empty()) first_token_ = last_token_;
  result_.token_ids.push_back(token);
  if (options_.keep_times) result_.token_times.push_back(std::chrono::duration<double>(last_token_.time_since_epoch()).count());
  if (reason != FinishReason::kEndToken) Emit(detokenizer_.Push(token));
  return reason == FinishReason::kNone && stop_strings_.stopped() ? FinishReason::kStopped : reason;
}

void TextStream::Deliver(std::string_view text) {
  if (text.empty()) return;
  result_.text.append(text);
  if (options_.on_text) options_.on_text(index_, text);
}

void TextStream::Close(FinishReason reason, Clock::time_point start) {
  if (!stop_strings_.stopped()) {
    Emit(detokenizer_.Finish());
    Deliver(stop_strings_.Finish());
  }
  result_.finish = reason;
  if (result_.token_ids.empty()) return;
  result_.ttft_ms = Milliseconds(first_token_ - start);
  const int64_t later = static_cast<int64_t>(result_.token_ids.size()) - 1 - steps_left_out_;
  result_.ms_per_token = later > 0 ? Milliseconds(last_token_ - first_token_ - left_out_) / static_cast<double>(later) : 0;
}

void TextStream::LeaveOut(Clock::duration step) {
  left_out_ += step;
  ++steps_left_out_;
}

}  // namespace lime::cli
