// Names of character classes in Oniguruma's regular expressions, spelled out as ranges of code points.
#pragma once

#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

// `pattern` with \p{...}, \w, \s, \d, \b, [[:alpha:]] and their negations replaced by sets of unicode_data.h. Names that only Oniguruma
// knows stay, and a pattern whose options give classes another meaning (x, W, D, S, P, y) stays as it is. Says no to callouts.
absl::StatusOr<std::string> SpellOutClasses(std::string_view pattern);

}  // namespace lime
