#include "planner/plan/device/device_profile.h"

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two layers; attention 16 KB, MLP 24 KB, head and embedding 12,800 B each.
ModelSpec TinySpec() {
  ModelSpec spec;
  spec.config.architecture = "LlamaForCausalLM";
  spec.config.hidden_size = 64;
  spec.config.num_heads = 4;
  spec.config.layers.assign(2, {.num_kv_heads = 2, .head_dim = 16, .intermediate_size = 128});
  spec.config.vocab_size = 100;
  spec.config.max_positions = 4096;
  const auto add = [&](BlockKind kind, int32_t layer, Bytes bytes) {
    BlockSpec block;
    block.id = {kind, layer};
    block.bytes = bytes;
    spec.blocks.push_back(block);
  };
  add(BlockKind::kEmbedding, 0, 12800);
  for (const int32_t layer : {0, 1}) {
    add(BlockKind::kAttention, layer, 16000);
    add(BlockKind::kMlp, layer, 24000);
  }
  add(BlockKind::kHead, 0, 12800);
  return spec;
}

ModelCompute Measured(const ModelSpec& spec) {
  return {.key = ModelKey(spec),
          .name = "tiny",
          .step_overhead_ms = 0.25,
          .points = {{BlockKind::kMlp, 1, 0, 3},
                     {BlockKind::kMlp, 4, 0, 6},
                     {BlockKind::kAttention, 1, 64, 1},
                     {BlockKind::kAttention, 1, 128, 2},
                     {BlockKind::kAttention, 4, 64, 4},
                     {BlockKind::kEmbedding, 1, 0, 0.5},
                     {BlockKind::kHead, 1, 0, 7}}};
}

DeviceProfile Profile() {
  DeviceProfile profile;
  profile.cpu = "a CPU";
  profile.instruction_set = "AVX2";
  profile.threads = 2;
  profile.read_bytes_per_second = 16e6;
  profile.flops = 1e9;
  profile.SetDisk({{1 << 20, 4, 800e6, 5}, {1 << 16, 1, 100e6, 0.5}, {1 << 20, 1, 400e6, 2}, {1 << 16, 4, 200e6, 1}},
                  BurstCost{.burst_ms = 0.1, .read_ms = 0.0084, .bytes_per_ms = 1.33e6});
  profile.SetModel(Measured(TinySpec()));
  profile.links = {{"b", 12.5e6, 0.3}, {"c", 25e6, 0.2}};
  return profile;
}

TEST(DeviceProfileTest, DiskPointsAreReadBetweenSizesAndDepthsInTheirLogarithms) {
  const DeviceProfile profile = Profile();
  EXPECT_DOUBLE_EQ(profile.DiskRate(1 << 20, 4), 800e6);
  EXPECT_DOUBLE_EQ(profile.DiskRate(1 << 20, 2), 600e6);  // half way from 1 to 4
  EXPECT_DOUBLE_EQ(profile.DiskRate(1 << 18, 1), 250e6);  // half way from 2^16 to 2^20
  EXPECT_DOUBLE_EQ(profile.DiskRate(1 << 26, 64), 800e6);
  EXPECT_DOUBLE_EQ(profile.DiskRate(4096, 1), 100e6);
  EXPECT_DOUBLE_EQ(profile.DiskLatencyMs(1 << 20, 1), 2);
  EXPECT_DOUBLE_EQ(profile.DiskLatencyMs(0, 0), 0.5);
  EXPECT_DOUBLE_EQ(DeviceProfile().DiskRate(1 << 20, 4), 0);
}

TEST(DeviceProfileTest, BlocksOfAMeasuredModelHaveTheirMeasuredTimes) {
  const DeviceProfile profile = Profile();
  const ModelSpec spec = TinySpec();
  EXPECT_DOUBLE_EQ(profile.ComputeMs(spec, {BlockKind::kMlp, 0}, 1, 64), 3);
  EXPECT_DOUBLE_EQ(profile.ComputeMs(spec, {BlockKind::kMlp, 0}, 3, 1000), 5);  // whatever the context
  EXPECT_DOUBLE_EQ(profile.ComputeMs(spec, {BlockKind::kAttention, 0}, 1, 96), 1.5);
  EXPECT_DOUBLE_EQ(profile.ComputeMs(spec, {BlockKind::kAttention, 0}, 1, 192), 3);
  EXPECT_DOUBLE_EQ(profile.ComputeMs(spec, {BlockKind::kHead, 0}, 0, 64), 0);  // no row asks for logits
}

TEST(DeviceProfileTest, AStepIsTheSumOfItsBlocksAndTheOverhead) {
  EXPECT_DOUBLE_EQ(Profile().StepMs(TinySpec(), {.rows = 1, .context = 64, .logit_rows = 1}), 0.25 + 0.5 + 2 * (1 + 3) + 7);
  EXPECT_DOUBLE_EQ(Profile().StepMs(TinySpec(), {.rows = 4, .context = 64, .logit_rows = 0}), 0.25 + 0.5 + 2 * (4 + 6));
}

// 24,000 bytes at 16 MB/s take 1.5 ms; 2 * 3 * 64 * 128 operations of each of 256 rows at 1 GFLOP/s
// take 12.58 ms. 0.02 ms for the block.
TEST(DeviceProfileTest, AModelThatWasNotMeasuredHasTheTimeOfTheDevicesRates) {
  const DeviceProfile profile = Profile();
  ModelSpec other = TinySpec();
  other.config.max_positions = 8192;  // does not change any block's time
  EXPECT_EQ(profile.ComputeMs(other, {BlockKind::kMlp, 0}, 1, 64), profile.ComputeMs(TinySpec(), {BlockKind::kMlp, 0}, 1, 64));
  for (LayerConfig& layer : other.config.layers) layer.head_dim = 32;
  EXPECT_NEAR(profile.ComputeMs(other, {BlockKind::kMlp, 0}, 1, 64), 1.52, 1e-9);
  EXPECT_NEAR(profile.ComputeMs(other, {BlockKind::kMlp, 0}, 256, 64), 12.602912, 1e-9);
}

// A layer's KV of a position: 2 * 2 * 16 * 2 = 128 bytes. 16,000 + 4 * 1,000 * 128 bytes at 16 MB/s
// are 33 ms; a chunk reads its KV once.
TEST(DeviceProfileTest, TheRooflineCountsKvOfEverySequenceAndOfAChunkOnce) {
  const DeviceProfile profile = Profile();
  EXPECT_NEAR(RooflineMs(profile, TinySpec(), {BlockKind::kAttention, 0}, 4, 1000), 33.02, 1e-9);
  DeviceProfile fast = profile;
  fast.flops = 0;
  EXPECT_NEAR(RooflineMs(fast, TinySpec(), {BlockKind::kAttention, 0}, 64, 1000), 9.02, 1e-9);
  ModelSpec window = TinySpec();
  for (LayerConfig& layer : window.config.layers) layer.window = 100;
  EXPECT_NEAR(RooflineMs(fast, window, {BlockKind::kAttention, 0}, 1, 1000), 1.82, 1e-9);
}

// The same model, whose first layer has linear attention of 20,000 bytes, with states of 8 x 16.
ModelSpec HybridSpec() {
  ModelSpec spec = TinySpec();
  spec.config.layers[0] = {.attention = AttentionKind::kLinear, .intermediate_size = 128};
  spec.config.linear_attention = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 16, .conv_width = 4};
  spec.blocks[1].id.kind = BlockKind::kLinearAttention;
  spec.blocks[1].bytes = 20000;
  return spec;
}

// For one row: 64 * (96 + 2 * 64 + 2 * 4) multiply-adds of matrices, 96 * 4 of the convolution, and
// 4 * 4 * 8 * 16 of the delta rule.
TEST(DeviceProfileTest, LinearAttentionReadsAndWritesItsStateWhateverTheContext) {
  const ModelSpec spec = HybridSpec();
  DeviceProfile profile = Profile();
  const BlockId block = {BlockKind::kLinearAttention, 0};
  EXPECT_EQ(profile.ComputeMs(spec, block, 1, 10), profile.ComputeMs(spec, block, 1, 1'000'000));
  const double operations = 2.0 * (64 * (96 + 2 * 64 + 2 * 4) + 96 * 4 + 4 * 4 * 8 * 16);
  EXPECT_NEAR(RooflineMs(profile, spec, block, 1000, 1000), 1000 * operations / 1e6 + 0.02, 1e-9);
  profile.flops = 0;
  const auto bytes_ms = [&](double sequences) { return (20000 + 2 * sequences * static_cast<double>(spec.StateBytes(0))) / 16e3 + 0.02; };
  EXPECT_NEAR(RooflineMs(profile, spec, block, 4, 1000), bytes_ms(4), 1e-9);
  EXPECT_NEAR(RooflineMs(profile, spec, block, 64, 1000), bytes_ms(1), 1e-9) << "a chunk of one sequence";
}

TEST(DeviceProfileTest, AStepCountsEveryKindAsOftenAsTheModelHasIt) {
  const ModelSpec spec = HybridSpec();
  DeviceProfile profile = Profile();
  ModelCompute measured = Measured(spec);
  measured.points.push_back({BlockKind::kLinearAttention, 1, 0, 5});
  profile.SetModel(measured);
  EXPECT_DOUBLE_EQ(profile.ComputeMs(spec, {BlockKind::kLinearAttention, 0}, 1, 4096), 5);
  EXPECT_DOUBLE_EQ(profile.StepMs(spec, {.rows = 1, .context = 64, .logit_rows = 1}), 0.25 + 0.5 + 5 + 1 + 2 * 3 + 7);
  EXPECT_EQ(*ParseDeviceProfile(ToJsonText(profile), "profile.json"), profile);
}

TEST(DeviceProfileTest, BlocksOfLayersThatDifferTakeTheirOwnTime) {
  ModelSpec spec = TinySpec();
  spec.config.layers[1].window = 100;
  DeviceProfile profile = Profile();
  profile.models.clear();
  EXPECT_FALSE(TakeSameTime(spec, {BlockKind::kAttention, 0}, {BlockKind::kAttention, 1}));
  EXPECT_TRUE(TakeSameTime(spec, {BlockKind::kMlp, 0}, {BlockKind::kMlp, 1}));
  const double all_ms = profile.ComputeMs(spec, {BlockKind::kAttention, 0}, 1, 1000);
  const double window_ms = profile.ComputeMs(spec, {BlockKind::kAttention, 1}, 1, 1000);
  EXPECT_NEAR(all_ms - window_ms, 900 * 128 / 16e3, 1e-9);
  ModelSpec full = TinySpec();
  const DeviceProfile::Step step{.rows = 1, .context = 1000, .logit_rows = 1};
  EXPECT_NEAR(profile.StepMs(full, step) - profile.StepMs(spec, step), all_ms - window_ms, 1e-9);
}

// The layer without a window is measured, so times in a window are those of a context as long.
TEST(DeviceProfileTest, ALayerWithAWindowTakesTheMeasuredTimeOfThatContext) {
  ModelSpec spec = TinySpec();
  spec.config.layers[0].window = 64;
  EXPECT_EQ(MeasuredLayer(spec.config, BlockKind::kAttention), 1);
  EXPECT_EQ(MeasuredLayer(spec.config, BlockKind::kLinearAttention), -1);
  DeviceProfile profile = Profile();
  profile.SetModel(Measured(spec));
  EXPECT_DOUBLE_EQ(profile.ComputeMs(spec, {BlockKind::kAttention, 0}, 1, 128), 1);
  EXPECT_DOUBLE_EQ(profile.ComputeMs(spec, {BlockKind::kAttention, 1}, 1, 128), 2);
  spec.config.layers[1].window = 64;
  EXPECT_EQ(MeasuredLayer(spec.config, BlockKind::kAttention), 0) << "the first of equals";
}

TEST(DeviceProfileTest, TheKeyNamesGeometryDtypeAndBytes) {
  const std::string key = ModelKey(TinySpec());
  EXPECT_EQ(key, "LlamaForCausalLM layers=2 hidden=64 heads=4/2x16 inner=128 vocab=100 window=0 BF16 bytes=12800+32000+48000+12800");
  EXPECT_EQ(ModelKey(HybridSpec()),
            "LlamaForCausalLM layers=2 hidden=64 heads=4/2x16 inner=128 vocab=100 window=0 BF16 bytes=12800+16000+48000+12800+20000 "
            "linear=1:2x8/4x16/4");
  ModelSpec windows = TinySpec();
  windows.config.layers[1].window = 100;
  EXPECT_EQ(ModelKey(windows), key + " attention=1:2x16/0,1:2x16/100");
  ModelSpec bytes = TinySpec(), dtype = TinySpec(), name = TinySpec();
  bytes.blocks[2].bytes += 64;
  dtype.working_dtype = DType::kF16;
  name.blocks[2].tensors.push_back({.name = "renamed"});
  EXPECT_NE(ModelKey(bytes), key);
  EXPECT_NE(ModelKey(dtype), key);
  EXPECT_EQ(ModelKey(name), key);
}

// Two of eight experts of 16 columns compute a row, and a shared one of 32.
ModelSpec SpecOfExperts() {
  ModelSpec spec = TinySpec();
  spec.config.experts = ExpertsConfig{.count = 8, .per_token = 2, .intermediate_size = 16, .shared_intermediate_size = 32};
  for (LayerConfig& layer : spec.config.layers) layer.experts = true, layer.intermediate_size = 0;
  for (BlockSpec& block : spec.blocks) {
    if (block.id.kind == BlockKind::kMlp) block.id.kind = BlockKind::kExperts;
  }
  return spec;
}

TEST(DeviceProfileTest, TheKeyNamesTheExperts) {
  EXPECT_EQ(ModelKey(SpecOfExperts()),
            "LlamaForCausalLM layers=2 hidden=64 heads=4/2x16 inner=0 vocab=100 window=0 BF16 bytes=12800+32000+0+12800+48000 "
            "experts=2:2/8x16+32");
}

TEST(DeviceProfileTest, AStepReadsTheExpertsThatItsRowsChoose) {
  const ModelSpec spec = SpecOfExperts();
  const BlockId block{BlockKind::kExperts, 1};
  const double others = 8 + 3 * 32, experts = 8 * 3 * 16;
  EXPECT_NEAR(ReadShare(spec, block, 1), (others + experts / 4) / (others + experts), 1e-9);
  EXPECT_NEAR(ReadShare(spec, block, 2), (others + experts * 7 / 16) / (others + experts), 1e-9);
  EXPECT_NEAR(ReadShare(spec, block, 1000), 1, 1e-9);
  EXPECT_EQ(ReadShare(spec, {BlockKind::kAttention, 1}, 1), 1);
  EXPECT_TRUE(TakeSameTime(spec, block, {BlockKind::kExperts, 0}));
  DeviceProfile profile = Profile();
  const double operations = 2.0 * 64 * (8 + 3 * (2 * 16 + 32));
  EXPECT_NEAR(RooflineMs(profile, spec, block, 1000, 0), 1000 * operations / 1e6 + 0.02, 1e-9);
  profile.flops = 0;
  EXPECT_NEAR(RooflineMs(profile, spec, block, 1, 0), 24000 * ReadShare(spec, block, 1) / 16e3 + 0.02, 1e-9);
}

TEST(DeviceProfileTest, MeasuringAModelAgainReplacesItsPointsAndKeepsTheOthers) {
  DeviceProfile profile = Profile();
  profile.SetModel({.key = "another", .points = {{BlockKind::kHead, 1, 0, 1}}});
  profile.SetModel({.key = ModelKey(TinySpec()), .points = {{BlockKind::kHead, 1, 0, 9}}});
  ASSERT_EQ(profile.models.size(), 2u);
  EXPECT_DOUBLE_EQ(profile.ComputeMs(TinySpec(), {BlockKind::kHead, 0}, 1, 1), 9);
  EXPECT_NE(profile.FindModel("another"), nullptr);
}

TEST(DeviceProfileTest, WhatIsWrittenIsReadBack) {
  const absl::StatusOr<DeviceProfile> read = ParseDeviceProfile(ToJsonText(Profile()), "profile.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Profile());
}

TEST(DeviceProfileTest, ASlowerDiskIsSlowerInEveryRead) {
  DeviceProfile profile = Profile();
  profile.ScaleDisk(0.5);
  EXPECT_DOUBLE_EQ(profile.DiskRate(1 << 20, 4), 400e6);
  EXPECT_DOUBLE_EQ(profile.DiskLatencyMs(1 << 20, 1), 4);
  EXPECT_DOUBLE_EQ(profile.bursts->MsOf(9, 4096), 2 * Profile().bursts->MsOf(9, 4096));
  profile.SetDisk({});
  EXPECT_FALSE(profile.bursts.has_value()) << "what was measured of another disk";
}

std::string ErrorOf(std::string_view text) {
  return std::string(ParseDeviceProfile(text, "profile.json").status().message());
}

// A profile whose other fields are right.
std::string With(const std::string& fields) {
  return absl::StrCat(R"({"cpu": "x", "threads": 2, "read_bytes_per_second": 1e9, )", fields, "}");
}

TEST(DeviceProfileTest, AProfileOfAnEarlierReleaseHasNoBursts) {
  const absl::StatusOr<DeviceProfile> read =
      ParseDeviceProfile(With(R"("disk": [{"read_bytes": 65536, "depth": 1, "bytes_per_second": 1e9}])"), "profile.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->bursts.has_value());
  EXPECT_EQ(read->disk.size(), 1u);
  EXPECT_THAT(ToJsonText(*read), Not(HasSubstr("bursts")));
}

TEST(DeviceProfileTest, WrongFieldsAreNamed) {
  EXPECT_THAT(ErrorOf(R"({"cpu": "x", "threads": 0, "read_bytes_per_second": 1e9})"), HasSubstr("profile.json: field \"threads\" = 0"));
  EXPECT_THAT(ErrorOf(R"({"cpu": "x", "threads": 2, "read_bytes_per_second": -1})"), HasSubstr("\"read_bytes_per_second\" = -1"));
  EXPECT_THAT(ErrorOf(With(R"("flops": NaN)")), HasSubstr("is not valid JSON"));
  EXPECT_THAT(ErrorOf(With(R"("flops": 1e999)")), HasSubstr("beyond the range"));
  EXPECT_THAT(ErrorOf(With(R"("disk": [{"read_bytes": 0, "depth": 1, "bytes_per_second": 1}])")),
              HasSubstr("disk[0]: field \"read_bytes\""));
  EXPECT_THAT(ErrorOf(With(R"("disk": [7])")), HasSubstr("disk[0] is not an object"));
  EXPECT_THAT(ErrorOf(With(R"("bursts": 7)")), HasSubstr("\"bursts\""));
  EXPECT_THAT(ErrorOf(With(R"("bursts": {"burst_ms": 1, "read_ms": -1, "bytes_per_second": 1})")), HasSubstr("\"read_ms\" = -1"));
  EXPECT_THAT(ErrorOf(With(R"("bursts": {"burst_ms": 1, "read_ms": 1, "bytes_per_second": 0})")), HasSubstr("\"bytes_per_second\" = 0"));
  EXPECT_THAT(ErrorOf(With(R"("models": [{"key": "k", "points": [{"kind": "tail", "rows": 1, "ms": 1}]}])")),
              HasSubstr("models[0]: points[0]: field \"kind\" is none of embedding, attention, mlp, head, linear_attention and experts"));
  EXPECT_THAT(ErrorOf(With(R"("models": [{"key": "k", "points": [{"kind": "mlp", "rows": 1, "ms": -1}]}])")), HasSubstr("\"ms\" = -1"));
  EXPECT_THAT(ErrorOf(With(R"("links": [{"peer": "b", "bytes_per_second": 1}])")), HasSubstr("\"latency_ms\" is missing"));
  EXPECT_THAT(ErrorOf(With(R"("links": [{"peer": "b", "bytes_per_second": 2e15, "latency_ms": 1}])")), HasSubstr("bytes_per_second"));
  EXPECT_THAT(ErrorOf(With(R"("links": [{"peer": "b", "bytes_per_second": 1, "latency_ms": 2e9}])")), HasSubstr("latency_ms"));
  EXPECT_THAT(ErrorOf(With(absl::StrCat(R"("instruction_set": ")", std::string(1000, 'x'), "\""))), HasSubstr("longer than 512"));
}

TEST(DeviceProfileTest, WhatIsThereTwiceIsRefused) {
  const std::string point = R"({"read_bytes": 65536, "depth": 1, "bytes_per_second": 1})", model = R"({"key": "k", "points": []})";
  const std::string mlp = R"({"kind": "mlp", "rows": 1, "ms": 1})";
  EXPECT_THAT(ErrorOf(With(absl::StrCat("\"disk\": [", point, ",", point, "]"))), HasSubstr("disk is listed twice"));
  EXPECT_THAT(ErrorOf(With(absl::StrCat("\"models\": [", model, ",", model, "]"))), HasSubstr("a model is listed twice"));
  EXPECT_THAT(ErrorOf(With(absl::StrCat(R"("models": [{"key": "k", "points": [)", mlp, ",", mlp, "]}]"))),
              HasSubstr("\"k\" is listed twice"));
}

TEST(DeviceProfileTest, LargeAndDeepTextsAreRefused) {
  EXPECT_THAT(ErrorOf(std::string(100000, '[')), HasSubstr("nests more than"));
  EXPECT_THAT(ErrorOf(With(absl::StrCat("\"other\": ", std::string(50000, '['), std::string(50000, ']')))), HasSubstr("nests more than"));
  EXPECT_THAT(ErrorOf(std::string((16 << 20) + 1, ' ')), HasSubstr("larger than"));
  EXPECT_THAT(ErrorOf("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("is empty"));
}

}  // namespace
}  // namespace lime
