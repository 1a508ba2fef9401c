#include "daemon/weights/side_files.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "daemon/weights/files.h"

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
  std::error_code error;
  for (std::filesystem::directory_iterator at(dir, error), end; !error && at != end; at.increment(error)) {
    const std::filesystem::directory_entry& entry = *at;
    const std::string name = entry.path().filename().string();
    std::error_code ignored;
    if (entry.is_regular_file(ignored) && IsSideFile(name)) names.push_back(name);
  }
  if (error) return ErrnoStatus(error.value(), dir, "list the folder");
  std::ranges::sort(names);
  return names;
}

}  // namespace lime
