// Recognises other files in the place of a model's file, after a failed download or copy; and text
// that is not UTF-8.
#pragma once

#include <string_view>

#include "planner/base/status.h"

namespace lime {

// InvalidArgument with the file and the remedy if `beginning`, its first bytes, are a pointer
// (git-lfs, git-xet, git-annex), a web page, XML, a GGUF file or a zip archive (PyTorch's own
// format). OK for any other file, even if it is wrong.
absl::Status RefuseForeignFile(std::string_view beginning, std::string_view name);

// The same for a file of numbers. InvalidArgument also for text, such as a server's error message.
absl::Status RefuseTextFile(std::string_view beginning, std::string_view name);

// The number of bytes that RefuseForeignFile reads.
inline constexpr size_t kForeignFileBytes = 256;

// "UTF-16" or "UTF-32" for text with the byte order mark that some editors and shells write; else
// empty.
std::string_view WideMark(std::string_view text);

// The same, also without a mark if the first four bytes are one or two ASCII characters, as in
// JSON.
std::string_view WideJson(std::string_view text);

}  // namespace lime
