#include "testbed/make_model/make_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "daemon/stores/float_codec.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/weight_store.h"
#include "planner/base/small_floats.h"
#include "planner/plan/model/family.h"
#include "testbed/make_model/model_tensors.h"
#include "testbed/make_model/planted_routes.h"
#include "tests/cases.h"
#include "tests/skips.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::string BytesOf(const Checkpoint& checkpoint, const std::string& name) {
  const TensorLocation& at = checkpoint.location(name);
  std::ifstream in(checkpoint.files()[static_cast<size_t>(at.file)].path, std::ios::binary);
  std::string data(static_cast<size_t>(at.bytes), '\0');
  in.seekg(at.offset).read(data.data(), at.bytes);
  return data;
}

float FloatAt(const std::string& bytes, DType dtype, size_t i) {
  return LoadFloat(dtype, reinterpret_cast<const std::byte*>(bytes.data()) + i * static_cast<size_t>(ElementBytes(dtype)));
}

TEST(MakeModelTest, EveryFamilyDtypeAndPackingIsACheckpointOfExactlyItsTensors) {
  size_t turn = 0;  // of the dtypes: each family has one for each packing
  for (const Family* const family : Families()) {
    for (const int bits : {0, 3, 4, 6, 8}) {
      for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        if (turn++ % (ManyCases() ? 4 : 16) != 0) continue;
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

// ---- FP8

// Sizes that blocks of 128 do not divide.
MakeModelOptions InFp8(const std::string& family, ScaleShape scales, const std::string& method = "") {
  MakeModelOptions options;
  options.config = {.family = family, .hidden_size = 192, .num_heads = 6, .intermediate_size = 320, .full_attention_interval = 2};
  options.config.expert_intermediate_size = 160;
  options.config.quantization = kFp8;
  options.config.quantization->scales = scales;
  options.config.quantization_method = method;
  return options;
}

TEST(MakeModelTest, AModelInFp8HasTheScalesAndTheMethodAskedFor) {
  using Case = std::tuple<const char*, ScaleShape, const char*>;
  for (const auto& [method, scales, name] :
       {Case{"fp8", ScaleShape::kBlocks, ".weight_scale_inv"}, Case{"fp8", ScaleShape::kMatrix, ".weight_scale"},
        Case{"compressed-tensors", ScaleShape::kBlocks, ".weight_scale"}, Case{"compressed-tensors", ScaleShape::kRows, ".weight_scale"},
        Case{"compressed-tensors", ScaleShape::kMatrix, ".weight_scale"}}) {
    for (const char* family : {"qwen3", "phi3", "qwen3_5", "qwen3_moe"}) {
      const bool cuts_blocks = scales == ScaleShape::kBlocks && family == std::string("phi3");  // gate and up share blocks of 320 rows
      if (cuts_blocks) continue;
      SCOPED_TRACE(absl::StrCat(family, " ", method, " ", name));
      TempDir dir;
      ASSERT_TRUE(MakeModel(InFp8(family, scales, method), dir.path()).ok());
      const Checkpoint checkpoint = *Checkpoint::Open(dir.path());
      const absl::StatusOr<ModelSpec> spec = checkpoint.BuildModelSpec();
      ASSERT_TRUE(spec.ok()) << spec.status();
      EXPECT_EQ(spec->config.quantization_method, method);
      EXPECT_EQ(spec->working_dtype, DType::kBF16);
      EXPECT_THAT(checkpoint.IgnoredTensors(*spec), testing::IsEmpty());
      const BlockSpec& block = spec->block(AttentionBlockOf(spec->config, 1));
      const TensorSpec& o = block.tensors[*block.Find(TensorRole::kO, TensorPart::kWeight)];
      const TensorSpec& of_o = block.tensors[*block.Find(TensorRole::kO, TensorPart::kPinnedScales)];
      EXPECT_EQ(PackingOf(o.info, of_o.info, 192)->scales, scales);
      EXPECT_THAT(of_o.name, testing::EndsWith(std::string("o_proj") + name));
    }
  }
}

TEST(MakeModelTest, TheWidenedFormHasTheExactProductsOfCodesAndScales) {
  for (const ScaleShape scales : {ScaleShape::kBlocks, ScaleShape::kRows, ScaleShape::kMatrix}) {
    for (const char* family : {"qwen3", "qwen3_5_moe"}) {
      SCOPED_TRACE(absl::StrCat(family, " ", static_cast<int>(scales)));
      TempDir dir;
      MakeModelOptions options = InFp8(family, scales);
      if (scales == ScaleShape::kBlocks) options.config.expert_intermediate_size = 128;  // gate and up share a tensor
      ASSERT_TRUE(MakeModel(options, dir.file("fp8")).ok());
      options.widened = true;
      ASSERT_TRUE(MakeModel(options, dir.file("f32")).ok());
      const Checkpoint fp8 = *Checkpoint::Open(dir.file("fp8")), f32 = *Checkpoint::Open(dir.file("f32"));
      EXPECT_EQ(f32.BuildModelSpec()->working_dtype, DType::kF32);
      EXPECT_FALSE(f32.BuildModelSpec()->config.quantization.has_value());
      int matrices = 0;
      for (const auto& [name, info] : f32.index()) {
        const TensorInfo& stored = fp8.index().at(name);
        const std::string values = BytesOf(f32, name), codes = BytesOf(fp8, name);
        ASSERT_EQ(info.shape, stored.shape);
        if (stored.dtype != DType::kF8E4M3) {
          for (size_t i = 0; i < values.size() / 4; ++i)
            ASSERT_EQ(FloatAt(values, DType::kF32, i), FloatAt(codes, stored.dtype, i)) << name << " " << i;
          continue;
        }
        ++matrices;
        const std::string stem(absl::StripSuffix(name, ".weight"));
        const std::string scale = stem + (scales == ScaleShape::kBlocks ? ".weight_scale_inv" : ".weight_scale");
        const TensorInfo& of_scale = fp8.index().at(scale);
        const std::string scale_bytes = BytesOf(fp8, scale);
        const int64_t cols = info.shape.back(), rows = info.shape[info.shape.size() - 2];
        const int64_t col_blocks = of_scale.shape.back(), row_blocks = of_scale.shape.size() < 2 ? 1 : *(of_scale.shape.end() - 2);
        for (int64_t i = 0; i < std::ssize(codes); ++i) {
          const int64_t matrix = i / cols / rows, row = i / cols % rows, col = i % cols;
          const int64_t row_block = row_blocks == rows ? row : row_blocks == 1 ? 0 : row / 128, col_block = col_blocks == 1 ? 0 : col / 128;
          const double code = Fp8Value(static_cast<uint8_t>(codes[static_cast<size_t>(i)]));
          const double at =
              FloatAt(scale_bytes, of_scale.dtype, static_cast<size_t>((matrix * row_blocks + row_block) * col_blocks + col_block));
          ASSERT_EQ(double{FloatAt(values, DType::kF32, static_cast<size_t>(i))}, code * at) << name << " " << i;
        }
      }
      EXPECT_GT(matrices, 10);
    }
  }
}

TEST(MakeModelTest, WhatFp8DoesNotHaveIsRefused) {
  TempDir dir;
  const auto error = [&](const MakeModelOptions& options) { return std::string(MakeModel(options, dir.path()).message()); };
  EXPECT_THAT(error(InFp8("llama", ScaleShape::kRows, "fp8")), HasSubstr("\"fp8\" has no scales of rows"));
  EXPECT_THAT(error(InFp8("llama", ScaleShape::kRows, "awq")), HasSubstr("quantisation method \"awq\" is not one of these weights"));
  EXPECT_THAT(error({.widened = true}), HasSubstr("only a model in FP8 can be widened"));
}

// ---- mxfp4

TEST(MakeModelTest, GptOssHasTheTensorsOfItsPublishedFiles) {
  const std::string published = SharedDir() / "families" / "gpt_oss-tiny";
  LIME_SKIP_WITHOUT_SHARED(published);
  TempDir dir;
  MakeModelOptions options{.dtype = DType::kF32};
  options.config = {.family = "gpt_oss", .num_layers = 4, .num_heads = 6, .head_dim = 16, .expert_intermediate_size = 32};
  ASSERT_TRUE(MakeModel(options, dir.path()).ok());
  const Checkpoint made = *Checkpoint::Open(dir.path()), expected = *Checkpoint::Open(published);
  EXPECT_EQ(made.BuildModelSpec()->config.quantization_method, "mxfp4");
  ASSERT_EQ(made.index().size(), expected.index().size());
  for (const auto& [name, info] : expected.index()) {
    ASSERT_TRUE(made.index().contains(name)) << name;
    EXPECT_EQ(made.index().at(name).dtype, info.dtype) << name;
    EXPECT_EQ(made.index().at(name).shape, info.shape) << name;
  }
}

TEST(MakeModelTest, ValuesOfMxfp4HaveTheDeviationOfAMatrix) {
  TempDir dir;
  MakeModelOptions options;
  options.config.family = "gpt_oss";
  ASSERT_TRUE(MakeModel(options, dir.path()).ok());
  const Checkpoint checkpoint = *Checkpoint::Open(dir.path());
  const std::string blocks = BytesOf(checkpoint, "model.layers.0.mlp.experts.gate_up_proj_blocks"),
                    scales = BytesOf(checkpoint, "model.layers.0.mlp.experts.gate_up_proj_scales");
  double squares = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto byte = static_cast<uint8_t>(blocks[i]);
    const double scale = PowerOfCode(static_cast<uint8_t>(scales[i / 16]));
    for (const double value : {kFp4Values[byte & 15] * scale, kFp4Values[byte >> 4] * scale}) squares += value * value;
  }
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(2 * blocks.size())), 1 / std::sqrt(64.0), 0.03);
}

TEST(MakeModelTest, ShardsHoldTheSameModel) {
  TempDir dir;
  ASSERT_TRUE(MakeModel({.shards = 1}, dir.file("one")).ok());
  ASSERT_TRUE(MakeModel({.shards = 4}, dir.file("four")).ok());
  const auto one = Checkpoint::Open(dir.file("one")), four = Checkpoint::Open(dir.file("four"));
  ASSERT_TRUE(one.ok() && four.ok()) << four.status();
  EXPECT_EQ(four->files().size(), 4u);
  ASSERT_EQ(one->index().size(), four->index().size());
  for (const auto& [name, info] : one->index()) EXPECT_EQ(BytesOf(*one, name), BytesOf(*four, name)) << name;
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

// ---- Planted routes

MakeModelOptions Planted() {
  MakeModelOptions options{.dtype = DType::kF32, .planted_routes = true};
  options.config.family = "qwen3_moe";
  options.config.hidden_size = 512;
  return options;
}

// Cosine of two rows.
double CosineOf(const std::string& bytes, size_t cols, size_t a, size_t b) {
  double ab = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < cols; ++i) {
    const double x = FloatAt(bytes, DType::kF32, a * cols + i), y = FloatAt(bytes, DType::kF32, b * cols + i);
    ab += x * y, aa += x * x, bb += y * y;
  }
  return ab / std::sqrt(aa * bb);
}

TEST(MakeModelTest, PlantedRoutesGiveTokensOfATopicLikeEmbeddingsAndOneHead) {
  TempDir dir;
  ASSERT_TRUE(MakeModel(Planted(), dir.path()).ok());
  const Checkpoint checkpoint = *Checkpoint::Open(dir.path());
  const std::string embedding = BytesOf(checkpoint, "model.embed_tokens.weight"), head = BytesOf(checkpoint, "lm_head.weight");
  constexpr size_t kOther = 5 + kPlantedTopics;
  EXPECT_NEAR(CosineOf(embedding, 512, 5, kOther), kPlantedShared, 0.1);
  EXPECT_NEAR(CosineOf(embedding, 512, 5, 6), 0, 0.15);
  EXPECT_NEAR(CosineOf(head, 512, 5, kOther), 1, 1e-6);
  EXPECT_NEAR(CosineOf(head, 512, 5, 6), 0, 0.15);
  double pull = 0, squares = 0;  // the head's product for a token of the same topic, of a normalised x
  for (size_t i = 0; i < 512; ++i) {
    const double x = FloatAt(embedding, DType::kF32, 5 * 512 + i);
    pull += x * FloatAt(head, DType::kF32, kOther * 512 + i), squares += x * x;
  }
  EXPECT_NEAR(pull / std::sqrt(squares / 512), std::log(kPlantedStay * (kPlantedTopics - 1) / (1 - kPlantedStay)), 1);
}

TEST(MakeModelTest, PlantedRowsAreTheSameInWhateverPiecesTheyAreDrawn) {
  const RandomTensor tensor{.name = "x",
                            .dtype = DType::kBF16,
                            .shape = {130, 6},
                            .kind = RandomTensor::Kind::kTopics,
                            .stream = 3,
                            .deviation = 1,
                            .shared_deviation = 2};
  std::vector<std::byte> whole(130 * 6 * 2), parts(whole.size());
  FillRandom(tensor, 9, 0, whole);
  FillRandom(tensor, 9, 0, std::span(parts).first(2 * 100));
  FillRandom(tensor, 9, 100, std::span(parts).subspan(2 * 100));
  EXPECT_EQ(whole, parts);
}

TEST(MakeModelTest, RoutesThatCannotBePlantedAreRefused) {
  TempDir dir;
  const auto error = [&](const MakeModelOptions& options) { return std::string(MakeModel(options, dir.path()).message()); };
  MakeModelOptions options = Planted();
  options.config.family = "llama";
  EXPECT_THAT(error(options), HasSubstr("need a family with experts, such as qwen3_moe; llama has none"));
  options = Planted();
  options.config.tie_embeddings = true;
  EXPECT_THAT(error(options), HasSubstr("need a head of its own"));
  options = Planted();
  options.config.quantization = Quantization{.bits = 4, .group_size = 32};
  EXPECT_THAT(error(options), HasSubstr("leave out --bits"));
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
