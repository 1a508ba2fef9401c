// What a change from one plan to another takes, on devices that are described by hand.
#include "coordinator/planning/change_costs.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

constexpr double kMegabit = 125'000;

// A model of three blocks: a has the first and the last, b the second. The link between them is
// known, and none to c.
class ChangeCostsTest : public ::testing::Test {
 protected:
  ChangeCostsTest() {
    for (const std::string name : {"a", "b", "c"})
      inputs_.devices.push_back({.name = name, .profile = {.read_bytes_per_second = 1e9, .flops = 1e10, .block_overhead_ms = 0.5}});
    inputs_.devices[0].profile.links = {{.peer = "b", .bytes_per_second = 200 * kMegabit, .latency_ms = 1}};
    inputs_.spec.config.layers.resize(3);  // whose time does not depend on the context
    for (int32_t layer = 0; layer < 3; ++layer) inputs_.spec.blocks.push_back({.id = {BlockKind::kAttention, layer}, .tensors = {}});
    inputs_.request.default_link = {.bytes_per_second = 50 * kMegabit, .latency_ms = 2};
    plan_.batch = 1;
    plan_.devices = {{.name = "b", .disk_mb_per_ms = 0.2, .disk_lat_ms = 0.1}, {.name = "a", .disk_mb_per_ms = 0.4, .disk_lat_ms = 0.2}};
    plan_.parts = {{.decode_ms = 10}, {.decode_ms = 20}, {.decode_ms = 30}};
    for (int32_t layer = 0; layer < 3; ++layer) plan_.parts[static_cast<size_t>(layer)].block = {BlockKind::kAttention, layer};
    plan_.stages = {{.device = 1, .lo = 0, .hi = 1}, {.device = 0, .lo = 1, .hi = 2}, {.device = 1, .lo = 2, .hi = 3}};
  }

  PlanInputs inputs_;
  Plan plan_;
};

TEST_F(ChangeCostsTest, KvGoesOnWhereMemoryHasRoomForBothPools) {
  plan_.page_bytes = 1000;
  for (PlanDevice& device : plan_.devices) device.kv_pages = 20, device.memory.kv = 20'000, device.budget = 100'000 + TakeoverBytes(plan_);
  EXPECT_TRUE(TakesOver(plan_, plan_, 10));
  EXPECT_FALSE(TakesOver(plan_, plan_, 11)) << "of a's two layers";
  plan_.context = 1024, plan_.sequences = 1;
  EXPECT_EQ(MostPages(plan_, plan_), 10);
  Plan after = plan_;
  after.devices[0].budget = 39'999 + TakeoverBytes(plan_);
  EXPECT_FALSE(TakesOver(plan_, after, 10));
  after.devices[0].name = "new";
  EXPECT_TRUE(TakesOver(plan_, after, 10)) << "it had no pool";
  after = plan_, after.devices[1].numerics_id = "other";
  EXPECT_FALSE(TakesOver(plan_, after, 10));
  Plan hybrid = plan_;
  hybrid.parts[1].block.kind = BlockKind::kLinearAttention;
  EXPECT_TRUE(TakesOver(hybrid, hybrid, 10)) << "states go on";
  Plan other = hybrid;
  other.devices[0].numerics_id = "other";
  EXPECT_FALSE(TakesOver(hybrid, other, 10)) << "b computes the states alone";
  hybrid.devices[0].memory.state = 40'001;
  EXPECT_FALSE(TakesOver(hybrid, hybrid, 10)) << "two times its states, and its pages";
  hybrid.devices[0].memory.state = 0;
  Plan hosted = hybrid;
  hosted.context = 1024, hosted.sequences = 1;
  hosted.devices[0].max_layer_pages = 5, hosted.devices[0].kv_host = 1;
  EXPECT_FALSE(TakesOver(hosted, hybrid, 1)) << "states go from no plan that lends KV";
  // What a host has of it goes on, too, and what goes to a disk needs no room in memory.
  Plan lends = plan_;
  lends.context = 1024, lends.sequences = 1;
  lends.devices[0].max_layer_pages = 5, lends.devices[0].kv_host = 1, lends.devices[1].memory.hosted = 60'000;
  EXPECT_TRUE(TakesOver(lends, plan_, 10));
  lends.devices[1].memory.hosted = 60'001;
  EXPECT_FALSE(TakesOver(lends, plan_, 10));
  lends.devices[0].max_layer_pages = 10;
  EXPECT_TRUE(TakesOver(lends, plan_, 10)) << "nothing is lent yet";
  Plan spills = plan_;
  spills.devices[0].max_layer_pages = 5, spills.devices[0].kv_pages = 5;
  for (PlanPart& part : spills.parts) part.kv_pages = 10;
  EXPECT_TRUE(TakesOver(plan_, spills, 10));
  EXPECT_FALSE(TakesOver(plan_, spills, 11)) << "at its first level";
}

TEST_F(ChangeCostsTest, KvGoesOnWhereDisksHaveRoomForBothFiles) {
  plan_.page_bytes = 1000, plan_.context = 1024, plan_.sequences = 1;
  for (PlanDevice& device : plan_.devices) device.kv_pages = 20, device.memory.kv = 20'000, device.budget = 100'000 + TakeoverBytes(plan_);
  Plan spills = plan_;  // a's two layers, four pieces of each
  spills.devices[1].max_layer_pages = 10;
  for (PlanPart& part : spills.parts) part.kv_pages = 10;
  const Bytes needed = KvOnDiskBytes(spills, 1);
  EXPECT_EQ(needed, 2 * 4 * 16 * kKiB);
  EXPECT_TRUE(TakesOver(plan_, spills, 10)) << "nobody says what is free";
  EXPECT_TRUE(TakesOver(plan_, spills, 10, {{"a", needed}, {"b", 0}}));
  EXPECT_FALSE(TakesOver(plan_, spills, 10, {{"a", needed - 1}}));
  EXPECT_EQ(MostPages(plan_, spills, {{"a", needed}}), 10);
  EXPECT_TRUE(CheckKvRoom(plan_, spills, {{"a", needed}, {"b", 0}}).ok());
  EXPECT_EQ(CheckKvRoom(plan_, spills, {{"a", needed - 1}}).message(),
            "KV that does not fit in the memory of device \"a\" may need 131072 bytes of its disk, which has room for 131071");
  // Where the plan before has a file, too, its place comes free before KV is computed again, and
  // not before it is taken over.
  EXPECT_TRUE(CheckKvRoom(spills, spills, {{"a", 0}}).ok());
  EXPECT_FALSE(CheckKvRoom(spills, spills, {{"a", -1}}).ok()) << "others have taken it";
  EXPECT_FALSE(TakesOver(spills, spills, 10, {{"a", needed - 1}}));
  EXPECT_TRUE(TakesOver(spills, spills, 10, {{"a", needed}}));
}

TEST_F(ChangeCostsTest, KvIsComputedAgainAsAPrompt) {
  plan_.predicted.ms_per_step = 70;
  EXPECT_EQ(ComputeAgainMs(inputs_, plan_, 10), 700) << "a plan without prompts computes a position in a step";
  plan_.context = 4096, plan_.prompt_tokens = 64, plan_.prefill_chunk = 32, plan_.predicted.ttft_ms = 500;
  EXPECT_EQ(ComputeAgainMs(inputs_, plan_, 64), 500);
  EXPECT_EQ(ComputeAgainMs(inputs_, plan_, 1), 500) << "a chunk takes its time";
  EXPECT_EQ(ComputeAgainMs(inputs_, plan_, 64, 10), 500 + 10 * 70) << "a step for each position that wants logits";
  plan_.chunks_per_sweep = 0;  // which cannot be simulated: in proportion, at the rate of the last
  EXPECT_GE(ComputeAgainMs(inputs_, plan_, 640), 5000);
}

TEST_F(ChangeCostsTest, WhatStaysInMemoryIsNotRead) {
  for (int32_t p = 0; p < 3; ++p) plan_.parts[p].bytes = 9'000'000, plan_.parts[p].pinned_bytes = 1'000'000;
  for (PlanDevice& device : plan_.devices) device.budget = 100'000'000;
  const auto ms = [&](const Plan& after) { return ReadWeightsMs(inputs_.spec, after, &plan_); };
  EXPECT_DOUBLE_EQ(ms(plan_), 0);
  EXPECT_DOUBLE_EQ(ReadWeightsMs(inputs_.spec, plan_), 50) << "a has 20 MB, b 10 and a disk half as fast";
  Plan after = plan_;
  after.stages[1].device = 1;
  EXPECT_DOUBLE_EQ(ms(after), 25) << "b's block is a's now";
  EXPECT_DOUBLE_EQ(ReadWeightsMs(inputs_.spec, after), 75);
  after.parts[1].streamed = true;
  EXPECT_DOUBLE_EQ(ms(after), 2.5) << "but for what is never cut";
  after = plan_, after.devices[1].disk_mb_per_ms = 0.1;
  for (Stage& stage : after.stages) stage.device = 1;
  EXPECT_DOUBLE_EQ(ms(after), 100) << "from a disk that has become slower";
  after = plan_, after.embedding_bytes = 6'000'000, after.embedding_pinned_bytes = 2'000'000;
  EXPECT_DOUBLE_EQ(ms(after), 0) << "a has the embedding as before";
  after.embedding = EmbeddingPlacement::kByRows;
  EXPECT_DOUBLE_EQ(ms(after), 5);
  after.embedding = EmbeddingPlacement::kResident, inputs_.spec.config.tie_embeddings = true;
  EXPECT_DOUBLE_EQ(ms(after), 20) << "where it is the head, too, it is read again";
  // What has no room beside the KV of both plans goes, and is read again.
  inputs_.spec.config.tie_embeddings = false;
  after = plan_, after.devices[1].memory.kv = 98'000'000 - 20'000'000 - TakeoverBytes(plan_);
  EXPECT_DOUBLE_EQ(ms(after), 0);
  ++after.devices[1].memory.kv;
  EXPECT_DOUBLE_EQ(ms(after), 50);
}

// A plan whose KV grows has parts that may come to stream, each with memory of its own; one whose
// KV is all there has blocks.
TEST_F(ChangeCostsTest, BlocksAndPartsDoNotReplaceEachOther) {
  plan_.page_bytes = 1000, plan_.context = 1024, plan_.sequences = 1;
  for (PlanPart& part : plan_.parts) part.bytes = 10'000'000, part.kv_pages = FullLayerPages(plan_);
  for (PlanDevice& device : plan_.devices) device.budget = 100'000'000;
  Plan grows = plan_;
  for (PlanPart& part : grows.parts) part.kv_pages = 10;
  ASSERT_TRUE(GrowsKv(grows) && !GrowsKv(plan_));
  EXPECT_DOUBLE_EQ(ReadWeightsMs(inputs_.spec, plan_, &plan_), 0);
  EXPECT_DOUBLE_EQ(ReadWeightsMs(inputs_.spec, grows, &grows), 0);
  EXPECT_DOUBLE_EQ(ReadWeightsMs(inputs_.spec, plan_, &grows), 50);
  EXPECT_DOUBLE_EQ(ReadWeightsMs(inputs_.spec, grows, &plan_), 50);
  grows.parts[0].streamed = true;  // at a later level
  Plan after = grows;
  after.parts[0].streamed = false;
  EXPECT_DOUBLE_EQ(ReadWeightsMs(inputs_.spec, after, &grows), 25);
}

TEST_F(ChangeCostsTest, KvTravelsAsFastAsTheSlowestDevice) {
  plan_.page_bytes = kPageTokens * 1000, plan_.sequences = 2;
  const double copied = 2000 / 1e6, a_to_b = 2000 / (200 * kMegabit) * 1000, unknown = 2000 / (50 * kMegabit) * 1000;
  // Layers 0 and 2 are a's, 1 is b's.
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, plan_, plan_).position_ms, 2 * copied);
  EXPECT_EQ(MoveKv(inputs_, plan_, plan_).fixed_ms, 0);
  Plan after = plan_;
  for (Stage& stage : after.stages) stage.device = 0;
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, plan_, after).position_ms, 2 * a_to_b + copied) << "two layers go to b";
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, plan_, after).fixed_ms, 2 * 1 + (8 + 2 * 4) * 1) << "two calls, over a link of 1 ms";
  // States do not grow: a's layer 2 has 5 MB of them, for all slots.
  Plan states = plan_;
  states.parts[2].block.kind = BlockKind::kLinearAttention, states.parts[2].state_bytes = 5'000'000;
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, states, states).fixed_ms, 5) << "a copy";
  after.parts = states.parts;
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, states, after).fixed_ms, 2 * 1 + (8 + 2 * 4) * 1 + 5e6 / (200 * kMegabit) * 1000);
  after.parts = plan_.parts;
  // What one gives to several goes out of it one after another.
  Plan apart = plan_;
  apart.devices.push_back({.name = "c"});
  apart.stages = {{.device = 0, .lo = 0, .hi = 1}, {.device = 2, .lo = 1, .hi = 3}};
  Plan alone = apart;
  alone.stages = {{.device = 1, .lo = 0, .hi = 3}};
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, alone, apart).position_ms, a_to_b + 2 * unknown);
  // What a's host had of its layers comes by the slowest way there is: from a to b, and from c to
  // b, of which nothing is known.
  Plan lends = plan_;
  lends.devices.push_back({.name = "c"});
  lends.devices[1].max_layer_pages = 1, lends.devices[1].kv_host = 2;
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, lends, after).position_ms, 2 * unknown + copied);
}

// 0.2 GB/s, and half of that for what is written.
TEST_F(ChangeCostsTest, KvTravelsFromDisksAndToThem) {
  plan_.page_bytes = kPageTokens * 1000, plan_.sequences = 1, plan_.context = 8192;
  for (PlanPart& part : plan_.parts) part.kv_pages = FullLayerPages(plan_);
  for (PlanDevice& device : plan_.devices) device.disk_mb_per_ms = 0.2;
  Plan spills = plan_;
  spills.devices[1].max_layer_pages = WorkingPages(spills);
  ASSERT_TRUE(HasKvAway(spills, 1));
  const double copied = 1000 / 1e6, read = 1000 / 2e5;
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, spills, plan_).position_ms, 2 * (copied + read));
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, plan_, spills).position_ms, 2 * (copied + 2 * read));
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, spills, spills).position_ms, 2 * (copied + 3 * read));
  inputs_.devices[0].profile.disk = {{.read_bytes = kMiB, .depth = 1, .bytes_per_second = 1e8, .latency_ms = 1}};
  EXPECT_DOUBLE_EQ(MoveKv(inputs_, spills, plan_).position_ms, 2 * (copied + 2 * read)) << "one piece after another";
}

}  // namespace
}  // namespace lime
