// The target of a request line: path and query.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "planner/base/status.h"

namespace lime {

struct HttpTarget {
  std::string path;
  std::vector<std::pair<std::string, std::string>> query;
  std::string authority;  // "" unless the target is a whole URL
};

// "/v1/models?limit=2", "http://host/path" or "*". %XX is decoded, in the query also "+".
// InvalidArgument for another form, a broken escape or a NUL. The path may have bytes that are not
// UTF-8, and is not normalised: "/a/../b" stays.
absl::StatusOr<HttpTarget> ParseTarget(std::string_view target);

}  // namespace lime
