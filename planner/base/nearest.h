// The known word that a mistyped one was probably meant to be.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lime {

// The candidate with the fewest typing slips (a letter more, less, other, or two exchanged), or one
// that `word` begins; the first of equals. Empty where none is near: a third of the letters may
// differ.
std::string Nearest(std::string_view word, std::span<const std::string> candidates);

// "; did you mean PREFIXnearest?", or nothing.
std::string DidYouMean(std::string_view word, std::span<const std::string> candidates, std::string_view prefix = "");

}  // namespace lime
