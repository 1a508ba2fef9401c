// Finds files in a model's folder, including optional ones.
#pragma once

#include <string>

#include "planner/base/status.h"

namespace lime {

// NotFound, with the target, if `path` is a link to nothing. A hub's cache has such links after an
// interrupted download.
absl::Status RefuseDeadLink(const std::string& path);

// False if nothing has this name. An error if it is not a file (a dead link, a folder, a pipe): if
// LIME took it for missing, another file would replace it.
absl::StatusOr<bool> FindModelFile(const std::string& path);

}  // namespace lime
