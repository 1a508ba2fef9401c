// How many units of two sizes devices take and stream, and where in the model these stand.
#include "planner/search/mixed_counts.h"

#include <numeric>

#include "gtest/gtest.h"
#include "planner/base/random.h"
#include "planner/evaluation/evaluator.h"
#include "planner/search/dispatch.h"

namespace lime {
namespace {

using Counts = HalfCounts;

// Attention halves of 10 MB and MLP halves of 30 MB; disks of 10 MB/ms, computing and messages that
// take no time.
Instance MixedLayers(int layers, const std::vector<double>& mem_mb) {
  Instance instance;
  for (int i = 0; i < layers; ++i) {
    instance.blocks.push_back({.kind = Instance::Kind::kAttention, .layer = i, .mb = 10});
    instance.blocks.push_back({.kind = Instance::Kind::kMlp, .layer = i, .mb = 30});
  }
  for (const double mb : mem_mb) {
    instance.devices.push_back({.mem_mb = mb, .disk_mb_per_ms = 10, .comp_ms = std::vector<double>(instance.blocks.size(), 0.0)});
  }
  return instance;
}

std::vector<int32_t> InTurn(const Instance& instance) {
  std::vector<int32_t> order(instance.devices.size());
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// By device, what a plan places, and what of that it streams.
std::vector<MixedCountProgram::Share> Placed(const Assignment& plan, const MixedCountProgram& program, int devices) {
  std::vector<MixedCountProgram::Share> shares(devices);
  for (int u = 0; u < program.NumHalves(); ++u) {
    MixedCountProgram::Share& share = shares[plan.device[u]];
    ++share.units[program.SizeOf(u)];
    share.streamed[program.SizeOf(u)] += plan.streamed[u];
  }
  return shares;
}

// 240 MB in 2 x 100. A pool of one MLP half takes as much as a disk reads in 3 ms; one of an
// attention half leaves 90, and with the three read in 3 ms a device has three of each. In less
// than 3 ms it reads two, and 20 MB find no place.
TEST(MixedCountsTest, ADeviceStreamsTheSizeThatGainsMost) {
  const Instance instance = MixedLayers(6, {100, 100});
  const auto begins = UnitBegins(instance, Granularity::kBlock);
  MixedCountProgram program(instance, begins);
  ASSERT_TRUE(program.applies());
  const std::vector<int32_t> order = InTurn(instance);
  const std::vector<double> pools = {1, 1};
  const auto shares = program.Shares({.limit_ms = 3, .pools = pools, .order = order});
  ASSERT_EQ(shares.size(), 2u);
  for (const auto& share : shares) {
    EXPECT_EQ(share.units, (Counts{3, 3}));
    EXPECT_EQ(share.streamed, (Counts{3, 0}));
  }
  EXPECT_TRUE(program.Shares({.limit_ms = 2.9, .pools = pools, .order = order}).empty());
}

// 400 MB in 120 + 120 + 60, disks that read 60 MB in 6 ms. MLP halves alone gain that less a pool
// of 30 on each of three devices; the ten attention halves alone gain 100 less 10 for every device
// that streams some. So one device streams attention halves alone, and another MLP halves.
TEST(MixedCountsTest, DevicesStreamDifferentSizes) {
  const Instance instance = MixedLayers(10, {120, 120, 60});
  const auto begins = UnitBegins(instance, Granularity::kBlock);
  MixedCountProgram program(instance, begins);
  const std::vector<int32_t> order = InTurn(instance);
  const std::vector<double> pools = {1, 1, 1};
  const auto shares = program.Shares({.limit_ms = 6, .pools = pools, .order = order});
  ASSERT_EQ(shares.size(), 3u);
  bool small = false, large = false;
  for (const auto& share : shares) {
    small = small || share.streamed[1] == 0;
    large = large || share.streamed[1] > 0;
  }
  EXPECT_TRUE(small);
  EXPECT_TRUE(large);
}

// Whatever is asked: everything has a place, memory holds it, disks and computing are within the
// limit, and plans place what was said.
TEST(MixedCountsTest, AnswersHoldAndArePlacedAsTheyAre) {
  int answers = 0;
  for (uint64_t seed = 0; seed < 300; ++seed) {
    Random random(seed);
    std::vector<double> mem_mb;
    for (int d = 1 + random.Below(4); d > 0; --d) mem_mb.push_back(20 + random.Below(200));
    Instance instance = MixedLayers(1 + random.Below(20), mem_mb);
    for (Instance::Block& block : instance.blocks) block.kv_mb = block.mb == 10 ? 1 : 0;
    for (Instance::Device& device : instance.devices) {
      device.disk_mb_per_ms = random.Below(5);
      for (size_t b = 0; b < device.comp_ms.size(); ++b) device.comp_ms[b] = 0.01 * static_cast<double>(1 + b % 2);
    }
    instance.embed_mb = random.Below(20);
    const auto begins = UnitBegins(instance, Granularity::kBlock);
    MixedCountProgram program(instance, begins);
    const std::vector<int32_t> order = InTurn(instance);
    const std::vector<double> pools(mem_mb.size(), 1 + random.Uniform());
    const double limit_ms = random.Below(200);
    const auto shares = program.Shares({.limit_ms = limit_ms, .pools = pools, .order = order});
    if (shares.empty()) continue;
    ++answers;
    Counts all = {};
    for (size_t d = 0; d < shares.size(); ++d) {
      const auto& [units, streamed] = shares[d];
      double used_mb = d == 0 ? instance.embed_mb : 0, load_ms = 0, comp_ms = 0;
      for (const int size : {0, 1}) {
        all[size] += units[size];
        EXPECT_LE(streamed[size], units[size]);
        used_mb += (units[size] - streamed[size]) * program.WeightsMb(size) + units[size] * program.KvMb(size);
        load_ms += streamed[size] > 0 ? streamed[size] * program.LoadMs(static_cast<int>(d), size) : 0;
        comp_ms += units[size] * program.CompMs(static_cast<int>(d), size);
      }
      if (streamed[0] + streamed[1] > 0) used_mb += program.WeightsMb(streamed[1] > 0 ? 1 : 0);
      EXPECT_LE(used_mb, instance.devices[d].mem_mb + 1e-5) << seed;
      EXPECT_LE(load_ms, limit_ms * (1 + 1e-9)) << seed;
      EXPECT_LE(comp_ms, limit_ms * (1 + 1e-9)) << seed;
    }
    EXPECT_EQ(all[0] + all[1], instance.NumBlocks());
    const int devices = instance.NumDevices();
    const Assignment even = program.Arrange(shares, order, 1 + random.Below(8), seed);
    const Assignment dispatched =
        Dispatcher(instance, program)
            .Arrange({.shares = shares, .order = order, .limit_ms = limit_ms, .ahead = static_cast<double>(random.Below(3)), .seed = seed});
    for (const Assignment& plan : {even, dispatched}) {
      const auto placed = Placed(plan, program, devices);
      for (int d = 0; d < devices; ++d) {
        EXPECT_EQ(placed[d].units, shares[d].units) << seed;
        EXPECT_EQ(placed[d].streamed, shares[d].streamed) << seed;
      }
    }
  }
  EXPECT_GT(answers, 100);
}

// The example above: each of two disks reads an attention half in 1 ms into a pool of one. One
// device's three after the other's take 4 ms (two waits on each); in turns 3 ms, which is what the
// disks take.
TEST(DispatcherTest, ReadsBlocksAsTheyCome) {
  const Instance instance = MixedLayers(6, {100, 100});
  const auto begins = UnitBegins(instance, Granularity::kBlock);
  MixedCountProgram program(instance, begins);
  const std::vector<int32_t> order = InTurn(instance);
  const std::vector<double> pools = {1, 1};
  const auto shares = program.Shares({.limit_ms = 3, .pools = pools, .order = order});
  ASSERT_EQ(shares.size(), 2u);
  Evaluator evaluator(instance);
  EXPECT_NEAR(evaluator.MsPerStep(ToPlan(program.Arrange(shares, order, 1, 1))), 4, 1e-9);
  Dispatcher dispatcher(instance, program);
  for (uint64_t seed = 0; seed < 5; ++seed) {
    const Assignment plan = dispatcher.Arrange({.shares = shares, .order = order, .limit_ms = 3, .seed = seed});
    EXPECT_NEAR(evaluator.MsPerStep(ToPlan(plan)), 3, 1e-9) << seed;
  }
}

TEST(MixedCountsTest, LeavesUnitsOfSeveralBlocksToOthers) {
  const Instance instance = MixedLayers(4, {100, 100});
  const auto begins = UnitBegins(instance, Granularity::kLayer);
  EXPECT_FALSE(MixedCountProgram(instance, begins).applies());
}

}  // namespace
}  // namespace lime
