// Helpers of the text tests: they read the third-party files beside the project.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/text/tokenizer.h"
#include "tests/skips.h"

namespace lime {

inline std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<TokenizerJson> ReadJsonl(const std::filesystem::path& path) {
  std::vector<TokenizerJson> rows;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) rows.push_back(TokenizerJson::parse(line));
  return rows;
}

// A folder's tokenizer, loaded once for the whole program.
inline const Tokenizer& SharedTokenizer(const std::string& folder) {
  static auto& loaded = *new std::map<std::string, std::unique_ptr<Tokenizer>>;
  std::unique_ptr<Tokenizer>& tokenizer = loaded[folder];
  if (tokenizer == nullptr) {
    auto result = Tokenizer::Load((SharedDir() / folder).string());
    if (!result.ok()) ADD_FAILURE() << result.status();
    tokenizer = std::move(result).value();
  }
  return *tokenizer;
}

}  // namespace lime
