// Text from files or stdin: prompts, texts to score, and the sequences of --batch-with. The
// sequences of --batch-with share the steps of a call, but they are not part of its answer and must
// not change a bit of it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime::cli {

// Refuses a stdin that is closed or a folder. REQUIRES: it will be read.
absl::Status CheckStdin();

// Refuses text that is not UTF-8, with the line and byte of the first error. `name` opens the
// sentence.
absl::Status CheckIsUtf8(std::string_view name, std::string_view text);

inline constexpr Bytes kMaxTextBytes = kGiB;  // of a text to score, or to calibrate with

// The text of the file that `flag` names, or of stdin if `path` is "-": UTF-8, without a byte order
// mark. Wrong calls: an unreadable file, a folder, text that is not UTF-8, more than `most` bytes.
absl::StatusOr<std::string> ReadUserText(std::string_view flag, const std::string& path, Bytes most);

// Replaces a prompt "-" by the text of stdin, without its last line end, and appends the prompts of
// `file`. Each line of it is a prompt: plain text, a JSON string, or {"prompt": string}; JSON may
// contain line breaks. `file` may be empty: none.
absl::Status ReadPrompts(const std::string& file, std::vector<std::string>& prompts);

// Cuts the ids of a text into windows: each has BOS, if there is one, and then the next ids, together at
// most `window`.  REQUIRES: window >= 2
std::vector<std::vector<int32_t>> CutIntoWindows(const std::vector<int32_t>& ids, std::optional<int32_t> bos, int64_t window);

// Ids like "1,2,3", each below `vocab`. An error is a wrong call; `where` opens its sentence.
absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view list, int64_t vocab, std::string_view where);

// One such list per line of the file that `flag` names, or of stdin: at least one, at most `most`.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadIdLists(std::string_view flag, const std::string& path, int64_t vocab, size_t most,
                                                              Bytes most_bytes);

// Those of --batch-with; empty without a `path`.
absl::StatusOr<std::vector<std::vector<int32_t>>> ReadCompanions(const std::string& path, int64_t vocab, size_t most);

}  // namespace lime::cli
