// What values are called in files, flags and reports: a table, read both ways.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

namespace lime {

template <typename T, size_t kCount>
struct Names {
  std::pair<T, std::string_view> all[kCount];

  // "?" for a value that has none.
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
};

}  // namespace lime
