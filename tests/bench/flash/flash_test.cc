// The whole benchmark with small planted models: it takes seconds, and says nothing of disks.
#include "bench/flash/flash.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/flash/disk.h"
#include "daemon/stores/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "planner/demand/burst_fit.h"
#include "testbed/make_model/make_model.h"
#include "tests/integration/made_copies.h"
#include "tests/temp_dir.h"

namespace lime::flash {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int64_t kNeurons = 512, kLayers = 2;
// With a width of 1024, all but the MLPs has 18.8 MB, and all neurons have 4.2 MB.
constexpr Bytes kMemory = 20'500'000;

class FlashTest : public ::testing::Test {
 protected:
  void Make(int64_t hidden, bool planted = true, bool tied = false) {
    MakeModelOptions model{.planted_neurons = planted};
    model.config = {.family = "opt",
                    .num_layers = kLayers,
                    .hidden_size = hidden,
                    .num_heads = 8,
                    .num_kv_heads = 8,
                    .intermediate_size = kNeurons,
                    .vocab_size = 400,
                    .max_positions = 160,
                    .activation = Activation::kRelu,
                    .tie_embeddings = tied};
    ASSERT_TRUE(MakeModel(model, dir_ / "model").ok());
    const ModelSpec spec = Checkpoint::Open(dir_ / "model")->BuildModelSpec().value();
    const auto prepared =
        PrepareBlockStore(dir_ / "model", dir_ / "store", {.bundles = true, .decider_copies = MadeCopies(spec, /*all=*/true)});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    ASSERT_EQ(prepared->bundles->layers, kLayers);
  }
  FlashOptions Options() const {
    return {.store = dir_ / "store",
            .memory = kMemory,
            .window = 5,
            .learn = 96,
            .warm = 8,
            .tokens = 16,
            .whole = 2,
            .sweep = {0.6, 0.95},
            .quick = true};
  }
  static RungFigures Of(const FlashReport& report, Rung rung) { return report.ladder[static_cast<size_t>(rung)].figures; }

  TempDir dir_;
};

// One run with rows of 2 KiB and bundles of 4 KiB, which its tests share.
class FlashRunTest : public FlashTest {
 protected:
  void SetUp() override {
    if (report_) return;
    Make(1024);
    absl::StatusOr<FlashReport> report = RunFlash(Options());
    ASSERT_TRUE(report.ok()) << report.status();
    report_ = *std::move(report);
  }
  static inline std::optional<FlashReport> report_;
  const std::optional<FlashReport>& report = report_;
};

TEST_F(FlashRunTest, EveryRungReadsWhatItsMethodReads) {
  const double layers_of_neurons = kLayers * kNeurons;
  EXPECT_NEAR(Of(*report, Rung::kNaive).read_mb, static_cast<double>(report->shape.weights) / 1e6, 1e-6);
  EXPECT_NEAR(Of(*report, Rung::kHybrid).read_mb, static_cast<double>(report->shape.mlps) / 1e6, 1e-6);

  const RungFigures neurons = Of(*report, Rung::kNeurons), window = Of(*report, Rung::kWindow), bundles = Of(*report, Rung::kBundles),
                    path = Of(*report, Rung::kPath);
  EXPECT_NEAR(neurons.neurons, report->shares.predicted * layers_of_neurons, 1e-6);
  EXPECT_DOUBLE_EQ(neurons.reads, 2 * neurons.neurons);
  EXPECT_DOUBLE_EQ(neurons.read_mb, neurons.reads * 4096 / 1e6) << "a row of 2 KiB is in 4 KiB";
  EXPECT_LT(window.neurons, 0.8 * neurons.neurons);
  EXPECT_DOUBLE_EQ(window.reads, 2 * window.neurons);
  EXPECT_DOUBLE_EQ(bundles.neurons, window.neurons);
  EXPECT_DOUBLE_EQ(bundles.reads, bundles.neurons);
  EXPECT_DOUBLE_EQ(bundles.read_mb, bundles.reads * 4096 / 1e6);
  const RungFigures exact = Of(*report, Rung::kExact), certified = Of(*report, Rung::kCertified);
  EXPECT_GT(report->shape.copies, 0);
  EXPECT_GE(report->shares.unproven, report->shares.active);
  EXPECT_LT(report->shares.unproven, 0.9) << "copies of 8 and 6 bits prove something";
  EXPECT_GE(certified.neurons, exact.neurons) << "what is active has no proof";
  EXPECT_GE(certified.read_mb, certified.neurons * 4096 / 1e6) << "whole bundles";
  EXPECT_DOUBLE_EQ(path.neurons, window.neurons);
  EXPECT_LT(path.reads, bundles.reads);
  for (const MeasuredRung& rung : report->ladder) {
    EXPECT_GT(rung.figures.io_ms, 0) << rung.rule.name;
    EXPECT_GT(rung.figures.predicted_ms, 0) << rung.rule.name;
    EXPECT_NEAR(rung.figures.ratio, rung.figures.io_ms / rung.figures.predicted_ms, 1e-9) << rung.rule.name;
  }
}

TEST_F(FlashRunTest, MasksAreThoseOfAPlantedModel) {
  EXPECT_EQ(report->predictor_rank, 32);
  EXPECT_NEAR(report->shares.active, 0.03, 0.01);
  EXPECT_NEAR(report->shares.missed, 0.05, 0.04);
  EXPECT_GT(report->shares.false_positives, 0.03);
  EXPECT_LT(report->shares.false_positives, 0.15);
  ASSERT_EQ(report->unions.size(), 6u);
  EXPECT_NEAR(report->unions.front(), report->shares.predicted, 1e-9);
}

TEST_F(FlashRunTest, CompactRowsAreCopiedAndStableOnesAreNot) {
  ASSERT_EQ(report->placements.size(), 2u);
  EXPECT_EQ(report->placements[0].placement, "stable");
  EXPECT_EQ(report->placements[0].figures.moves, 0);
  EXPECT_EQ(report->placements[1].placement, "compact");
  EXPECT_GT(report->placements[1].figures.moves, 0);
  EXPECT_DOUBLE_EQ(report->placements[0].figures.neurons, report->placements[1].figures.neurons);
}

TEST_F(FlashTest, MoreMemoryReadsLess) {
  Make(1024);
  FlashOptions options = Options();
  options.window = 4096;
  options.sweep = {0.5, 0.9, 1.1};
  const auto report = RunFlash(options);
  ASSERT_TRUE(report.ok()) << report.status();
  ASSERT_EQ(report->sweep.size(), 3u);
  EXPECT_GT(report->sweep[0].rung.memory.streamed, 0) << "attention and embedding have more than half of this model";
  EXPECT_GT(report->sweep[0].rung.figures.read_mb, report->sweep[1].rung.figures.read_mb);
  EXPECT_GT(report->sweep[1].rung.figures.read_mb, report->sweep[2].rung.figures.read_mb);
  EXPECT_EQ(report->sweep[2].rung.memory.rows, kNeurons);
}

TEST_F(FlashTest, AHeadThatIsTheEmbeddingCountsOnce) {
  Make(256, /*planted=*/true, /*tied=*/true);
  FlashOptions options = Options();
  options.predict = false;
  const auto report = RunFlash(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const ModelSpec spec = LoadModelSpec(options.store).value();
  EXPECT_NEAR(static_cast<double>(report->shape.weights), static_cast<double>(spec.WeightBytes()), 64 << 10) << "but for alignment";
}

TEST_F(FlashTest, BundlesThatShareAPageAreReadToo) {
  Make(256);  // rows of 512 bytes, bundles of 1 KiB
  FlashOptions options = Options();
  options.predict = false;
  const auto report = RunFlash(options);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->bundle_bytes, 1024);
  EXPECT_EQ(report->predictor_rank, 0);
  EXPECT_NEAR(Of(*report, Rung::kNeurons).neurons, report->shares.active * kLayers * kNeurons, 1e-6);
  EXPECT_DOUBLE_EQ(Of(*report, Rung::kExact).neurons, Of(*report, Rung::kPath).neurons) << "both read active neurons here";
}

// Beside a rung, there is no time for bursts of more than 16 MiB.
TEST_F(FlashTest, BurstsBesideARungAreFewAndFitted) {
  const std::string path = dir_ / "file";
  std::ofstream(path, std::ios::binary) << std::string(static_cast<size_t>(32 * kMiB), 'x');
  const auto disk = FlashDisk::Open({path}, 32);
  ASSERT_TRUE(disk.ok()) << disk.status();
  const absl::StatusOr<std::vector<BurstPoint>> points = MeasureBursts(**disk, BurstGrid::kBeside, 1);
  ASSERT_TRUE(points.ok()) << points.status();
  EXPECT_THAT(*points, SizeIs(16));
  for (const BurstPoint& point : *points) {
    EXPECT_GT(point.ms, 0) << point.reads << " reads of " << point.bytes << " bytes";
    EXPECT_LE(point.reads * point.bytes, 16 * kMiB);
  }
  const absl::StatusOr<BurstCost> cost = FitBursts(*points);
  ASSERT_TRUE(cost.ok()) << cost.status();
  EXPECT_GT(cost->bytes_per_ms, 0);
}

TEST_F(FlashTest, TheReportIsATextAndAnObject) {
  Make(256);
  FlashOptions options = Options();
  options.predict = false;
  auto report = RunFlash(options);
  ASSERT_TRUE(report.ok()) << report.status();
  report->engine = {{.name = "exact", .io_ms = 3, .whole_ms = 9}, {.name = "off", .why_not = "no memory"}};
  report->computing_ms = 6;
  const std::string text = TextOf(*report);
  for (const RungRule& rule : kLadder) EXPECT_THAT(text, HasSubstr(std::string(rule.name)));
  EXPECT_THAT(text, HasSubstr("2130, 6.10, 1.0x"));
  EXPECT_THAT(text, HasSubstr("no memory"));
  const nlohmann::json json = JsonOf(*report);
  ASSERT_EQ(json["ladder"].size(), kLadder.size());
  EXPECT_EQ(json["ladder"][4]["paper"]["io_ms"], 87);
  EXPECT_TRUE(json["ladder"][5]["paper"].is_null());
  EXPECT_EQ(json["computing_ms"], 6);
  EXPECT_GT(json["ladder"][4]["whole_ms"].get<double>(), 6);
  EXPECT_EQ(json["engine"][1]["why_not"], "no memory");
  EXPECT_EQ(json["rates"].size(), report->rates.size());
  EXPECT_GT(json["rates"].size(), 0u);
}

TEST_F(FlashTest, AModelThatWasNotPlantedHasNoPredictor) {
  Make(256, /*planted=*/false);
  EXPECT_THAT(std::string(RunFlash(Options()).status().message()), HasSubstr("use --masks active"));
  FlashOptions active = Options();
  active.predict = false;
  active.tokens = 2;
  const auto report = RunFlash(active);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_GT(report->shares.active, 0.2) << "half of the neurons of a random model are active";
}

TEST_F(FlashTest, AWrongBundleIsAnError) {
  Make(1024);
  std::fstream file(dir_ / "store/bundles_0001.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(64 << 10);
  file << std::string(1 << 20, 'x');
  file.close();
  const absl::Status status = RunFlash(Options()).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bundles_0001.safetensors"));
}

TEST_F(FlashTest, WhatIsOutOfRangeIsRefused) {
  Make(256);
  const auto error = [](const FlashOptions& options) { return std::string(RunFlash(options).status().message()); };
  FlashOptions options = Options();
  options.tokens = 100;
  EXPECT_THAT(error(options), HasSubstr("204 tokens are more than its 160 positions"));
  options = Options();
  options.window = 0;
  EXPECT_THAT(error(options), HasSubstr("--window 0"));
  options = Options();
  options.store = dir_ / "model";
  EXPECT_THAT(error(options), HasSubstr("is not a block store"));
}

}  // namespace
}  // namespace lime::flash
