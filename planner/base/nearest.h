// Finds the known word that a mistyped word probably means.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace lime {

// The candidate with the fewest typing errors, or one that begins with `word`; the first of equals.
// An error is a missing, extra or wrong letter, or two exchanged letters. Empty if more than a
// third of the letters are wrong in all candidates.
std::string Nearest(std::string_view word, std::span<const std::string> candidates);

// "; did you mean PREFIXnearest?", or nothing.
std::string DidYouMean(std::string_view word, std::span<const std::string> candidates, std::string_view prefix = "");

}  // namespace lime
