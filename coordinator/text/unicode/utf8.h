// UTF-8: decoding with a defined result for broken input, and a cut for streamed output.
#pragma once

#include <string>
#include <string_view>

namespace lime {

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

// One step of decoding.
struct Utf8Char {
  char32_t code = 0;       // U+FFFD if the bytes are ill-formed
  int length = 0;          // bytes read; for ill-formed input, the maximal ill-formed part
  bool ok = false;         // well-formed
  bool truncated = false;  // ill-formed only because the text ends inside the character
};

// Decodes the character at the beginning of `text`. REQUIRES: !text.empty().
Utf8Char DecodeUtf8(std::string_view text);

void AppendUtf8(char32_t code, std::string& out);

// Whether all of `text` is well-formed.
bool IsUtf8(std::string_view text);

// Appends `text`, with every maximal ill-formed part replaced by U+FFFD (as Rust's from_utf8_lossy
// does).
void AppendLossyUtf8(std::string_view text, std::string& out);

// Appends `text`, with every byte of an ill-formed part replaced by U+FFFD (as SentencePiece does).
void AppendLossyUtf8ByByte(std::string_view text, std::string& out);

// The number of bytes at the end of `text` (0 to 3) that begin an incomplete character.
size_t IncompleteUtf8Suffix(std::string_view text);

}  // namespace lime
