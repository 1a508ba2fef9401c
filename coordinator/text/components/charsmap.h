// SentencePiece's precompiled_charsmap: the strings that its normalizer replaces, and their
// replacements. It is a Darts double array over the strings, then the replacements, each ended by a
// zero byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/status.h"

namespace lime {

// Immutable. Every step checks its bounds, since the bytes are hostile.
class Charsmap {
 public:
  // Empty bytes give a map without replacements.
  static absl::StatusOr<Charsmap> Parse(std::string_view bytes);

  struct Match {
    size_t length = 0;  // bytes of text to replace; 0: none
    std::string_view replacement;
  };

  // The longest string of the map that `text` begins with.
  Match LongestPrefix(std::string_view text) const;

  // The shortest string of the map that `text` begins with.
  Match ShortestPrefix(std::string_view text) const;

 private:
  Match Find(std::string_view text, bool longest) const;
  std::string_view Replacement(uint32_t offset) const;

  std::vector<uint32_t> units_;
  std::string replacements_;
};

}  // namespace lime
