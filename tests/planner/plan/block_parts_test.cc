#include "planner/plan/model/block_parts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace lime {
namespace {

TensorSpec Tensor(TensorRole role, TensorPart part, std::vector<int64_t> shape, DType dtype) {
  Bytes bytes = ElementBytes(dtype);
  for (const int64_t n : shape) bytes *= n;
  return {role, part, "t", {dtype, std::move(shape), bytes}};
}

void Add(BlockSpec& block, TensorSpec tensor) {
  block.bytes += tensor.info.bytes;
  block.tensors.push_back(std::move(tensor));
}

BlockSpec DenseAttention(int64_t hidden, int64_t kv) {
  BlockSpec block{.id = {BlockKind::kAttention, 3}, .tensors = {}};
  Add(block, Tensor(TensorRole::kNorm, TensorPart::kWeight, {hidden}, DType::kBF16));
  Add(block, Tensor(TensorRole::kQ, TensorPart::kWeight, {hidden, hidden}, DType::kBF16));
  Add(block, Tensor(TensorRole::kQ, TensorPart::kBias, {hidden}, DType::kBF16));
  Add(block, Tensor(TensorRole::kK, TensorPart::kWeight, {kv, hidden}, DType::kBF16));
  Add(block, Tensor(TensorRole::kV, TensorPart::kWeight, {kv, hidden}, DType::kBF16));
  Add(block, Tensor(TensorRole::kO, TensorPart::kWeight, {hidden, hidden}, DType::kBF16));
  return block;
}

// Every row once, matrices in order of use, nothing longer than allowed.
void ExpectCovers(const BlockSpec& block, const std::vector<BlockPart>& parts, Bytes max_bytes) {
  std::vector<MatrixRows> expected, found;
  for (const TensorSpec& tensor : block.tensors) {
    if (!IsPinned(tensor) && tensor.part == TensorPart::kWeight) expected.push_back({tensor.role, 0, tensor.info.shape[0], tensor.expert});
  }
  Bytes bytes = 0;
  for (const BlockPart& part : parts) {
    EXPECT_FALSE(part.rows.empty());
    EXPECT_LE(part.bytes, max_bytes);
    bytes += part.bytes;
    for (const MatrixRows& rows : part.rows) {
      EXPECT_LT(rows.begin, rows.end);
      if (!found.empty() && found.back().role == rows.role && found.back().expert == rows.expert) {
        EXPECT_EQ(found.back().end, rows.begin);
        found.back().end = rows.end;
      } else {
        found.push_back(rows);
      }
    }
  }
  EXPECT_EQ(found, expected);
  EXPECT_EQ(bytes, block.bytes - PinnedBytes(block));
}

TEST(BlockPartsTest, ASmallBlockIsOnePiece) {
  const BlockSpec block = DenseAttention(256, 64);
  const std::vector<BlockPart> parts = CutBlock(block);
  ASSERT_EQ(parts.size(), 1u);
  EXPECT_EQ(parts[0].rows.size(), 4u);
  ExpectCovers(block, parts, kPartBytes);
}

TEST(BlockPartsTest, ALargeBlockIsCutEvenlyAlsoInsideAMatrix) {
  const BlockSpec block = DenseAttention(8192, 1024);  // q and o 128 MiB each, k and v 16 MiB
  const std::vector<BlockPart> parts = CutBlock(block);
  EXPECT_EQ(parts.size(), 20u) << "288 MiB in pieces of at most 16 MiB less a group of 1 MiB";
  for (const BlockPart& part : parts) EXPECT_GT(part.bytes, 13 * kMiB);
  ExpectCovers(block, parts, kPartBytes);
}

TEST(BlockPartsTest, PackedRowsBringTheirScalesAndBiases) {
  BlockSpec block{.id = {BlockKind::kHead, 0}, .tensors = {}};
  Add(block, Tensor(TensorRole::kNorm, TensorPart::kWeight, {4096}, DType::kBF16));
  Add(block, Tensor(TensorRole::kOutput, TensorPart::kWeight, {32001, 512}, DType::kU32));
  Add(block, Tensor(TensorRole::kOutput, TensorPart::kScales, {32001, 64}, DType::kBF16));
  Add(block, Tensor(TensorRole::kOutput, TensorPart::kGroupBiases, {32001, 64}, DType::kBF16));
  ExpectCovers(block, CutBlock(block), kPartBytes);
}

TEST(BlockPartsTest, CoversEveryRowOnceWhateverTheShapes) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 300; ++round) {
    const int64_t hidden = 64 * static_cast<int64_t>(1 + random() % 40);
    const BlockSpec block = DenseAttention(hidden, 1 + static_cast<int64_t>(random() % 500));
    const Bytes max_bytes = static_cast<Bytes>(random() % (4 * kMiB));
    ExpectCovers(block, CutBlock(block, max_bytes), std::max<Bytes>(max_bytes, 64 * hidden * 2));
  }
}

// A router, a shared expert, and experts of three matrices.
BlockSpec Experts(int32_t count, int64_t hidden, int64_t inner) {
  BlockSpec block{.id = {BlockKind::kExperts, 3}, .tensors = {}};
  Add(block, Tensor(TensorRole::kNorm, TensorPart::kWeight, {hidden}, DType::kBF16));
  Add(block, Tensor(TensorRole::kRouter, TensorPart::kWeight, {count, hidden}, DType::kBF16));
  Add(block, Tensor(TensorRole::kSharedScale, TensorPart::kWeight, {1, hidden}, DType::kBF16));
  Add(block, Tensor(TensorRole::kSharedUp, TensorPart::kWeight, {inner, hidden}, DType::kBF16));
  for (int32_t expert = 0; expert < count; ++expert) {
    for (TensorSpec tensor : {Tensor(TensorRole::kGate, TensorPart::kWeight, {inner, hidden}, DType::kBF16),
                              Tensor(TensorRole::kUp, TensorPart::kWeight, {inner, hidden}, DType::kBF16),
                              Tensor(TensorRole::kDown, TensorPart::kWeight, {hidden, inner}, DType::kBF16)}) {
      tensor.expert = expert;
      Add(block, std::move(tensor));
    }
  }
  return block;
}

// The first and the last expert of a part.
std::pair<int32_t, int32_t> ExpertsIn(const BlockPart& part) {
  return {part.rows.front().expert, part.rows.back().expert};
}

TEST(BlockPartsTest, ExpertsThatFitAreWholeAndApartFromTheRouter) {
  const BlockSpec block = Experts(10, 64, 32);  // of 12 KiB each
  std::vector<BlockPart> parts = CutBlock(block, 40 * kKiB);
  ExpectCovers(block, parts, 40 * kKiB);
  ASSERT_EQ(parts.size(), 5u);
  EXPECT_EQ(ExpertsIn(parts[0]), std::pair(-1, -1));
  EXPECT_EQ(ExpertsIn(parts[1]), std::pair(0, 1)) << "about equally many in each part";
  EXPECT_EQ(ExpertsIn(parts[2]), std::pair(2, 4));
  EXPECT_EQ(ExpertsIn(parts[4]), std::pair(7, 9));
  parts = CutBlock(block, 12 * kKiB);
  ExpectCovers(block, parts, 12 * kKiB);
  ASSERT_EQ(parts.size(), 11u);
  for (int32_t expert = 0; expert < 10; ++expert) EXPECT_EQ(ExpertsIn(parts[static_cast<size_t>(expert) + 1]), std::pair(expert, expert));
}

TEST(BlockPartsTest, ALargeExpertIsCutAndSharesNoPart) {
  const BlockSpec block = Experts(3, 512, 256);  // of 768 KiB each
  const std::vector<BlockPart> parts = CutBlock(block, 500 * kKiB);
  ExpectCovers(block, parts, 500 * kKiB);
  ASSERT_EQ(parts.size(), 7u);
  for (const BlockPart& part : parts) EXPECT_EQ(part.rows.front().expert, part.rows.back().expert);
}

TEST(BlockPartsTest, ExpertsAreCoveredWhateverTheSizes) {
  std::mt19937 random(7);
  for (int i = 0; i < 100; ++i) {
    const auto count = static_cast<int32_t>(1 + random() % 40);
    const BlockSpec block = Experts(count, 64 * static_cast<int64_t>(1 + random() % 4), 8 * static_cast<int64_t>(1 + random() % 60));
    const Bytes group = 64 * 512 * 2, max_bytes = group + static_cast<Bytes>(random() % (300 * kKiB));
    ExpectCovers(block, CutBlock(block, max_bytes), max_bytes);
  }
}

}  // namespace
}  // namespace lime
