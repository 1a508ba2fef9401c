// What lies where a file of a model should, when a download or a copy went wrong.
#pragma once

#include <string_view>

#include "planner/base/status.h"

namespace lime {

// InvalidArgument, naming the file and the remedy, where `beginning`, its first bytes, are those of
// a pointer (git-lfs, git-xet, git-annex), a web page, a GGUF file or a zip archive (PyTorch's own
// format). OK for everything else, which may still be wrong.
absl::Status RefuseForeignFile(std::string_view beginning, std::string_view name);

// The same for a file of numbers: InvalidArgument also where `beginning` is text, such as the error
// that a server answered with.
absl::Status RefuseTextFile(std::string_view beginning, std::string_view name);

// As much of a file as RefuseForeignFile looks at.
inline constexpr size_t kForeignFileBytes = 256;

}  // namespace lime
