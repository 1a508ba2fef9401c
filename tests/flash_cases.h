// Cases of other people for sparse MLPs: ../shared/flash/cases.json, a list of objects. The README
// beside that file explains each kind.
//
//   LIME_SKIP_WITHOUT_SHARED(FlashCasesPath());
//   for (const nlohmann::json& test : FlashCases("window")) { SCOPED_TRACE(test["name"]); ... }
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/skips.h"

namespace lime {

inline std::filesystem::path FlashCasesPath() {
  return SharedDir() / "flash" / "cases.json";
}

// All cases of a kind. A test must have at least one.
inline std::vector<nlohmann::json> FlashCases(std::string_view kind) {
  std::ifstream file(FlashCasesPath());
  std::vector<nlohmann::json> cases;
  for (const nlohmann::json& one : nlohmann::json::parse(file)) {
    if (one["kind"] == kind) cases.push_back(one);
  }
  EXPECT_FALSE(cases.empty()) << kind;
  return cases;
}

// A case of the kind "dot": y = W x. All values are of bf16.
struct FlashDot {
  std::vector<std::vector<float>> rows;
  std::vector<float> x;
};

// The bits of a number of fp32, which the cases have in hex.
inline uint32_t FlashBits(const nlohmann::json& hex) {
  return static_cast<uint32_t>(std::stoul(hex.get<std::string>(), nullptr, 16));
}

inline std::vector<float> FlashFloats(const nlohmann::json& bits) {
  std::vector<float> values;
  for (const nlohmann::json& one : bits) values.push_back(std::bit_cast<float>(FlashBits(one)));
  return values;
}

// w and x by the formulas of the cases' README.
inline FlashDot FlashPattern(int64_t rows, int64_t cols, int64_t shift) {
  FlashDot out;
  for (int64_t r = 0; r < rows; ++r) {
    out.rows.emplace_back();
    for (int64_t k = 0; k < cols; ++k) {
      const auto factor = static_cast<float>((37 * r + 101 * k + shift) % 255 - 127);
      out.rows.back().push_back(std::ldexp(factor, static_cast<int>((7 * k + r) % 23 - 18)));
    }
  }
  for (int64_t k = 0; k < cols; ++k) {
    const int64_t h = (89 * k + 13 * shift) % 509;
    out.x.push_back(h % 16 == 0 ? std::ldexp(static_cast<float>(h % 251 + 1), static_cast<int>(h % 17 - 14)) : 0.0f);
  }
  return out;
}

inline FlashDot FlashDotOf(const nlohmann::json& test) {
  if (test.contains("shift")) return FlashPattern(test["rows"], test["cols"], test["shift"]);
  return {.rows = {FlashFloats(test["w"])}, .x = FlashFloats(test["x"])};
}

}  // namespace lime
