// Neurons copied from rows of matrices, against single elements, for every format of weights.
#include "daemon/weights/neuron_copy.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "planner/base/random.h"

namespace lime {
namespace {

std::vector<std::byte> RandomBytes(size_t count, Random& random) {
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random.Below(256));
  return bytes;
}

// Element `at` of a little-endian stream of bits.
uint32_t ElementOf(const std::byte* stream, int64_t at, int bits) {
  uint32_t element = 0;
  for (int bit = 0; bit < bits; ++bit) {
    const int64_t from = at * bits + bit;
    element |= (static_cast<uint32_t>(stream[from / 8]) >> (from % 8) & 1U) << bit;
  }
  return element;
}

TEST(NeuronCopyTest, ColumnsHaveTheElementsOfAllPieces) {
  Random random(1);
  for (const int bits : {3, 4, 6, 8, 16, 32}) {
    for (const auto& [rows, columns] : {std::pair<int64_t, int64_t>{64, 32}, {96, 160}, {224, 64}}) {
      SCOPED_TRACE(testing::Message() << bits << " bits, " << rows << " x " << columns);
      const Bytes row_bytes = columns * bits / 8, column_bytes = rows * bits / 8;
      const std::vector<std::byte> matrix = RandomBytes(static_cast<size_t>(rows * row_bytes), random);
      std::vector<int32_t> neurons;
      for (int32_t neuron = 0; neuron < columns; ++neuron) {
        if (neuron + 1 == columns || random.Below(3) == 0) neurons.push_back(neuron);
      }
      std::vector<std::vector<std::byte>> copies(neurons.size(), RandomBytes(static_cast<size_t>(column_bytes) + 4, random));
      const std::vector<std::byte> behind(copies[0].end() - 4, copies[0].end());
      std::vector<NeuronTarget> targets;
      for (size_t i = 0; i < neurons.size(); ++i) targets.push_back({.neuron = neurons[i], .memory = copies[i].data()});
      for (int64_t begin = 0; begin < rows; begin += 64) {
        const int64_t end = std::min(rows, begin + 64);
        // Memory of its own: a read behind the last row is an error that sanitizers find.
        const std::vector<std::byte> piece(matrix.begin() + begin * row_bytes, matrix.begin() + end * row_bytes);
        CopyNeuronColumns({.rows = piece.data(), .begin = begin, .end = end, .row_bytes = row_bytes}, bits, targets);
      }
      for (size_t i = 0; i < neurons.size(); ++i) {
        for (int64_t row = 0; row < rows; ++row)
          ASSERT_EQ(ElementOf(copies[i].data(), row, bits), ElementOf(matrix.data() + row * row_bytes, neurons[i], bits)) << row;
        ASSERT_TRUE(std::equal(behind.begin(), behind.end(), copies[i].end() - 4)) << "bytes behind the column are not touched";
      }
    }
  }
}

TEST(NeuronCopyTest, RowsComeFromThePieceThatHasThem) {
  Random random(2);
  const Bytes row_bytes = 36;
  const std::vector<std::byte> matrix = RandomBytes(100 * 36, random);
  std::vector<std::vector<std::byte>> copies(5, std::vector<std::byte>(36));
  std::vector<NeuronTarget> targets;
  for (size_t i = 0; i < copies.size(); ++i) targets.push_back({.neuron = static_cast<int32_t>(i) * 24, .memory = copies[i].data()});
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>(0, 24), {24, 25}, {25, 100}})
    CopyNeuronRows({.rows = matrix.data() + begin * row_bytes, .begin = begin, .end = end, .row_bytes = row_bytes}, targets);
  for (size_t i = 0; i < copies.size(); ++i)
    EXPECT_TRUE(std::equal(copies[i].begin(), copies[i].end(), matrix.begin() + static_cast<int64_t>(i) * 24 * row_bytes)) << i;
}

}  // namespace
}  // namespace lime
