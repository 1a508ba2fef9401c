// Methods of strings, dicts and lists.
#pragma once

#include <span>

#include "coordinator/text/jinja/builtins/builtin.h"

namespace lime::jinja {

// Those of the value's type; none for other types.
std::span<const Builtin> MethodsOf(const Value& value);

std::span<const Builtin> StringMethods();

// text.format(...)
Value FormatBraces(Call& call);

}  // namespace lime::jinja
