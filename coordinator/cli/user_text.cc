#include "coordinator/cli/user_text.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <istream>
#include <sstream>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/input/command_line.h"
#include "coordinator/cli/command.h"
#include "coordinator/text/unicode/utf8.h"
#include "nlohmann/json.hpp"
#include "planner/base/foreign_file.h"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

constexpr Bytes kMaxPromptBytes = 64 * kMiB;
constexpr Bytes kMaxCompanionBytes = 64 * kMiB;
constexpr Bytes kMaxPromptsBytes = 512 * kMiB;
constexpr size_t kMaxPrompts = 100000;
constexpr std::string_view kStdin = "-";

// Reads at most one byte more than `most`.
std::string ReadUpTo(std::istream& in, Bytes most) {
  constexpr size_t kStep = 64 * kKiB;
  std::string text;
  while (in && static_cast<Bytes>(text.size()) <= most) {
    const size_t before = text.size(), step = std::min<size_t>(kStep, static_cast<size_t>(most) + 1 - before);
    text.resize(before + step);
    in.read(text.data() + before, static_cast<std::streamsize>(step));
    text.resize(before + static_cast<size_t>(in.gcount()));
    if (in.gcount() == 0) break;
  }
  return text;
}

void DropLineEnd(std::string& text) {
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
}

absl::StatusOr<std::string> ParsePromptLine(const std::string& line, std::string_view where) {
  using nlohmann::json;
  if (line.empty() || (line.front() != '"' && line.front() != '{')) return line;
  const absl::StatusOr<json> value = ParseJson(line, where, static_cast<Bytes>(line.size()));
  if (!value.ok() && line.front() == '"') return line;  // plain text in quotes, not JSON
  if (value.ok() && value->is_string()) return value->get<std::string>();
  if (value.ok() && value->is_object() && value->contains("prompt") && value->at("prompt").is_string()) return value->at("prompt");
  return WrongCall(absl::StrCat(Text(where), " is neither a JSON string nor an object with a string \"prompt\""));
}

absl::Status ReadPromptsFile(const std::string& path, std::vector<std::string>& prompts) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadUserText("--prompts-file", path, kMaxPromptsBytes));
  if (text.empty()) return WrongCall(absl::StrCat("--prompts-file ", path, " is empty; write one prompt a line"));
  size_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    begin = end + 1;
    if (++number > kMaxPrompts) return WrongCall(absl::StrCat("--prompts-file ", path, " has more than ", kMaxPrompts, " prompts"));
    LIME_ASSIGN_OR_RETURN(std::string prompt, ParsePromptLine(line, absl::StrCat("--prompts-file ", path, " line ", number)));
    prompts.push_back(std::move(prompt));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckStdin() {
  struct stat info = {};
  const bool readable = fstat(STDIN_FILENO, &info) == 0 && (S_ISREG(info.st_mode) || S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode) ||
                                                            S_ISSOCK(info.st_mode) || S_ISBLK(info.st_mode));
  return readable ? absl::OkStatus() : WrongCall("stdin is closed, or is not a file or a pipe; pipe the text into it");
}

absl::Status CheckIsUtf8(std::string_view name, std::string_view text) {
  if (const std::string_view wide = WideMark(text); !wide.empty())
    return WrongCall(absl::StrCat(Text(name), " is ", Text(wide), "; save it as UTF-8"));
  size_t line = 1, begin = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char next = DecodeUtf8(text.substr(at));
    if (!next.ok)
      return WrongCall(absl::StrCat(Text(name), " line ", line, " byte ", at - begin + 1, " is not UTF-8 (0x",
                                    absl::Hex(static_cast<unsigned char>(text[at]), absl::kZeroPad2), "); save it as UTF-8"));
    at += static_cast<size_t>(next.length);
    if (next.code == U'\n') ++line, begin = at;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadUserText(std::string_view flag, const std::string& path, Bytes most) {
  const std::string name = absl::StrCat(Text(flag), " ", AsTyped(path));
  const bool from_stdin = path == kStdin;
  if (from_stdin) LIME_RETURN_IF_ERROR(CheckStdin());
  std::error_code ignored;
  if (!from_stdin && std::filesystem::is_directory(path, ignored)) return WrongCall(absl::StrCat(name, " is a folder; name a file in it"));
  std::ifstream file;
  if (!from_stdin) file.open(path, std::ios::binary);
  if (!from_stdin && !file) return WrongCall(absl::StrCat(name, " cannot be read; check that it exists and that you may read it"));
  std::string text = ReadUpTo(from_stdin ? std::cin : file, most);
  if (file.bad() || (from_stdin && std::cin.bad())) return absl::UnavailableError(absl::StrCat(name, " cannot be read to its end"));
  if (static_cast<Bytes>(text.size()) > most) return WrongCall(absl::StrCat(name, " is larger than ", FormatBytes(most)));
  LIME_RETURN_IF_ERROR(CheckIsUtf8(name, text));
  if (text.starts_with("\xEF\xBB\xBF")) text.erase(0, 3);
  return text;
}

absl::Status ReadPrompts(const std::string& file, std::vector<std::string>& prompts) {
  const auto piped = std::ranges::count(prompts, kStdin) + (file == kStdin ? 1 : 0);
  if (piped > 1) return WrongCall("stdin can be read only once; give - to only one --prompt or to --prompts-file");
  for (std::string& prompt : prompts) {
    if (prompt != kStdin) continue;
    LIME_ASSIGN_OR_RETURN(prompt, ReadUserText("--prompt", prompt, kMaxPromptBytes));
    DropLineEnd(prompt);
  }
  return file.empty() ? absl::OkStatus() : ReadPromptsFile(file, prompts);
}

std::vector<std::vector<int32_t>> CutIntoWindows(const std::vector<int32_t>& ids, std::optional<int32_t> bos, int64_t window) {
  std::vector<std::vector<int32_t>> windows;
  const int64_t step = bos ? window - 1 : window;
  for (int64_t begin = 0; begin < static_cast<int64_t>(ids.size()); begin += step) {
    std::vector<int32_t>& here = windows.emplace_back();
    if (bos) here.push_back(*bos);
    here.insert(here.end(), ids.begin() + begin, ids.begin() + std::min<int64_t>(begin + step, static_cast<int64_t>(ids.size())));
  }
  return windows;
}

absl::StatusOr<std::vector<int32_t>> ParseIds(std::string_view list, int64_t vocab, std::string_view where) {
  std::vector<int32_t> ids;
  for (const auto& item : absl::StrSplit(Text(list), ',')) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(item, &id) || id < 0 || id >= vocab) {
      return WrongCall(
          absl::StrCat(Text(where), ": ", AsTyped(std::string(item)), " is not an id below ", vocab, "; write ids like 1,2,3"));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadIdLists(std::string_view flag, const std::string& path, int64_t vocab, size_t most,
                                                              Bytes most_bytes) {
  const std::string name = absl::StrCat(Text(flag), " ", path);
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadUserText(flag, path, most_bytes));
  if (text.empty()) return WrongCall(absl::StrCat(name, " is empty; write ids like 1,2,3, one sequence a line"));
  std::vector<std::vector<int32_t>> lists;
  std::istringstream file(text);
  for (std::string line; std::getline(file, line);) {
    if (lists.size() == most) return WrongCall(absl::StrCat(name, " has more than ", most, " lines"));
    LIME_ASSIGN_OR_RETURN(lists.emplace_back(), ParseIds(line, vocab, absl::StrCat(name, " line ", lists.size() + 1)));
  }
  return lists;
}

absl::StatusOr<std::vector<std::vector<int32_t>>> ReadCompanions(const std::string& path, int64_t vocab, size_t most) {
  if (path.empty()) return std::vector<std::vector<int32_t>>();
  return ReadIdLists("--batch-with", path, vocab, most, kMaxCompanionBytes);
}

}  // namespace lime::cli
