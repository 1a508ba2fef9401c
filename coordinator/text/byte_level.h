// GPT-2's reversible map from bytes to printable characters: what stands in a byte-level vocabulary.
#pragma once

#include <string>
#include <string_view>

namespace lime {

// The character that stands for `byte`, in UTF-8.
std::string_view ByteLevelChar(unsigned char byte);

// Every byte of `text` replaced by its character.
std::string ToByteLevel(std::string_view text);

// The bytes that the characters of `piece` stand for; `piece` itself when it holds any other character.
std::string FromByteLevel(std::string_view piece);

}  // namespace lime
