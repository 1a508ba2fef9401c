// Sizes in bytes: constants, parsing of "2GiB", and formatting for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "planner/base/status.h"

namespace lime {

using Bytes = int64_t;

inline constexpr Bytes kKiB = 1024;
inline constexpr Bytes kMiB = 1024 * kKiB;
inline constexpr Bytes kGiB = 1024 * kMiB;

// Rounds `value` up to a multiple of `unit`. REQUIRES: value >= 0, unit > 0, no overflow.
constexpr int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

// Converts to millions of bytes, the planner's unit.
constexpr double Mb(Bytes bytes) {
  return static_cast<double>(bytes) / 1e6;
}

// Parses "1500000", "512MiB", "2GiB", "1.5GB". KB, MB, GB, TB are powers of 1000; KiB, MiB, GiB,
// TiB and K, M, G, T are powers of 1024.
absl::StatusOr<Bytes> ParseBytes(std::string_view text);

// "1.50 GiB", "12 B".
std::string FormatBytes(Bytes bytes);

}  // namespace lime
