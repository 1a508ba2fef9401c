// Shorthand for making and returning a Status.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace lime {

// An InvalidArgument error for unusable input. The words together say what, where and why.
template <typename... What>
absl::Status Invalid(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat(what...));
}

}  // namespace lime

// Returns the status from the enclosing function unless it is OK.
#define LIME_RETURN_IF_ERROR(expr)                                                \
  do {                                                                            \
    if (absl::Status lime_status = (expr); !lime_status.ok()) return lime_status; \
  } while (0)

// LIME_ASSIGN_OR_RETURN(auto file, Open(path));
#define LIME_ASSIGN_OR_RETURN(lhs, expr) LIME_ASSIGN_OR_RETURN_IMPL(LIME_CONCAT(status_or_, __LINE__), lhs, expr)
#define LIME_ASSIGN_OR_RETURN_IMPL(result, lhs, expr) \
  auto result = (expr);                               \
  if (!result.ok()) return result.status();           \
  lhs = std::move(result).value()
#define LIME_CONCAT(a, b) LIME_CONCAT_IMPL(a, b)
#define LIME_CONCAT_IMPL(a, b) a##b
