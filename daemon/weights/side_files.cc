#include "daemon/weights/side_files.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/model_file.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr std::string_view kNeeded[] = {"added_tokens.json",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "generation_config.json",
                                        "merges.txt",
                                        "sentencepiece.bpe.model",
                                        "special_tokens_map.json",
                                        "spiece.model",
                                        "tekken.json",
                                        "tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer_config.json",
                                        "vocab.json",
                                        "vocab.txt"};

}  // namespace

bool IsSideFile(std::string_view name) {
  return std::ranges::find(kNeeded, name) != std::end(kNeeded);
}

absl::StatusOr<std::vector<std::string>> SideFiles(const std::string& dir) {
  std::vector<std::string> names;
  for (const std::string_view name : kNeeded) {
    LIME_ASSIGN_OR_RETURN(const bool is_here, FindModelFile(absl::StrCat(dir, "/", Text(name))));
    if (is_here) names.emplace_back(name);
  }
  return names;
}

}  // namespace lime
