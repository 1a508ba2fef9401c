// Text that a call names by a file or pipes in: prompts, texts to score, and the sequences of --batch-with, which share the steps of a call
// and are not part of its answer: no bit of that may change with them.
#pragma once

#include <cstdint>
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

// Ids like "1,2,3", each below `vocab`; `where` begins the sentence about what is wrong, which is a wrong call.
absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view list, int64_t vocab, std::string_view where);

// One such list a line, `most` lines at most; none without a `path`.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadCompanions(const std::string& path, int64_t vocab, size_t most);

}  // namespace lime::cli
