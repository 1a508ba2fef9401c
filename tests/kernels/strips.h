// Single columns of matrices, as bundles have them: the weights of a column side by side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/cpu/linear/linear_columns.h"

namespace lime::cpu {

// Of rows with `bits` bits for each weight: column k as a little-endian bit stream, padded to whole
// uint32s.
inline std::vector<uint32_t> ColumnOf(const std::byte* data, int64_t rows, int64_t row_bytes, int64_t bits, int64_t k) {
  std::vector<uint32_t> column(static_cast<size_t>((rows * bits + 31) / 32));
  auto* const to_bytes = reinterpret_cast<std::byte*>(column.data());
  for (int64_t row = 0; row < rows; ++row) {
    if (const int64_t bytes = bits / 8; bits % 8 == 0) {
      std::memcpy(to_bytes + row * bytes, data + row * row_bytes + k * bytes, static_cast<size_t>(bytes));
      continue;
    }
    for (int64_t bit = 0; bit < bits; ++bit) {
      const int64_t from = k * bits + bit, to = row * bits + bit;
      const auto is_set = static_cast<uint32_t>(data[row * row_bytes + from / 8] >> (from % 8)) & 1U;
      column[static_cast<size_t>(to / 32)] |= is_set << (to % 32);
    }
  }
  return column;
}

inline std::vector<uint32_t> ColumnOf(const Matrix& m, int64_t k) {
  const int64_t bits = m.IsPacked() ? m.bits : 8 * ElementBytes(m.dtype);
  return ColumnOf(static_cast<const std::byte*>(m.data), m.rows, m.RowBytes(), bits, k);
}

// All columns of a matrix.
class ColumnsOf {
 public:
  explicit ColumnsOf(const Matrix& m) {
    for (int64_t k = 0; k < m.cols; ++k) columns_.push_back(ColumnOf(m, k));
  }
  const void* operator[](int64_t k) const { return columns_[static_cast<size_t>(k)].data(); }

 private:
  std::vector<std::vector<uint32_t>> columns_;
};

}  // namespace lime::cpu
