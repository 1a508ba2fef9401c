// GPT-2's reversible map from bytes to printable characters, as used in byte-level vocabularies.
#pragma once

#include <string>
#include <string_view>

namespace lime {

// The character that stands for `byte`, in UTF-8.
std::string_view ByteLevelChar(unsigned char byte);

// Replaces every byte of `text` by its character.
std::string ToByteLevel(std::string_view text);

// The bytes that the characters of `piece` stand for; `piece` itself if it has any other character.
std::string FromByteLevel(std::string_view piece);

}  // namespace lime
