// Filters and tests by their names.
#pragma once

#include <span>
#include <string_view>

#include "coordinator/text/jinja/builtins/builtin.h"

namespace lime::jinja {

// input|name(arguments). An error for a filter that does not exist.
Value ApplyFilter(Rendering& rendering, std::string_view name, const Value& input, const Arguments& arguments);

// input is name(arguments). An error for a test that does not exist.
bool ApplyTest(Rendering& rendering, std::string_view name, const Value& input, const Arguments& arguments);

bool HasFilter(std::string_view name);
bool HasTest(std::string_view name);

// The tables, by what the filters work on.
std::span<const Builtin> TextFilters();
std::span<const Builtin> NumberFilters();
std::span<const Builtin> CollectionFilters();

}  // namespace lime::jinja
