// Parses a whole chat template.
#pragma once

#include <memory>
#include <string_view>

#include "coordinator/text/jinja/syntax/syntax.h"
#include "planner/base/status.h"

namespace lime::jinja {

// An error is a sentence with the line: what is wrong, what to do.
absl::StatusOr<std::unique_ptr<const Syntax>> Parse(std::string_view source);

}  // namespace lime::jinja
