// Text that a call names by a file or pipes in: prompts, texts to score.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime::cli {

// Refuses a stdin that is closed or a folder. REQUIRES: it is to be read.
absl::Status CheckStdin();

// Refuses text that is no UTF-8, with the line and byte where that begins. `name` opens the sentence.
absl::Status CheckIsUtf8(std::string_view name, std::string_view text);

// The text of the file that `flag` names, or of stdin where `path` is "-": UTF-8, without a byte
// order mark. What cannot be read is a wrong call, as are folders, what is no UTF-8, and more than `most` bytes.
absl::StatusOr<std::string> ReadUserText(std::string_view flag, const std::string& path, Bytes most);

// Replaces a prompt "-" by the text of stdin, without the end of its last line, and appends the
// prompts of `file`: one a line, as it is or as a JSON string or {"prompt": string}, which may hold
// line breaks. `file` may be empty: none.
absl::Status ReadPrompts(const std::string& file, std::vector<std::string>& prompts);

}  // namespace lime::cli
