// Work in pieces that do not depend on each other: pure code says what they are, and whoever calls it how many
// threads share them.
#pragma once

#include <cstdint>
#include <functional>

namespace lime {

// Calls body(i) once for each i below `count`, in any order and on any threads. It may leave calls out if
// the caller does not want the result any more. Results are the same for any such function.
using ForEach = std::function<void(int64_t count, const std::function<void(int64_t i)>& body)>;

// One after another, on the thread of the caller.
inline void InTurn(int64_t count, const std::function<void(int64_t i)>& body) {
  for (int64_t i = 0; i < count; ++i) body(i);
}

}  // namespace lime
