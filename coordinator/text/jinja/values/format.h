// Python's formatting of one value, and its "%" on strings.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "coordinator/text/jinja/values/rendering.h"

namespace lime::jinja {

// Widths and precisions beyond this are errors.
inline constexpr int64_t kMaxFormatWidth = 10'000;

// What stands behind the colon of "{:>10.2f}".
struct FormatSpec {
  std::string fill = " ";
  char align = 0;  // '<', '>', '^', '=', or 0 for that of the type
  char sign = '-';
  bool alternate = false;
  char grouping = 0;  // ',' or '_'
  int64_t width = 0;
  int64_t precision = -1;  // -1: none
  char type = 0;           // 0: that of the value
};

// Errors are those of the rendering.
std::optional<FormatSpec> ParseFormatSpec(Rendering& rendering, std::string_view text);
std::string FormatValue(Rendering& rendering, const Value& value, const FormatSpec& spec);

// text % values: a tuple has one value for each place, a dict those with a name; another value is
// for the only place.
Value FormatPercent(Rendering& rendering, const Value& text, const Value& values);

// `text` filled up to `width` characters. `align`: '<', '>' or '^'.
std::string Padded(std::string_view text, int64_t width, std::string_view fill, char align);

}  // namespace lime::jinja
