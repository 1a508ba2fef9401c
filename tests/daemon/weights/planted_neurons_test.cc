#include "testbed/make_model/planted_neurons.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "daemon/stores/float_codec.h"
#include "testbed/make_model/draws.h"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

MakeModelOptions PlantedOpt(int64_t width = 1024) {
  MakeModelOptions options;
  options.planted_neurons = true;
  options.config = {.family = "opt",
                    .num_layers = 4,
                    .hidden_size = width,
                    .num_heads = 4,
                    .num_kv_heads = 4,
                    .intermediate_size = width,
                    .vocab_size = 1000,
                    .max_positions = 256,
                    .tie_embeddings = true};
  return options;
}

std::vector<RandomTensor> TensorsOfPlanted(const MakeModelOptions& options) {
  const ModelConfig config = ParseModelConfig(ConfigJson(options), "test").value();
  return TensorsOf(config, {.dtype = options.dtype, .planted_neurons = true}).value();
}

RandomTensor Find(const std::vector<RandomTensor>& tensors, const std::string& end) {
  return *std::ranges::find_if(tensors, [&](const RandomTensor& tensor) { return tensor.name.ends_with(end); });
}

std::vector<float> Row(const RandomTensor& tensor, int64_t row) {
  const int64_t cols = tensor.shape.back();
  std::vector<std::byte> bytes(static_cast<size_t>(cols * 2));
  FillRandom(tensor, 1, row * cols, bytes);
  std::vector<float> values;
  for (int64_t i = 0; i < cols; ++i) values.push_back(LoadFloat(DType::kBF16, bytes.data() + 2 * i));
  return values;
}

double NormOf(std::span<const float> values) {
  return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
}

double SumOf(const std::vector<float>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

TEST(PlantedNeuronsTest, RowsOfTheFirstProjectionHaveTheirNormsInsideAndOutsideOfTheDirections) {
  const std::vector<RandomTensor> tensors = TensorsOfPlanted(PlantedOpt());
  const double scale = std::sqrt(1.0 / 32);
  for (int64_t row = 0; row < 20; ++row) {
    const std::vector<float> values = Row(Find(tensors, "layers.1.fc1.weight"), row);
    EXPECT_NEAR(NormOf(PlantedCoordinates(values)), scale, 0.01);
    EXPECT_NEAR(NormOf(values), scale * std::hypot(1, kPlantedStiffness), 0.01);
    EXPECT_NEAR(SumOf(values), 0, 0.1);
  }
}

TEST(PlantedNeuronsTest, PositionsWalkInsideTheDirections) {
  const RandomTensor table = Find(TensorsOfPlanted(PlantedOpt()), "embed_positions.weight");
  double squares = 0, beside = 0;
  constexpr int64_t kRows = 200, kFar = 9;  // the time constant
  for (int64_t row = 0; row < kRows; ++row) {
    const std::vector<float> values = Row(table, row), later = Row(table, row + kFar);
    EXPECT_NEAR(NormOf(PlantedCoordinates(values)), NormOf(values), 0.01);
    squares += std::pow(NormOf(values), 2) / kRows / 32;
    beside += std::inner_product(values.begin(), values.end(), later.begin(), 0.0) / kRows / 32;
  }
  EXPECT_NEAR(squares, 0.65, 0.15);
  EXPECT_NEAR(beside / squares, std::exp(-1), 0.15);
}

TEST(PlantedNeuronsTest, TokensHaveAPartOutsideTheDirections) {
  const RandomTensor table = Find(TensorsOfPlanted(PlantedOpt()), "embed_tokens.weight");
  double inside = 0;
  for (int64_t row = 0; row < 50; ++row) {
    const std::vector<float> values = Row(table, row);
    const double squares = std::pow(NormOf(PlantedCoordinates(values)), 2);
    inside += squares / 50 / 32;
    EXPECT_NEAR(std::pow(NormOf(values), 2) - squares, 0.25 * 32, 0.1);
  }
  EXPECT_NEAR(inside, 0.35, 0.05);
}

TEST(PlantedNeuronsTest, AnyPieceOfAMatrixHasTheSameBytes) {
  for (const char* const name : {"embed_positions.weight", "layers.0.fc1.weight"}) {
    const RandomTensor tensor = Find(TensorsOfPlanted(PlantedOpt(64)), name);
    std::vector<std::byte> whole(2 * 64 * 6), parts(whole.size());
    FillRandom(tensor, 9, 64, whole);
    FillRandom(tensor, 9, 64, std::span(parts).first(2 * 100));
    FillRandom(tensor, 9, 164, std::span(parts).subspan(2 * 100));
    EXPECT_EQ(whole, parts);
  }
}

TEST(PlantedNeuronsTest, AboutThreePercentAreActiveAndAPredictorIsAsGoodAsThePapers) {
  const absl::StatusOr<PlantedStatistics> statistics = MeasurePlantedNeurons(PlantedOpt());
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  EXPECT_NEAR(statistics->active.one, 0.03, 0.006);
  EXPECT_NEAR(statistics->false_positives, 0.08, 0.02) << "7 % at a width of 4096";
  EXPECT_NEAR(statistics->predicted.one, 0.105, 0.025);
  EXPECT_NEAR(statistics->predicted.five, 0.24, 0.05);
  EXPECT_NEAR(statistics->predicted.fresh, 0.024, 0.006);
  EXPECT_LT(statistics->active.five, statistics->predicted.five);
  EXPECT_THAT(StatisticsText(*statistics), HasSubstr("new in a token, window of 5"));
}

TEST(PlantedNeuronsTest, AWidthWithFewWalshFunctionsHasFewerDirections) {
  EXPECT_EQ(PlantedCoordinates(std::vector<float>(4544)).size(), 63u) << "Falcon 7B: 64 * 71";
  MakeModelOptions options = PlantedOpt(1136);  // 16 * 71
  options.config.num_heads = options.config.num_kv_heads = 71;
  EXPECT_EQ(PlantedCoordinates(std::vector<float>(1136)).size(), 15u);
  const absl::StatusOr<PlantedStatistics> statistics = MeasurePlantedNeurons(options);
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  EXPECT_NEAR(statistics->active.one, 0.03, 0.01);
  EXPECT_LT(statistics->active.fresh, 0.75 * statistics->active.one) << "neurons of recent tokens return";
}

TEST(PlantedNeuronsTest, WhatCannotBePlantedIsRefused) {
  TempDir dir;
  const auto error = [&](const MakeModelOptions& options) { return std::string(MakeModel(options, dir.path()).message()); };
  MakeModelOptions options = PlantedOpt(64);
  EXPECT_EQ(error(options), "");
  options.config.family = "llama";
  EXPECT_THAT(error(options), HasSubstr("need the family opt, not llama"));
  options = PlantedOpt(64);
  options.config.hidden_size = 48;
  EXPECT_THAT(error(options), HasSubstr("such as 256, 1024, 4096 or 4544, not 48"));
  options = PlantedOpt(64);
  options.config.quantization = Quantization{.bits = 4, .group_size = 32};
  EXPECT_THAT(error(options), HasSubstr("leave out --bits"));
}

}  // namespace
}  // namespace lime
