// Golden files: texts below tests/golden, to be read in review.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

namespace lime {

// Whether ExpectGolden writes the files anew: main of all tests sets it for --update_golden.
inline bool update_golden = false;

// Expects that tests/golden/`name` has this text; with --update_golden, writes it there instead.
inline void ExpectGolden(const std::string& name, const std::string& text) {
  const std::string path = LIME_SOURCE_DIR "/tests/golden/" + name;
  if (update_golden) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing; run with --update_golden";
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str()) << "If this is meant, run with --update_golden and read the difference.";
}

}  // namespace lime
