#include "daemon/kv/weights_handover.h"

#include <memory>

#include "gtest/gtest.h"

namespace lime {
namespace {

LoadedBlock Block(BlockId id, Bytes bytes) {
  return {.id = id, .tensors = {{.bytes = bytes}, {.bytes = 1}}, .storage = std::make_shared<int>(0)};
}

PlanPart Part(BlockId id, int64_t begin) {
  return {.block = id, .rows = {{.role = TensorRole::kQ, .begin = begin, .end = begin + 8}}};
}

TEST(WeightsHandoverTest, WhatStaysIsThereOnceAndTheRestIsFreed) {
  const BlockId attention = {BlockKind::kAttention, 3}, mlp = {BlockKind::kMlp, 3}, head = {BlockKind::kHead, 0};
  WeightsHandover handover("/model");
  LoadedBlock block = Block(attention, 100);
  const std::weak_ptr<const void> freed = block.storage;
  handover.Add(std::move(block));
  handover.Add(Block(mlp, 200));
  for (const int64_t begin : {0, 8}) handover.Add(Part(head, begin), *HugeBuffer::Allocate(4096));
  EXPECT_EQ(handover.bytes(), 101 + 201 + 2 * 4096);
  const PlanPart first = Part(head, 0), other = Part(head, 4);
  handover.RetainOnly({mlp}, {&first, &other});
  EXPECT_TRUE(freed.expired());
  EXPECT_EQ(handover.bytes(), 201 + 4096);
  EXPECT_FALSE(handover.Claim(attention));
  EXPECT_FALSE(handover.Claim(other));
  EXPECT_FALSE(handover.Claim(Part(head, 8)));
  ASSERT_TRUE(handover.Claim(mlp));
  EXPECT_FALSE(handover.Claim(mlp));
  ASSERT_TRUE(handover.Claim(first));
  EXPECT_EQ(handover.bytes(), 0);
}

}  // namespace
}  // namespace lime
