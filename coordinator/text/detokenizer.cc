#include "coordinator/text/detokenizer.h"

#include "coordinator/text/unicode/utf8.h"

namespace lime {

// Several times the longest token of any known vocabulary.
constexpr size_t kReservedBytes = 1024;

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer& tokenizer, const DecodeOptions& options)
    : tokenizer_(tokenizer), options_(options), strips_left_(tokenizer.strip().count) {
  held_.reserve(kReservedBytes);
  text_.reserve(kReservedBytes);
}

std::string_view StreamingDetokenizer::Push(int32_t id) {
  if (tokenizer_.IdToText(id).empty() || (options_.skip_special && tokenizer_.IsSpecial(id))) return {};
  held_.append(tokenizer_.TokenBytes(id, first_));
  first_ = false;
  Strip();
  if (strips_left_ > 0) return {};
  return Emit(held_.size() - IncompleteUtf8Suffix(held_));
}

std::string_view StreamingDetokenizer::Finish() {
  const std::string_view text = Emit(held_.size());
  first_ = true;
  strips_left_ = tokenizer_.strip().count;
  return text;
}

// Applies the strip rule as far as the held bytes allow. Afterwards strips_left_ > 0 only if more
// bytes are needed to decide.
void StreamingDetokenizer::Strip() {
  const std::string& content = tokenizer_.strip().content;
  size_t stripped = 0;
  while (strips_left_ > 0 && std::string_view(held_).substr(stripped).starts_with(content)) {
    stripped += content.size();
    --strips_left_;
  }
  held_.erase(0, stripped);
  if (!content.starts_with(held_)) strips_left_ = 0;
}

// Returns the first `length` held bytes as text.
std::string_view StreamingDetokenizer::Emit(size_t length) {
  text_.clear();
  const std::string_view bytes = std::string_view(held_).substr(0, length);
  tokenizer_.replaces_by_byte() ? AppendLossyUtf8ByByte(bytes, text_) : AppendLossyUtf8(bytes, text_);
  held_.erase(0, length);
  return text_;
}

}  // namespace lime
