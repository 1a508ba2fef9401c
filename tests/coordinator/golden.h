// A golden file of titled texts, to be read in review: tests/golden/NAME.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "tests/golden_file.h"

namespace lime {

class Golden {
 public:
  explicit Golden(std::string_view name) : name_(name) {}

  void Add(std::string_view title, std::string_view text) {
    absl::StrAppend(&text_, text_.empty() ? "" : "\n", "# ", absl::string_view(title.data(), title.size()), "\n",
                    absl::string_view(text.data(), text.size()), text.ends_with('\n') ? "" : "\n");
  }
  void Expect() const { ExpectGolden(name_, text_); }

 private:
  const std::string name_;
  std::string text_;
};

}  // namespace lime
