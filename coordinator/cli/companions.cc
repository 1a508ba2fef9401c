#include "coordinator/cli/companions.h"

#include <sstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/user_text.h"
#include "planner/base/status.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

constexpr Bytes kMaxCompanionBytes = 64 * kMiB;

}  // namespace

absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view list, int64_t vocab, std::string_view where) {
  std::vector<int32_t> ids;
  for (const auto& item : absl::StrSplit(Text(list), ',')) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(item, &id) || id < 0 || id >= vocab) {
      return WrongCall(absl::StrCat(Text(where), ": \"", item, "\" is not an id below ", vocab, "; write ids like 1,2,3"));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadCompanions(const std::string& path, int64_t vocab, size_t most) {
  std::vector<std::vector<int32_t>> companions;
  if (path.empty()) return companions;
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadUserText("--batch-with", path, kMaxCompanionBytes));
  if (text.empty()) return WrongCall(absl::StrCat("--batch-with ", path, " is empty; write ids like 1,2,3, one sequence a line"));
  std::istringstream file(text);
  for (std::string line; std::getline(file, line);) {
    if (companions.size() == most) return WrongCall(absl::StrCat("--batch-with ", path, " has more than ", most, " lines"));
    LIME_ASSIGN_OR_RETURN(companions.emplace_back(),
                          ParseIds(line, vocab, absl::StrCat("--batch-with ", path, " line ", companions.size() + 1)));
  }
  return companions;
}

}  // namespace lime::cli
