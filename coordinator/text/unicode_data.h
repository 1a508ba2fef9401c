// The properties of Unicode's characters, as sets of code points. The tables are generated from Debian's package unicode-data when
// the project is built.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace lime {

// Code points `first` to `last`, both included.
struct CodeRange {
  char32_t first = 0;
  char32_t last = 0;
};

// Sorted, disjoint and not adjacent. Lives as long as the program.
using CodeSet = std::span<const CodeRange>;

// A general category, a script, a binary property or a POSIX class, by any of its names: "Lu", "uppercase letter", "Latn", "Alphabetic",
// "Word". Case, spaces, hyphens and underscores do not count. Nothing for a name that Unicode does not have.
std::optional<CodeSet> FindCodeSet(std::string_view name);

// For names that exist.
CodeSet GetCodeSet(std::string_view name);

// Time: logarithmic in the number of ranges.
bool Contains(CodeSet set, char32_t code);

}  // namespace lime
