// A table of the names of values in files, flags and reports, for both directions.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace lime {

template <typename T, size_t kCount>
struct Names {
  std::pair<T, std::string_view> all[kCount];

  // "?" for a value without a name.
  constexpr std::string_view Of(T value) const {
    for (const auto& [known, name] : all) {
      if (known == value) return name;
    }
    return "?";
  }
  constexpr std::optional<T> Find(std::string_view name) const {
    for (const auto& [value, known] : all) {
      if (known == name) return value;
    }
    return std::nullopt;
  }
  // "is none of a, b and c", of any other name.
  std::string NoneOf() const {
    std::string text = kCount == 2 ? "is neither" : "is none of";
    for (size_t i = 0; i < kCount; ++i) {
      const bool last = i > 0 && i + 1 == kCount;
      text.append(last ? (kCount == 2 ? " nor " : " and ") : i > 0 ? ", " : " ").append(all[i].second);
    }
    return text;
  }
};

}  // namespace lime
