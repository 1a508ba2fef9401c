// What lies where a file of a model should, when a download or a copy went wrong; and text that is not in UTF-8.
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

// "UTF-16" or "UTF-32" of a text that begins with the byte order mark of one, as some editors and shells write it; else empty.
std::string_view WideMark(std::string_view text);

// The same, and of one without a mark whose first four bytes are two characters or one of ASCII, as those of JSON are.
std::string_view WideJson(std::string_view text);

}  // namespace lime
