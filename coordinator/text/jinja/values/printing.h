// Values as text: Python's str() and repr(), and its json.dumps.
#pragma once

#include <optional>
#include <string>

#include "coordinator/text/jinja/values/rendering.h"

namespace lime::jinja {

// str(): what `{{ value }}` prints.
std::string TextOf(Rendering& rendering, const Value& value);
// The same, without a copy of a string. Lives as long as the rendering.
const std::string& ViewOf(Rendering& rendering, const Value& value);
// repr(): strings have quotes.
std::string ReprOf(Rendering& rendering, const Value& value);

// As the filter `tojson` of transformers: no escapes for HTML, non-ASCII characters as they are.
struct JsonStyle {
  bool ascii_only = false;
  std::optional<std::string> indent;  // of one level; without it, everything is in one line
  std::string between_items = ", ";
  std::string after_key = ": ";
  bool sort_keys = false;
};
std::string JsonOf(Rendering& rendering, const Value& value, const JsonStyle& style);

}  // namespace lime::jinja
