#include "testbed/make_model/make_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "daemon/stores/float_codec.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/weight_store.h"
#include "planner/plan/model/family.h"
#include "testbed/make_model/model_tensors.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

TEST(MakeModelTest, EveryFamilyDtypeAndPackingIsACheckpointOfExactlyItsTensors) {
  size_t turn = 0;  // of the dtypes: each family has one for each packing
  for (const Family* const family : Families()) {
    if (family->name == "gpt_oss") continue;  // its experts are mxfp4, which MakeModel does not write
    for (const int bits : {0, 3, 4, 6, 8}) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        if (turn++ % 4 != 0) continue;
        for (const bool tie : {false, true}) {
          if (bits != 0 && tie != (bits == 4)) continue;  // the whole product would take long and show no more
          TempDir dir;
          MakeModelOptions options{.dtype = dtype};
          options.config.family = family->name;
          options.config.full_attention_interval = 2;  // one layer of each kind
          options.config.tie_embeddings = tie;
          if (bits != 0) options.config.quantization = Quantization{.bits = bits, .group_size = 32};
          ASSERT_TRUE(MakeModel(options, dir.path()).ok());
          const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
          ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
          const absl::StatusOr<ModelSpec> spec = checkpoint->BuildModelSpec();
          ASSERT_TRUE(spec.ok()) << spec.status();
          EXPECT_EQ(spec->config.model_type, family->name);
          EXPECT_EQ(spec->working_dtype, dtype);
          Bytes in_files = 0;
          for (const auto& [name, info] : checkpoint->index()) in_files += info.bytes;
          EXPECT_EQ(spec->WeightBytes(), in_files) << "tensors that no block uses";
        }
      }
    }
  }
}

TEST(MakeModelTest, ShardsHoldTheSameModel) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({.shards = 1}, dir.file("one")).ok());
  ASSERT_TRUE(MakeModel({.shards = 4}, dir.file("four")).ok());
  const auto one = Checkpoint::Open(dir.file("one")), four = Checkpoint::Open(dir.file("four"));
  ASSERT_TRUE(one.ok() && four.ok()) << four.status();
  EXPECT_EQ(four->files().size(), 4u);
  ASSERT_EQ(one->index().size(), four->index().size());
  const auto bytes = [&](const Checkpoint& checkpoint, const std::string& name) {
    const TensorLocation& at = checkpoint.location(name);
    std::ifstream in(checkpoint.files()[static_cast<size_t>(at.file)].path, std::ios::binary);
    std::string data(static_cast<size_t>(at.bytes), '\0');
    in.seekg(at.offset).read(data.data(), at.bytes);
    return data;
  };
  for (const auto& [name, info] : one->index()) EXPECT_EQ(bytes(*one, name), bytes(*four, name)) << name;
}

TEST(MakeModelTest, TheSameSeedLeadsToTheSameBytesAndAnotherSeedToOthers) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({.seed = 1}, dir.file("a")).ok());
  ASSERT_TRUE(MakeModel({.seed = 1}, dir.file("b")).ok());
  ASSERT_TRUE(MakeModel({.seed = 2}, dir.file("c")).ok());
  EXPECT_EQ(dir.Read("a/model.safetensors"), dir.Read("b/model.safetensors"));
  EXPECT_NE(dir.Read("a/model.safetensors"), dir.Read("c/model.safetensors"));
}

TEST(MakeModelTest, ValuesDoNotDependOnTheChunkTheyAreDrawnIn) {
  const RandomTensor tensor{.name = "x", .dtype = DType::kBF16, .shape = {1000}, .stream = 3, .mean = 0, .deviation = 1};
  std::vector<std::byte> whole(2000), parts(2000);
  FillRandom(tensor, 9, 0, whole);
  for (const int64_t first : {0, 500, 502, 998}) {
    const int64_t last = first == 0 ? 500 : first == 500 ? 502 : first == 502 ? 998 : 1000;
    FillRandom(tensor, 9, first, std::span(parts).subspan(static_cast<size_t>(first) * 2, static_cast<size_t>(last - first) * 2));
  }
  EXPECT_EQ(whole, parts);
}

TEST(MakeModelTest, ValuesHaveTheAskedMeanAndDeviation) {
  const RandomTensor tensor{.name = "x", .dtype = DType::kF32, .shape = {100'000}, .stream = 3, .mean = 1, .deviation = 0.25f};
  std::vector<std::byte> bytes(400'000);
  FillRandom(tensor, 9, 0, bytes);
  double sum = 0, squares = 0;
  for (size_t at = 0; at < bytes.size(); at += 4) {
    const double value = LoadFloat(DType::kF32, &bytes[at]) - 1;
    sum += value;
    squares += value * value;
  }
  EXPECT_NEAR(sum / 100'000, 0, 0.005);
  EXPECT_NEAR(std::sqrt(squares / 100'000), 0.25, 0.005);
}

TEST(MakeModelTest, RopeScalingOfEveryTypeIsReadBack) {
  for (const RopeType type : {RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic, RopeType::kLlama3, RopeType::kYarn}) {
    MakeModelOptions options;
    options.config.rope = {.type = type, .theta = 500'000, .factor = 4, .original_max_position = 128};
    const absl::StatusOr<ModelConfig> config = ParseModelConfig(ConfigJson(options), "config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->ropes.at(0).type, type);
    EXPECT_EQ(config->ropes[0].theta, 500'000);
    if (type != RopeType::kDefault) {
      EXPECT_EQ(config->ropes[0].factor, 4);
      EXPECT_EQ(config->ropes[0].original_max_position, type == RopeType::kDynamic ? options.config.max_positions : 128);
    }
  }
}

TEST(MakeModelTest, TheTokenizerNamesEveryByteOnceAndFillsTheVocabulary) {
  const auto json = nlohmann::json::parse(ByteTokenizerJson(300));
  const auto& vocab = json["model"]["vocab"];
  EXPECT_EQ(vocab.size(), 300u);
  std::vector<int> seen(300);
  for (const auto& [token, id] : vocab.items()) ++seen[id.get<size_t>()];
  EXPECT_THAT(seen, testing::Each(1));
  EXPECT_EQ(vocab["A"], 'A');
  EXPECT_EQ(vocab["\u0120"], ' ');
  EXPECT_EQ(vocab["\u010a"], '\n');
}

TEST(MakeModelTest, GeometryThatCannotBeIsRefused) {
  TempDir dir;
  MakeModelOptions options;
  options.config.vocab_size = 100;
  EXPECT_THAT(std::string(MakeModel(options, dir.path()).message()), HasSubstr("a vocabulary of 100 cannot hold"));
  options.tokenizer = false;
  EXPECT_TRUE(MakeModel(options, dir.path()).ok());
  options.config.num_kv_heads = 3;
  EXPECT_FALSE(MakeModel(options, dir.path()).ok());
  options.config.family = "mamba";
  EXPECT_THAT(std::string(MakeModel(options, dir.path()).message()), HasSubstr("\"mamba\" is not a model family; use one of llama, "));
}

}  // namespace
}  // namespace lime
