#include "common/input/flag_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/input/toml_file.h"
#include "planner/base/nearest.h"

namespace lime {
namespace {

using Kind = TomlNode::Kind;

std::string WhatItTakes(const CommandFlags::Known& flag) {
  const std::string one = flag.is_switch ? "true or false" : flag.is_number ? "a number" : "a text in quotes";
  return flag.repeats ? absl::StrCat(one, ", or a list of such values") : one;
}

// The value as a word of a call. Nothing if the flag does not take this kind.
std::optional<std::string> WordOf(const TomlNode& node, const CommandFlags::Known& flag) {
  switch (node.kind) {
    case Kind::kString:
      return flag.is_switch || flag.is_number ? std::nullopt : std::optional(node.text);
    case Kind::kInteger:
      return flag.is_switch ? std::nullopt : std::optional(absl::StrCat(node.number));
    case Kind::kReal:
      return flag.is_number ? std::optional(absl::StrFormat("%.17g", node.real)) : std::nullopt;
    case Kind::kBoolean:
      return flag.is_switch ? std::optional<std::string>("true") : std::nullopt;
    default:
      return std::nullopt;
  }
}

// Nothing if the flag does not take them.
std::optional<std::vector<std::string>> WordsOf(const TomlNode& node, const CommandFlags::Known& flag) {
  std::vector<std::string> words;
  const bool is_list = node.kind == Kind::kArray;
  if (is_list && !flag.repeats) return std::nullopt;
  const auto add = [&](const TomlNode& item) {
    const std::optional<std::string> word = WordOf(item, flag);
    if (word) words.push_back(*word);
    return word.has_value();
  };
  const bool all = is_list ? std::ranges::all_of(node.items, add) : add(node);
  return all ? std::optional(std::move(words)) : std::nullopt;
}

// Empty, the working directory, if the file is a pipe.
std::filesystem::path FolderOf(const std::filesystem::path& file) {
  std::error_code ignored;
  const bool is_pipe = std::filesystem::exists(file, ignored) && !std::filesystem::is_regular_file(file, ignored);
  return is_pipe ? std::filesystem::path() : file.parent_path();
}

}  // namespace

absl::Status ReadFlagText(const CommandFlags& command, std::string_view text, const std::string& file, std::span<const PathField> paths) {
  LIME_ASSIGN_OR_RETURN(const TomlNode root, ParseToml(text, file));
  std::vector<CommandFlags::Known> known = command.KnownFlags();
  std::erase_if(known, [](const CommandFlags::Known& flag) { return flag.name == "--config"; });
  for (const TomlNode& node : root.fields) {
    const auto wrong = [&](const auto&... what) { return WrongLine(file, node.line, "field \"", ShownToml(node.key), "\" ", what...); };
    const auto flag = std::ranges::find(known, "--" + node.key, &CommandFlags::Known::name);
    if (flag == known.end()) {
      std::vector<std::string> names;
      names.reserve(known.size());
      for (const CommandFlags::Known& each : known) names.push_back(each.name.substr(2));
      return wrong("is unknown", ThereAre(DidYouMean(node.key, names)), absl::StrJoin(names, ", "));
    }
    std::optional<std::vector<std::string>> words = WordsOf(node, *flag);
    if (!words) return wrong("is not ", WhatItTakes(*flag));
    if (command.Given(flag->name) || words->empty() || (node.kind == Kind::kBoolean && node.number == 0)) continue;
    if (const auto path = std::ranges::find(paths, node.key, &PathField::name); path != paths.end()) {
      for (std::string& word : *words) {
        if (!word.empty() && std::ranges::find(path->words, word) == path->words.end()) word = (FolderOf(file) / word).string();
      }
    }
    if (const absl::Status set = command.Set(flag->name, *words); !set.ok()) return wrong("is refused: ", std::string(set.message()));
  }
  return absl::OkStatus();
}

}  // namespace lime
