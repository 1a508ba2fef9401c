// Memory for masks on the device with the head. It is reserved before loading, as all memory is.
#pragma once

#include <cstddef>

#include "planner/base/bytes.h"

namespace lime::json_schema {

// Compiled formats of all requests that have not ended, each different one once. The coordinator
// refuses more.
inline constexpr Bytes kMaxHeldFormats = 8 * kMiB;
// Compiled formats of requests that have ended, for later ones.
inline constexpr Bytes kMaxKeptFormats = 2 * kMiB;
// A schema while it is compiled: the bounds of README.md.
inline constexpr Bytes kMaxCompiling = 8 * kMiB;

// All of these and the caches of masks, for a vocabulary of so many tokens, at most. Without the
// vocabulary itself (Vocabulary::memory).
Bytes MostMaskMemory(size_t tokens);

}  // namespace lime::json_schema
