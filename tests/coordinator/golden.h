// A golden file of titled texts, to be read in review: tests/golden/NAME.
//
// A program that has one calls ReadGoldenFlag in main; with --update_golden it writes the files anew.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace lime {

inline bool update_golden = false;

inline void ReadGoldenFlag(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) update_golden |= std::string_view(argv[i]) == "--update_golden";
}

class Golden {
 public:
  explicit Golden(std::string_view name) : path_(std::string(LIME_SOURCE_DIR "/tests/golden/").append(name)) {}

  void Add(std::string_view title, std::string_view text) {
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", "# ", absl::string_view(title.data(), title.size()), "\n",
                    absl::string_view(text.data(), text.size()), text.ends_with('\n') ? "" : "\n");
  }
  void Expect() const {
    if (update_golden) {
      std::ofstream(path_) << text_;
      return;
    }
    std::ifstream file(path_);
    ASSERT_TRUE(file) << path_ << " is missing; run with --update_golden";
    std::stringstream golden;
    golden << file.rdbuf();
    EXPECT_EQ(text_, golden.str()) << "If this is meant, run with --update_golden and read the difference.";
  }

 private:
  const std::string path_;
  std::string text_;
};

}  // namespace lime
