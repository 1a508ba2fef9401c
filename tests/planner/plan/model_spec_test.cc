#include "planner/plan/model/model_spec.h"

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

ModelConfig TinyConfig() {
  ModelConfig config;
  config.architecture = "LlamaForCausalLM";
  config.model_type = "llama";
  config.hidden_size = 64;
  config.num_heads = 4;
  config.layers.assign(2, {.num_kv_heads = 2, .head_dim = 16, .intermediate_size = 128});
  config.ropes = {RopeConfig{.dims = 16}};
  config.vocab_size = 100;
  config.max_positions = 32;
  return config;
}

void Put(TensorIndex& index, const std::string& name, std::vector<int64_t> shape, DType dtype = DType::kBF16) {
  int64_t elements = 1;
  for (const int64_t n : shape) elements *= n;
  index[name] = {dtype, std::move(shape), elements * ElementBytes(dtype)};
}

TensorIndex TinyIndex() {
  TensorIndex index;
  Put(index, "model.embed_tokens.weight", {100, 64});
  Put(index, "model.norm.weight", {64});
  Put(index, "lm_head.weight", {100, 64});
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    Put(index, layer + "input_layernorm.weight", {64});
    Put(index, layer + "post_attention_layernorm.weight", {64});
    Put(index, layer + "self_attn.q_proj.weight", {64, 64});
    Put(index, layer + "self_attn.k_proj.weight", {32, 64});
    Put(index, layer + "self_attn.v_proj.weight", {32, 64});
    Put(index, layer + "self_attn.o_proj.weight", {64, 64});
    Put(index, layer + "mlp.gate_proj.weight", {128, 64});
    Put(index, layer + "mlp.up_proj.weight", {128, 64});
    Put(index, layer + "mlp.down_proj.weight", {64, 128});
  }
  return index;
}

std::string SpecError(const ModelConfig& config, const TensorIndex& index) {
  return std::string(ModelSpec::Build(config, index, "folder").status().message());
}

TEST(ModelSpecTest, BlocksAreInExecutionOrder) {
  const ModelSpec spec = *ModelSpec::Build(TinyConfig(), TinyIndex(), "folder");
  ASSERT_EQ(spec.blocks.size(), 6u);
  EXPECT_EQ(BlockName(spec.blocks[0].id), "embedding");
  EXPECT_EQ(BlockName(spec.blocks[1].id), "attention 0");
  EXPECT_EQ(BlockName(spec.blocks[4].id), "mlp 1");
  EXPECT_EQ(BlockName(spec.blocks[5].id), "head");
  EXPECT_EQ(spec.working_dtype, DType::kBF16);
  EXPECT_EQ(spec.block({BlockKind::kMlp, 0}).bytes, 2 * (64 + 3 * 64 * 128));
  EXPECT_EQ(spec.KvBytesPerToken(), 2 * 2 * 2 * 16 * 2);
}

TEST(ModelSpecTest, TiedOutputIsCountedOnce) {
  ModelConfig config = TinyConfig();
  const Bytes untied = ModelSpec::Build(config, TinyIndex(), "folder")->WeightBytes();
  config.tie_embeddings = true;
  EXPECT_EQ(ModelSpec::Build(config, TinyIndex(), "folder")->WeightBytes(), untied - 2 * 100 * 64);
}

TEST(ModelSpecTest, WorkingDTypeOfPackedLayersIsThatOfTheScales) {
  TensorIndex index = TinyIndex();
  for (auto& [name, info] : index) {
    info.dtype = DType::kF16;
  }
  Put(index, "model.layers.0.mlp.down_proj.weight", {64, 16}, DType::kU32);
  Put(index, "model.layers.0.mlp.down_proj.scales", {64, 2}, DType::kF16);
  Put(index, "model.layers.0.mlp.down_proj.biases", {64, 2}, DType::kF16);
  const ModelSpec spec = *ModelSpec::Build(TinyConfig(), index, "folder");
  EXPECT_EQ(spec.working_dtype, DType::kF16);
  EXPECT_EQ(PackingOf(index["model.layers.0.mlp.down_proj.weight"], index["model.layers.0.mlp.down_proj.scales"], 128)->bits, 4);
}

TEST(ModelSpecTest, NormsMayHaveADTypeOfTheirOwn) {
  TensorIndex index = TinyIndex();
  Put(index, "model.layers.0.input_layernorm.weight", {64}, DType::kF32);
  Put(index, "model.norm.weight", {64}, DType::kF16);
  const auto spec = ModelSpec::Build(TinyConfig(), index, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->working_dtype, DType::kBF16);
  Put(index, "model.norm.weight", {64}, DType::kI8);
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("model.norm.weight is I8; BF16, F16, F32"));
}

TEST(ModelSpecTest, NamesTheTensorThatDisagrees) {
  TensorIndex index = TinyIndex();
  Put(index, "model.layers.1.mlp.up_proj.weight", {127, 64});
  EXPECT_EQ(SpecError(TinyConfig(), index),
            "folder: tensor model.layers.1.mlp.up_proj.weight has shape [127, 64], but config.json implies [128, 64]");
  index = TinyIndex();
  index.erase("model.layers.1.self_attn.v_proj.weight");
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("tensor model.layers.1.self_attn.v_proj.weight is missing"));
  index = TinyIndex();
  Put(index, "lm_head.weight", {100, 64}, DType::kF32);
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("lm_head.weight is F32, but earlier tensors are BF16"));
  index = TinyIndex();
  Put(index, "model.embed_tokens.weight", {100, 64}, DType::kF8E4M3);
  EXPECT_THAT(SpecError(TinyConfig(), index),
              HasSubstr("is F8_E4M3; BF16, F16, F32, MLX affine groups, mxfp4 and FP8 with scales are supported"));
}

TEST(ModelSpecTest, RefusesPackedShapesThatFitNoGroup) {
  TensorIndex index = TinyIndex();
  Put(index, "model.layers.0.mlp.down_proj.weight", {64, 15}, DType::kU32);
  Put(index, "model.layers.0.mlp.down_proj.scales", {64, 2});
  Put(index, "model.layers.0.mlp.down_proj.biases", {64, 2});
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("has 15 words and 2 groups for 128 columns"));
  Put(index, "model.layers.0.mlp.down_proj.biases", {64, 3});
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("biases [64, 3]"));
}

// The same tensors with other names.
TensorIndex Renamed(const std::string& from, const std::string& to, const TensorIndex& index = TinyIndex()) {
  TensorIndex renamed;
  for (const auto& [name, info] : index) renamed[name.starts_with(from) ? to + name.substr(from.size()) : name] = info;
  return renamed;
}

TEST(ModelSpecTest, NamesOfTheBaseModelAloneLackItsPrefix) {
  for (const char* family : {"llama", "mistral"}) {
    ModelConfig config = TinyConfig();
    config.model_type = family;
    const auto spec = ModelSpec::Build(config, Renamed("model.", ""), "folder");
    ASSERT_TRUE(spec.ok()) << spec.status();
    EXPECT_EQ(spec->tensor_prefix, "");
    EXPECT_EQ(spec->blocks[0].tensors[0].name, "embed_tokens.weight");
    EXPECT_EQ(spec->blocks[1].tensors[0].name, "layers.0.input_layernorm.weight");
    EXPECT_EQ(spec->blocks.back().tensors[1].name, "lm_head.weight");
  }
  EXPECT_EQ(ModelSpec::Build(TinyConfig(), TinyIndex(), "folder")->tensor_prefix, "model.");
  TensorIndex headless = Renamed("model.", "");
  headless.erase("lm_head.weight");
  EXPECT_THAT(SpecError(TinyConfig(), headless), HasSubstr("a checkpoint of the base model alone has no head"));
  ModelConfig tied = TinyConfig();
  tied.tie_embeddings = true;
  EXPECT_EQ(SpecError(tied, headless), "");
}

TEST(ModelSpecTest, NamesOfAModelThatAlsoReadsImagesHaveAnotherPrefix) {
  const auto nested = ModelSpec::Build(TinyConfig(), Renamed("model.", "model.language_model."), "folder");
  ASSERT_TRUE(nested.ok()) << nested.status();
  EXPECT_EQ(nested->tensor_prefix, "model.language_model.");
  EXPECT_EQ(nested->head_module, "lm_head");
  TensorIndex index = Renamed("lm_head.", "language_model.lm_head.", Renamed("model.", "language_model.model."));
  Put(index, "vision_tower.layers.0.input_layernorm.weight", {8});
  const auto outer = ModelSpec::Build(TinyConfig(), index, "folder");
  ASSERT_TRUE(outer.ok()) << outer.status();
  EXPECT_EQ(outer->tensor_prefix, "language_model.model.");
  EXPECT_EQ(outer->blocks.back().tensors[1].name, "language_model.lm_head.weight");
  index.erase("language_model.lm_head.weight");
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("a checkpoint of the base model alone has no head"));
}

TEST(ModelSpecTest, NamesOfAnotherClassAreShown) {
  for (const std::string prefix : {"model.model.", "base_model.model.model.", "language_model.", "transformer."}) {
    EXPECT_THAT(SpecError(TinyConfig(), Renamed("model.", prefix)),
                HasSubstr("tensor model.embed_tokens.weight is missing; LlamaForCausalLM needs it, but the file has " + prefix +
                          "embed_tokens.weight; save"));
  }
  TensorIndex index = TinyIndex();
  index.erase("model.norm.weight");
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("needs it; download all files of the weights again"));
}

TEST(ModelSpecTest, ATiedModelMayStoreItsHeadAlone) {
  ModelConfig config = TinyConfig();
  config.tie_embeddings = true;
  TensorIndex index = TinyIndex();
  index.erase("model.embed_tokens.weight");
  const auto spec = ModelSpec::Build(config, index, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->blocks.front().tensors[0].name, "lm_head.weight");
  EXPECT_EQ(spec->blocks.back().tensors[1].name, "lm_head.weight");
  EXPECT_EQ(spec->WeightBytes(), ModelSpec::Build(config, TinyIndex(), "folder")->WeightBytes());
  config.tie_embeddings = false;
  EXPECT_THAT(SpecError(config, index), HasSubstr("model.embed_tokens.weight is missing"));
}

// One layer of each kind.
ModelConfig TinyHybrid() {
  ModelConfig config = TinyConfig();
  config.model_type = "qwen3_5";
  config.layers[0] = {.attention = AttentionKind::kLinear, .rope = -1, .intermediate_size = 128};
  config.linear_attention = LinearAttentionConfig{.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 16, .conv_width = 4};
  config.qk_norm = config.attention_gate = true;
  config.norm_offset = 1;
  return config;
}

TensorIndex HybridIndex() {
  TensorIndex index = TinyIndex();
  std::erase_if(index, [](const auto& tensor) { return tensor.first.starts_with("model.layers.0.self_attn."); });
  const std::string linear = "model.layers.0.linear_attn.", attention = "model.layers.1.self_attn.";
  Put(index, linear + "in_proj_qkv.weight", {96, 64});
  Put(index, linear + "in_proj_z.weight", {64, 64});
  Put(index, linear + "in_proj_b.weight", {4, 64});
  Put(index, linear + "in_proj_a.weight", {4, 64});
  Put(index, linear + "conv1d.weight", {96, 1, 4});
  Put(index, linear + "A_log", {4}, DType::kF32);
  Put(index, linear + "dt_bias", {4});
  Put(index, linear + "norm.weight", {16}, DType::kF32);
  Put(index, linear + "out_proj.weight", {64, 64});
  Put(index, attention + "q_proj.weight", {128, 64});
  Put(index, attention + "q_norm.weight", {16});
  Put(index, attention + "k_norm.weight", {16});
  return index;
}

TEST(ModelSpecTest, ALayerWithLinearAttentionHasAStateInsteadOfKv) {
  const auto spec = ModelSpec::Build(TinyHybrid(), HybridIndex(), "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(BlockName(spec->blocks[1].id), "linear_attention 0");
  EXPECT_EQ(BlockName(spec->blocks[3].id), "attention 1");
  EXPECT_EQ(AttentionBlockOf(spec->config, 0), spec->blocks[1].id);
  std::vector<TensorRole> roles;
  for (const TensorSpec& tensor : spec->blocks[1].tensors) roles.push_back(tensor.role);
  EXPECT_THAT(roles, testing::ElementsAre(TensorRole::kNorm, TensorRole::kQkv, TensorRole::kZ, TensorRole::kBeta, TensorRole::kDecay,
                                          TensorRole::kConv, TensorRole::kDecayLog, TensorRole::kDecayBias, TensorRole::kOutputNorm,
                                          TensorRole::kO));
  EXPECT_EQ(spec->NumKvLayers(), 1);
  EXPECT_EQ(spec->KvPageBytes(), 16 * 2 * 2 * 16 * 2);
  EXPECT_EQ(spec->KvBytesPerToken(), 2 * 2 * 16 * 2);
  EXPECT_EQ(spec->StateBytes(0), 64 + 4 * (4 * 8 * 16 + 3 * 96));
  EXPECT_EQ(spec->StateBytes(1), 0);
}

TEST(ModelSpecTest, AConvolutionAsMlxStoresItMeansNormsWithTheOffset) {
  EXPECT_EQ(ModelSpec::Build(TinyHybrid(), HybridIndex(), "folder")->config.norm_offset, 1);
  TensorIndex index = HybridIndex();
  Put(index, "model.layers.0.linear_attn.conv1d.weight", {96, 4, 1});
  EXPECT_EQ(ModelSpec::Build(TinyHybrid(), index, "folder")->config.norm_offset, 0);
  Put(index, "model.layers.0.linear_attn.conv1d.weight", {96, 4});
  EXPECT_THAT(SpecError(TinyHybrid(), index), HasSubstr("has shape [96, 4], but config.json implies [96, 1, 4]"));
}

// The down projection of layer 0, [64, 128].
constexpr char kDown[] = "model.layers.0.mlp.down_proj";

TensorIndex Fp8Index(const std::string& scale, std::vector<int64_t> shape, DType dtype = DType::kF32) {
  TensorIndex index = TinyIndex();
  Put(index, std::string(kDown) + ".weight", {64, 128}, DType::kF8E4M3);
  Put(index, std::string(kDown) + scale, std::move(shape), dtype);
  return index;
}

TEST(ModelSpecTest, Fp8HasScalesOfBlocksRowsOrTheMatrix) {
  for (const auto& [scale, shape, shared] :
       std::vector<std::tuple<std::string, std::vector<int64_t>, ScaleShape>>{{".weight_scale_inv", {1, 1}, ScaleShape::kBlocks},
                                                                              {".weight_scale", {64, 1}, ScaleShape::kRows},
                                                                              {".weight_scale", {1}, ScaleShape::kMatrix},
                                                                              {".weight_scale", {}, ScaleShape::kMatrix}}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const auto spec = ModelSpec::Build(TinyConfig(), Fp8Index(scale, shape, dtype), "folder");
      ASSERT_TRUE(spec.ok()) << spec.status();
      EXPECT_EQ(spec->working_dtype, DType::kBF16);
      const BlockSpec& block = spec->block({BlockKind::kMlp, 0});
      const TensorSpec& weight = block.tensors[*block.Find(TensorRole::kDown, TensorPart::kWeight)];
      const TensorSpec& scales = block.tensors[*block.Find(TensorRole::kDown, TensorPart::kPinnedScales)];
      EXPECT_EQ(PackingOf(weight.info, scales.info, 128)->scales, shared);
      EXPECT_EQ(weight.info.bytes, 64 * 128);
    }
  }
}

TEST(ModelSpecTest, RefusesFp8OfOtherShapes) {
  EXPECT_THAT(SpecError(TinyConfig(), Fp8Index(".weight_scale_inv", {2, 1})),
              HasSubstr("has scales of shape [2, 1] for 64 rows and 128 columns"));
  EXPECT_THAT(SpecError(TinyConfig(), Fp8Index(".weight_scale_inv", {1, 1}, DType::kU8)), HasSubstr("has scales of U8"));
  TensorIndex index = Fp8Index(".weight_scale_inv", {1, 1});
  Put(index, std::string(kDown) + ".weight", {64, 64}, DType::kF8E4M3);
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("has shape [64, 64], but config.json implies [64, 128]"));
  Put(index, std::string(kDown) + ".weight", {64, 128});
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("is BF16 beside model.layers.0.mlp.down_proj.weight_scale_inv"));
  index = TinyIndex();
  Put(index, "model.embed_tokens.weight", {100, 64}, DType::kF8E4M3);
  Put(index, "model.embed_tokens.weight_scale", {1}, DType::kF32);
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("an embedding of FP8 is not supported"));
}

TEST(ModelSpecTest, Mxfp4HasNoBiases) {
  TensorIndex index = TinyIndex();
  Put(index, std::string(kDown) + ".weight", {64, 16}, DType::kU32);
  Put(index, std::string(kDown) + ".scales", {64, 4}, DType::kU8);
  const auto spec = ModelSpec::Build(TinyConfig(), index, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const BlockSpec& block = spec->block({BlockKind::kMlp, 0});
  EXPECT_FALSE(block.Find(TensorRole::kDown, TensorPart::kGroupBiases).has_value());
  EXPECT_EQ(*PackingOf(index[std::string(kDown) + ".weight"], index[std::string(kDown) + ".scales"], 128), kMxfp4);
  Put(index, std::string(kDown) + ".scales", {64, 2}, DType::kU8);
  EXPECT_THAT(SpecError(TinyConfig(), index), HasSubstr("has 64 bytes and 2 groups in a row of 128 columns; mxfp4 in groups of 32"));
}

TEST(ModelSpecTest, AMethodByWhichNothingIsStoredIsRefusedByName) {
  for (const auto& [method, format] : {std::pair{"fp8", kFp8}, std::pair{"compressed-tensors", kFp8}, std::pair{"mxfp4", kMxfp4}}) {
    ModelConfig config = TinyConfig();
    config.quantization = format;
    config.quantization_method = method;
    EXPECT_THAT(SpecError(config, TinyIndex()), HasSubstr(std::string("quantisation method \"") + method + "\" is not supported"));
    if (format == kFp8) EXPECT_EQ(SpecError(config, Fp8Index(".weight_scale", {1})), "");
  }
}

TEST(ModelSpecTest, AModeOfMlxByWhichNothingIsStoredIsRefusedByName) {
  TensorIndex affine = TinyIndex();
  Put(affine, std::string(kDown) + ".weight", {64, 16}, DType::kU32);
  Put(affine, std::string(kDown) + ".scales", {64, 4});
  Put(affine, std::string(kDown) + ".biases", {64, 4});
  EXPECT_EQ(SpecError(TinyConfig(), affine), "");
  ModelConfig whole = TinyConfig(), module = TinyConfig();
  whole.quantization = kMxfp4;
  module.quantization = Quantization{.bits = 4, .group_size = 32};
  EXPECT_EQ(SpecError(module, affine), "");
  module.quantization_of[kDown] = kMxfp4;
  for (const TensorIndex& index : {affine, TinyIndex()})
    EXPECT_THAT(SpecError(whole, index), HasSubstr("quantisation mode \"mxfp4\" is not supported as config.json states it"));
  EXPECT_THAT(SpecError(module, affine), HasSubstr("states the quantisation mode \"mxfp4\" of model.layers.0.mlp.down_proj"));
  TensorIndex mxfp4 = TinyIndex();
  Put(mxfp4, std::string(kDown) + ".weight", {64, 16}, DType::kU32);
  Put(mxfp4, std::string(kDown) + ".scales", {64, 4}, DType::kU8);
  EXPECT_EQ(SpecError(whole, mxfp4), "");
  EXPECT_EQ(SpecError(module, mxfp4), "");
}

TEST(ModelSpecTest, AModelWithoutACheckpointIsFp8AsItsFileSays) {
  ModelConfig config = TinyConfig();
  config.quantization = kFp8;
  config.quantization_method = "fp8";
  config.quantization_of["model.layers.1.mlp"] = std::nullopt;
  const auto spec = ModelSpec::FromConfig(config, DType::kBF16, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto dtype = [&](BlockId block, TensorRole role) {
    const BlockSpec& of = spec->block(block);
    return of.tensors[*of.Find(role, TensorPart::kWeight)].info.dtype;
  };
  EXPECT_EQ(dtype({BlockKind::kMlp, 0}, TensorRole::kDown), DType::kF8E4M3);
  EXPECT_EQ(dtype({BlockKind::kMlp, 1}, TensorRole::kDown), DType::kBF16);
  EXPECT_EQ(dtype({BlockKind::kHead, 0}, TensorRole::kOutput), DType::kBF16);
  EXPECT_EQ(dtype({BlockKind::kEmbedding, 0}, TensorRole::kTokenEmbedding), DType::kBF16);
}

TEST(ModelSpecTest, AModelWithoutACheckpointIsPackedAsItsFileSays) {
  ModelConfig config = TinyConfig();
  config.quantization = Quantization{.bits = 4, .group_size = 32};
  config.quantization_of["language_model.model.layers.1.mlp.down_proj"] = Quantization{.bits = 8, .group_size = 64};
  config.quantization_of["lm_head"] = std::nullopt;
  const auto spec = ModelSpec::FromConfig(config, DType::kF16, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const auto shape = [&](BlockId block, TensorRole role) {
    const BlockSpec& of = spec->block(block);
    return of.tensors[*of.Find(role, TensorPart::kWeight)].info.shape;
  };
  EXPECT_THAT(shape({BlockKind::kMlp, 0}, TensorRole::kDown), testing::ElementsAre(64, 128 * 4 / 32));
  EXPECT_THAT(shape({BlockKind::kMlp, 1}, TensorRole::kDown), testing::ElementsAre(64, 128 * 8 / 32));
  EXPECT_THAT(shape({BlockKind::kHead, 0}, TensorRole::kOutput), testing::ElementsAre(100, 64));
}

TEST(ModelSpecTest, RolesWithOneNameAreRowsOfOneTensor) {
  ModelConfig config = TinyConfig();
  config.model_type = "phi3";
  TensorIndex index = TinyIndex();
  std::erase_if(index, [](const auto& tensor) {
    return tensor.first.find("q_proj") != std::string::npos || tensor.first.find("gate_proj") != std::string::npos;
  });
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    Put(index, layer + "self_attn.qkv_proj.weight", {128, 64});
    Put(index, layer + "mlp.gate_up_proj.weight", {256, 8}, DType::kU32);
    Put(index, layer + "mlp.gate_up_proj.scales", {256, 1});
    Put(index, layer + "mlp.gate_up_proj.biases", {256, 1});
  }
  const auto spec = ModelSpec::Build(config, index, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const BlockSpec& attention = spec->block({BlockKind::kAttention, 1});
  Bytes offset = 0;
  for (const TensorRole role : {TensorRole::kQ, TensorRole::kK, TensorRole::kV}) {
    const TensorSpec& tensor = attention.tensors[*attention.Find(role, TensorPart::kWeight)];
    EXPECT_EQ(tensor.name, "model.layers.1.self_attn.qkv_proj.weight");
    EXPECT_EQ(tensor.info.shape[0], role == TensorRole::kQ ? 64 : 32);
    EXPECT_EQ(tensor.offset, offset);
    offset += tensor.info.bytes;
  }
  EXPECT_EQ(offset, 128 * 64 * 2);
  const BlockSpec& mlp = spec->block({BlockKind::kMlp, 0});
  const TensorSpec& scales = mlp.tensors[*mlp.Find(TensorRole::kUp, TensorPart::kScales)];
  EXPECT_EQ(scales.offset, 128 * 2);
  EXPECT_EQ(scales.info.bytes, 128 * 2);
  Put(index, "model.layers.1.self_attn.qkv_proj.weight", {120, 64});
  EXPECT_THAT(SpecError(config, index), HasSubstr("qkv_proj.weight has shape [120, 64], but config.json implies [128, 64]"));
}

// ---- Experts

ModelConfig ConfigOfExperts(const char* family) {
  ModelConfig config = TinyConfig();
  config.model_type = family;
  config.experts = ExpertsConfig{.count = 4, .per_token = 2, .intermediate_size = 32};
  for (LayerConfig& layer : config.layers) layer.experts = true, layer.intermediate_size = 0;
  return config;
}

// All tensors of the model but those of the experts.
TensorIndex IndexWithoutExperts() {
  TensorIndex index = TinyIndex();
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const char* name : {"gate_proj", "up_proj", "down_proj"}) index.erase(layer + "mlp." + name + ".weight");
    Put(index, layer + "mlp.gate.weight", {4, 64});
  }
  return index;
}

TensorIndex IndexOfExperts() {
  TensorIndex index = IndexWithoutExperts();
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const std::string expert : {"0", "1", "2", "3"}) {
      const std::string stem = layer + "mlp.experts." + expert;
      Put(index, stem + ".gate_proj.weight", {32, 64});
      Put(index, stem + ".up_proj.weight", {32, 64});
      Put(index, stem + ".down_proj.weight", {64, 32});
    }
  }
  return index;
}

TEST(ModelSpecTest, ExpertsFollowTheRouterOneByOne) {
  const auto spec = ModelSpec::Build(ConfigOfExperts("qwen3_moe"), IndexOfExperts(), "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const BlockSpec& block = spec->block({BlockKind::kExperts, 1});
  ASSERT_EQ(block.tensors.size(), 2u + 4 * 3);
  EXPECT_EQ(block.tensors[1].role, TensorRole::kRouter);
  EXPECT_EQ(block.tensors[1].expert, -1);
  EXPECT_EQ(block.tensors[5].name, "model.layers.1.mlp.experts.1.gate_proj.weight");
  EXPECT_EQ(block.tensors[7].role, TensorRole::kDown);
  EXPECT_EQ(block.tensors[7].expert, 1);
  EXPECT_EQ(block.Find(TensorRole::kUp, TensorPart::kWeight, 3), 12u);
  EXPECT_EQ(block.Find(TensorRole::kUp, TensorPart::kWeight), std::nullopt) << "of no expert";
  EXPECT_EQ(block.Find(TensorRole::kUp, TensorPart::kWeight, 4), std::nullopt);
  EXPECT_EQ(block.Find(TensorRole::kUp, TensorPart::kScales, 3), std::nullopt);
  EXPECT_EQ(block.Find(TensorRole::kNorm, TensorPart::kWeight), 0u);
  EXPECT_EQ(block.OfExpert(2).size(), 3u);
  EXPECT_EQ(block.bytes, 2 * (64 + 4 * 64 + 4 * 3 * 32 * 64));
}

TEST(ModelSpecTest, ExpertsMayBeStacked) {
  TensorIndex index = IndexWithoutExperts();
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    Put(index, layer + "mlp.experts.gate_up_proj", {4, 64, 64});
    Put(index, layer + "mlp.experts.down_proj", {4, 64, 32});
  }
  const ModelConfig config = ConfigOfExperts("qwen3_moe");
  const auto spec = ModelSpec::Build(config, index, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const BlockId id{BlockKind::kExperts, 0};
  const BlockSpec& block = spec->block(id);
  const auto expect = [&](TensorRole role, int32_t expert, std::vector<int64_t> shape, Bytes offset, const std::string& apart) {
    const TensorSpec& tensor = block.tensors[*block.Find(role, TensorPart::kWeight, expert)];
    EXPECT_EQ(tensor.info.shape, shape) << apart;
    EXPECT_EQ(tensor.info.bytes, shape[0] * shape[1] * 2) << apart;
    EXPECT_EQ(tensor.offset, offset) << apart;
    EXPECT_EQ(NameApart(*spec, id, tensor), apart);
  };
  expect(TensorRole::kGate, 0, {32, 64}, 0, "model.layers.0.mlp.experts.0.gate_proj.weight");
  expect(TensorRole::kUp, 0, {32, 64}, 32 * 64 * 2, "model.layers.0.mlp.experts.0.up_proj.weight");
  expect(TensorRole::kGate, 3, {32, 64}, 3 * 64 * 64 * 2, "model.layers.0.mlp.experts.3.gate_proj.weight");
  expect(TensorRole::kUp, 3, {32, 64}, (3 * 64 + 32) * 64 * 2, "model.layers.0.mlp.experts.3.up_proj.weight");
  expect(TensorRole::kDown, 3, {64, 32}, 3 * 64 * 32 * 2, "model.layers.0.mlp.experts.3.down_proj.weight");
  EXPECT_EQ(spec->WeightBytes(), ModelSpec::Build(config, IndexOfExperts(), "folder")->WeightBytes());
  index["model.layers.0.mlp.experts.down_proj"].shape = {4, 32, 64};
  EXPECT_EQ(SpecError(config, index),
            "folder: tensor model.layers.0.mlp.experts.down_proj has shape [4, 32, 64], but config.json implies [4, 64, 32]");
}

TEST(ModelSpecTest, AStackOfMlxMayBePacked) {
  TensorIndex index = IndexWithoutExperts();
  for (const std::string layer : {"model.layers.0.", "model.layers.1."}) {
    for (const std::string name : {"gate_proj", "up_proj"}) {
      Put(index, layer + "mlp.switch_mlp." + name + ".weight", {4, 32, 8}, DType::kU32);
      for (const char* part : {".scales", ".biases"}) Put(index, layer + "mlp.switch_mlp." + name + part, {4, 32, 2});
    }
    Put(index, layer + "mlp.switch_mlp.down_proj.weight", {4, 64, 32});
  }
  const ModelConfig config = ConfigOfExperts("qwen3_moe");
  const auto spec = ModelSpec::Build(config, index, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const BlockSpec& block = spec->block({BlockKind::kExperts, 1});
  const TensorSpec& scales = block.tensors[*block.Find(TensorRole::kUp, TensorPart::kScales, 2)];
  EXPECT_EQ(scales.info.shape, (std::vector<int64_t>{32, 2}));
  EXPECT_EQ(scales.offset, 2 * 32 * 2 * 2);
  EXPECT_EQ(NameApart(*spec, block.id, scales), "model.layers.1.mlp.experts.2.up_proj.scales");
  Put(index, "model.layers.1.mlp.switch_mlp.up_proj.scales", {4, 64});
  Put(index, "model.layers.1.mlp.switch_mlp.up_proj.biases", {4, 64});
  EXPECT_THAT(SpecError(config, index), HasSubstr("but config.json implies 4 matrices of 32 rows"));
}

TEST(ModelSpecTest, AMissingExpertIsNamed) {
  TensorIndex index = IndexOfExperts();
  index.erase("model.layers.1.mlp.experts.3.up_proj.weight");
  EXPECT_THAT(SpecError(ConfigOfExperts("qwen3_moe"), index), HasSubstr("tensor model.layers.1.mlp.experts.3.up_proj.weight is missing"));
  const ModelConfig stacks = ConfigOfExperts("qwen3_5_moe");
  EXPECT_TRUE(ModelSpec::Build(stacks, IndexOfExperts(), "folder").ok()) << "one tensor for each, as some finetunes have them";
  EXPECT_THAT(SpecError(stacks, IndexWithoutExperts()), HasSubstr("tensor model.layers.0.mlp.experts.gate_up_proj is missing"));
}

TEST(ModelSpecTest, LinearAttentionByKeyHeadHasTwoMatrices) {
  ModelConfig config = TinyConfig();
  config.model_type = "qwen3_next";
  config.layers[0] = {.attention = AttentionKind::kLinear, .rope = -1, .intermediate_size = 128};
  config.linear_attention = LinearAttentionConfig{2, 4, 16, 8, 4, true};
  const auto spec = ModelSpec::FromConfig(config, DType::kF32, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const BlockSpec& block = spec->block({BlockKind::kLinearAttention, 0});
  const auto rows = [&](TensorRole role) {
    const auto i = block.Find(role, TensorPart::kWeight);
    return i ? block.tensors[*i].info.shape[0] : 0;
  };
  EXPECT_EQ(rows(TensorRole::kQkvz), 2 * 2 * 16 + 2 * 4 * 8);
  EXPECT_EQ(rows(TensorRole::kBetaDecay), 8);
  EXPECT_EQ(rows(TensorRole::kQkv) + rows(TensorRole::kZ) + rows(TensorRole::kBeta) + rows(TensorRole::kDecay), 0);
}

TEST(ModelSpecTest, NormsOverAllHeadsHaveTheirColumns) {
  ModelConfig config = ConfigOfExperts("minimax_m2");
  config.qk_norm = config.qk_norm_all_heads = true;
  const auto spec = ModelSpec::FromConfig(config, DType::kF32, "folder");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const BlockSpec& block = spec->block({BlockKind::kAttention, 0});
  EXPECT_EQ(block.tensors[*block.Find(TensorRole::kQNorm, TensorPart::kWeight)].info.shape[0], 64);
  EXPECT_EQ(block.tensors[*block.Find(TensorRole::kKNorm, TensorPart::kWeight)].info.shape[0], 32);
}

}  // namespace
}  // namespace lime
