// What `lime profile` measures: every kind of block at every shape that fits, disks by read size
// and depth, and nothing beyond its bounds.

#include <atomic>
#include <filesystem>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/profile/cpu_usage.h"
#include "daemon/profile/disk_sample.h"
#include "daemon/profile/measure_bursts.h"
#include "daemon/profile/measure_compute.h"
#include "daemon/profile/measure_disk.h"
#include "daemon/profile/scale_model.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "tests/integration/models.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

ModelSpec Tiny(const MakeModelOptions& options) {
  TempDir dir;
  EXPECT_TRUE(MakeModel(options, dir / "model").ok());
  absl::StatusOr<ModelSpec> spec = LoadModelSpec(dir / "model");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return *spec;
}

// Distinct rows and contexts measured of one kind.
std::pair<std::set<int64_t>, std::set<int64_t>> ShapesOf(const ModelCompute& model, BlockKind kind) {
  std::pair<std::set<int64_t>, std::set<int64_t>> shapes;
  for (const ComputePoint& point : model.points) {
    if (point.kind != kind) continue;
    shapes.first.insert(point.rows);
    shapes.second.insert(point.context);
  }
  return shapes;
}

using Set = std::set<int64_t>;

TEST(MeasureComputeTest, EveryKindIsMeasuredAtEveryShapeThatTheModelAllows) {
  for (const char* const family : {"llama", "qwen3", "opt"}) {
    for (const int bits : {0, 4}) {
      MakeModelOptions options{.dtype = bits > 0 ? DType::kF16 : DType::kBF16};
      options.config.family = family;
      options.config.tie_embeddings = bits > 0;
      options.config.num_layers = 3;
      if (bits > 0) options.config.quantization = Quantization{.bits = bits, .group_size = 32};
      const ModelSpec spec = Tiny(options);
      const auto measured = MeasureCompute(spec, {.num_threads = 2, .seconds = 0.1, .memory = Bytes{1} * kGiB});
      ASSERT_TRUE(measured.ok()) << measured.status();
      EXPECT_EQ(measured->key, ModelKey(spec));
      EXPECT_EQ(ShapesOf(*measured, BlockKind::kMlp), std::pair(Set({1, 2, 4, 8, 16, 64, 256, 512}), Set({0})));
      EXPECT_EQ(ShapesOf(*measured, BlockKind::kAttention), std::pair(Set({1, 2, 4, 8, 16, 64, 256, 512}), Set({64, 512})));
      EXPECT_EQ(ShapesOf(*measured, BlockKind::kHead), std::pair(Set({1, 2, 4, 8, 16, 64}), Set({0})));
      EXPECT_EQ(ShapesOf(*measured, BlockKind::kEmbedding).second, Set({0}));
      for (const ComputePoint& point : measured->points) EXPECT_GT(point.ms, 0);
      EXPECT_GE(measured->step_overhead_ms, 0);
      DeviceProfile profile;
      profile.SetModel(*measured);
      EXPECT_GT(profile.StepMs(spec, {.rows = 512, .context = 512, .logit_rows = 1}), profile.StepMs(spec, {.rows = 1, .context = 64}));
    }
  }
}

// Three layers with linear attention, one with KV, one more.
MakeModelOptions Hybrid() {
  MakeModelOptions options;
  options.config.family = "qwen3_5";
  options.config.num_layers = 5;
  return options;
}

TEST(MeasureComputeTest, LinearAttentionIsMeasuredAtNoContext) {
  const ModelSpec spec = Tiny(Hybrid());
  const auto measured = MeasureCompute(spec, {.num_threads = 2, .seconds = 0.1, .memory = Bytes{1} * kGiB});
  ASSERT_TRUE(measured.ok()) << measured.status();
  const Set rows({1, 2, 4, 8, 16, 64, 256, 512});
  EXPECT_EQ(ShapesOf(*measured, BlockKind::kLinearAttention), std::pair(rows, Set({0})));
  EXPECT_EQ(ShapesOf(*measured, BlockKind::kAttention), std::pair(rows, Set({64, 512})));
  EXPECT_EQ(ShapesOf(*measured, BlockKind::kMlp), std::pair(rows, Set({0})));
}

TEST(MeasureComputeTest, MemoryBoundsTheShapes) {
  MakeModelOptions options;
  options.config.max_positions = 8192;
  options.config.num_kv_heads = 4;
  const ModelSpec spec = Tiny(options);  // 16 rows at 8192 positions: 32 MiB of KV in one layer
  const Bytes memory = 24 * kMiB;
  const auto measured = MeasureCompute(spec, {.num_threads = 1, .seconds = 0.1, .memory = memory});
  ASSERT_TRUE(measured.ok()) << measured.status();
  for (const ComputePoint& point : measured->points) {
    if (point.kind != BlockKind::kAttention || point.rows > kMaxDecodeRows) continue;
    EXPECT_LT(point.rows * point.context * spec.KvBytesPerToken() / spec.NumKvLayers(), memory);
  }
  EXPECT_TRUE(ShapesOf(*measured, BlockKind::kMlp).first.contains(1));
  const auto refused = MeasureCompute(spec, {.num_threads = 1, .seconds = 0.1, .memory = 10 * kKiB});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted) << refused.status();
}

TEST(MeasureComputeTest, ItEndsWhenAsked) {
  const std::atomic<bool> cancelled = true;
  const auto measured = MeasureCompute(Tiny({}), {.num_threads = 1, .seconds = 600, .memory = Bytes{1} * kGiB, .cancelled = &cancelled});
  EXPECT_EQ(measured.status().code(), absl::StatusCode::kCancelled);
}

TEST(ScaleModelTest, ALayerOfEveryKindIsKept) {
  const ModelSpec spec = Tiny(Hybrid());
  const ScaleModel small = MakeScaleModel(spec, 1);
  EXPECT_LT(small.spec.config.num_layers(), spec.config.num_layers());
  EXPECT_GT(small.spec.NumKvLayers(), 0);
  EXPECT_LT(small.spec.NumKvLayers(), small.spec.config.num_layers());
}

TEST(ScaleModelTest, LayersAndIdsAreKeptAsFarAsASweepNeeds) {
  MakeModelOptions options;
  options.config.num_layers = 7;
  options.config.vocab_size = 4096;
  const ModelSpec spec = Tiny(options);
  const Bytes layer = spec.block({BlockKind::kAttention, 0}).bytes + spec.block({BlockKind::kMlp, 0}).bytes;
  const ScaleModel small = MakeScaleModel(spec, 3 * layer);
  EXPECT_EQ(small.spec.config.num_layers(), 3);
  ASSERT_EQ(small.spec.blocks.size(), 8u);
  for (int32_t i = 0; i < 3; ++i) {
    EXPECT_EQ(small.spec.blocks[1 + 2 * i].id, (BlockId{BlockKind::kAttention, i}));
    EXPECT_EQ(small.spec.blocks[2 + 2 * i].id, (BlockId{BlockKind::kMlp, i}));
    EXPECT_THAT(small.spec.blocks[2 + 2 * i].tensors.back().name, HasSubstr(absl::StrCat("layers.", std::vector{0, 2, 4}[i])));
  }
  EXPECT_LT(small.spec.config.vocab_size, 4096);
  EXPECT_EQ(small.head_factor, 4096.0 / static_cast<double>(small.spec.config.vocab_size));
  EXPECT_EQ(small.spec.blocks.back().tensors.back().info.shape[0], small.spec.config.vocab_size);
  const ScaleModel whole = MakeScaleModel(spec, kGiB);
  EXPECT_EQ(ModelKey(whole.spec), ModelKey(spec));
  EXPECT_EQ(whole.head_factor, 1);
}

TEST(ScaleModelTest, TensorsLieInTheRingAndOverlapOnlyWhereItIsSmall) {
  const ModelSpec spec = Tiny({});
  for (const Bytes most : {Bytes{1} * kGiB, LeastRingBytes(spec)}) {
    const auto weights = RingWeights::Make(spec, most);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_LE(weights->bytes(), most);
    std::set<const std::byte*> begins;
    size_t tensors = 0;
    for (size_t i = 0; i < spec.blocks.size(); ++i) {
      ASSERT_EQ(weights->blocks()[i].tensors.size(), spec.blocks[i].tensors.size());
      begins.insert(weights->blocks()[i].tensors.begin(), weights->blocks()[i].tensors.end());
      tensors += spec.blocks[i].tensors.size();
    }
    EXPECT_EQ(begins.size() == tensors, most == kGiB);
  }
}

class MeasureDiskTest : public ::testing::Test {
 protected:
  std::string File(const std::string& name, Bytes bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << std::string(bytes, 'x');
    return dir_ / name;
  }
  TempDir dir_;
};

TEST_F(MeasureDiskTest, EverySizeAndDepthThatFitsIsMeasured) {
  const std::vector<std::string> files = {File("a", 100), File("b", 3 * kMiB), File("c", 2 * kMiB + 5)};
  const auto points = MeasureDisk(files, {.seconds = 0.2, .memory = 8 * kMiB});
  ASSERT_TRUE(points.ok()) << points.status();
  std::vector<std::pair<Bytes, int64_t>> shapes;
  for (const DiskPoint& point : *points) {
    shapes.emplace_back(point.read_bytes, point.depth);
    EXPECT_GT(point.bytes_per_second, 0);
    EXPECT_GT(point.latency_ms, 0);
    // Requests in flight take as long as the rate says (Little's law), as far as a median speaks
    // for the mean.
    EXPECT_LT(point.latency_ms, 4e3 * static_cast<double>(point.read_bytes * point.depth) / point.bytes_per_second);
  }
  const std::vector<std::pair<Bytes, int64_t>> expected = {{64 * kKiB, 1},  {64 * kKiB, 4},  {64 * kKiB, 8},  {64 * kKiB, 16},
                                                           {256 * kKiB, 1}, {256 * kKiB, 4}, {256 * kKiB, 8}, {256 * kKiB, 16},
                                                           {kMiB, 1},       {kMiB, 4},       {kMiB, 8}};
  EXPECT_EQ(shapes, expected) << "4 MiB is more than a file, 16 of 1 MiB more than the memory";
}

TEST_F(MeasureDiskTest, WhatCannotBeMeasuredIsSaid) {
  EXPECT_EQ(MeasureDisk({dir_ / "none"}, {}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MeasureDisk({File("small", 100)}, {}).status().message(), HasSubstr("too small to measure"));
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(MeasureDisk({File("big", kMiB)}, {.seconds = 600, .cancelled = &cancelled}).status().code(), absl::StatusCode::kCancelled);
}

TEST_F(MeasureDiskTest, AFolderWithoutWeightsIsMeasuredWithAFileThatLeavesNothingBehind) {
  const auto sample = DiskSample::Write(dir_ / "store", {.most = 40 * kMiB, .seconds = 5});
  ASSERT_TRUE(sample.ok()) << sample.status();
  EXPECT_GE(sample->bytes(), 32 * kMiB);
  EXPECT_LE(sample->bytes(), 40 * kMiB);
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "store")) << "it has no name";
  const auto points = MeasureDisk({sample->path()}, {.seconds = 0.2, .memory = 8 * kMiB, .read_bytes = {kMiB}, .depths = {2}});
  ASSERT_TRUE(points.ok()) << points.status();
  EXPECT_GT(points->front().bytes_per_second, 0);
}

TEST_F(MeasureDiskTest, BurstsOfSmallReadsAreMeasuredAndBounded) {
  const std::vector<std::string> files = {File("a", 100), File("b", 3 * kMiB), File("c", 2 * kMiB + 5)};
  const double begin = SteadyMs();
  const auto cost = MeasureBursts(files, {.seconds = 0.2, .memory = 8 * kMiB, .least_bytes = kMiB});
  ASSERT_TRUE(cost.ok() && *cost) << cost.status();
  EXPECT_LT(SteadyMs() - begin, 20e3);
  EXPECT_TRUE(CheckBurst(**cost).ok());
  EXPECT_GT((*cost)->MsOf(128, 64 * kKiB), (*cost)->MsOf(8, 4 * kKiB));
  EXPECT_FALSE(MeasureBursts(files, {.seconds = 0.2})->has_value()) << "files of 5 MiB say nothing about a disk";
  EXPECT_FALSE(MeasureBursts(files, {.memory = kMiB, .least_bytes = kMiB})->has_value());
  EXPECT_EQ(MeasureBursts({dir_ / "none"}, {}).status().code(), absl::StatusCode::kNotFound);
  const std::atomic<bool> cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(MeasureBursts(files, {.least_bytes = kMiB, .cancelled = &cancelled}).status()));
  EXPECT_THAT(std::string(MeasureBursts(files, {.seconds = 0.2, .least_bytes = kMiB, .read_bytes = {4 * kMiB}}).status().message()),
              HasSubstr("no file has"));
}

TEST_F(MeasureDiskTest, ADiskWithoutRoomForTheFileIsSaid) {
  const auto full = DiskSample::Write(dir_ / "store", {.least = Bytes{1} << 60});
  EXPECT_TRUE(absl::IsResourceExhausted(full.status())) << full.status();
  EXPECT_THAT(std::string(full.status().message()), HasSubstr("free, but measuring its disk needs"));
  EXPECT_FALSE(DiskSample::Write("/proc/nowhere", {}).ok());
  const std::atomic<bool> cancelled = true;
  EXPECT_TRUE(absl::IsCancelled(DiskSample::Write(dir_ / "store", {.cancelled = &cancelled}).status()));
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "store"));
}

TEST(CpuUsageTest, ALoopOfThisProcessIsSeen) {
  const CpuUsage before = ReadCpuUsage();
  volatile uint64_t sum = 0;
  while (ReadCpuUsage().process - before.process < 0.1) {
    for (int i = 0; i < 100000; ++i) sum = sum + static_cast<uint64_t>(i);
  }
  const CpuUsage used = ReadCpuUsage() - before;
  EXPECT_GE(used.process, 0.1);
  EXPECT_GE(used.wall, 0.09);
  EXPECT_GE(used.busy, 0.05);  // in ticks
  EXPECT_GE(used.stolen, 0);
}

}  // namespace
}  // namespace lime
