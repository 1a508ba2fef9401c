// Whether a file of a model's folder is there, asked before one that may be missing is read.
#pragma once

#include <string>

#include "planner/base/status.h"

namespace lime {

// NotFound, saying where it leads, where `path` is a link to nothing, such as a hub's cache has of a download that broke off.
absl::Status RefuseDeadLink(const std::string& path);

// False where nothing has this name. What has it and is no file (a dead link, a folder, a pipe) is an error: taken for a missing file, it
// would leave another one in its place.
absl::StatusOr<bool> FindModelFile(const std::string& path);

}  // namespace lime
