// Bodies as JSON. A body is hostile: one pass bounds what it becomes.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "coordinator/api/api_error.h"
#include "coordinator/api/api_request.h"

namespace lime {

inline constexpr size_t kMaxBodyDepth = 64;
inline constexpr size_t kMaxObjectKeys = 4096;        // of one object
inline constexpr int64_t kMaxBodyValues = 1'000'000;  // of all objects and arrays

// The object that `body` is. Of equal keys in an object, the last one counts, in the place of the
// first.
// Errors: InvalidJson if it is no JSON in UTF-8 without surrogate halves, or beyond the bounds;
// InvalidType if it is no object.  Time: linear.
ApiResult<Json> ParseBody(std::string_view body);

// The same for text within a body. Nothing if it is not an object.
std::optional<Json> ParseJsonText(std::string_view text);

// "an object", "an integer", ...
std::string_view KindOf(const Json& value);

// Whether it is a number beyond all integers of 64 bits. Such an integer is read as a double.
bool IsBeyondIntegers(const Json& value);

}  // namespace lime
