// The properties of Unicode characters, as sets of code points. The build generates the tables from
// Debian's package unicode-data.
#pragma once

#include <optional>
#include <span>
#include <string_view>

namespace lime {

// Code points from `first` to `last`, both included.
struct CodeRange {
  char32_t first = 0;
  char32_t last = 0;
};

// Sorted, disjoint and not adjacent. Lives as long as the program.
using CodeSet = std::span<const CodeRange>;

// The set of a general category, script, binary property or POSIX class, by any of its names: "Lu",
// "uppercase letter", "Latn", "Alphabetic", "Word". Ignores case, spaces, hyphens and underscores.
// Returns nothing for a name that Unicode does not have.
std::optional<CodeSet> FindCodeSet(std::string_view name);

// The same. REQUIRES: the name exists.
CodeSet GetCodeSet(std::string_view name);

// Time: logarithmic in the number of ranges.
bool Contains(CodeSet set, char32_t code);

}  // namespace lime
