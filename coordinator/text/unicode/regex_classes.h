// Spells out names of character classes in Oniguruma's regular expressions as ranges of code
// points.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

// Replaces \p{...}, \w, \s, \d, \b, [[:alpha:]] and their negations in `pattern` by sets of
// unicode_data.h. Keeps names that only Oniguruma knows. Keeps the whole pattern if its options
// give classes another meaning (x, W, D, S, P, y). An error for callouts.
absl::StatusOr<std::string> SpellOutClasses(std::string_view pattern);

}  // namespace lime
