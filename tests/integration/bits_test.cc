// The logits are the same bits for either loader, any number of threads, any chunking, alone or in a batch: tiny random models of every
// family and dtype, and the shipped model.

#include <random>
#include <set>

#include "gtest/gtest.h"
#include "kernels/cpu/linear_bf16.h"
#include "tests/integration/models.h"

namespace lime {
namespace {

std::vector<int32_t> RandomIds(uint32_t seed, int64_t count, int64_t vocab) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids(count);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % vocab);
  return ids;
}

// The orders of reduction that this CPU can follow, "auto" the one in force by itself.
std::vector<std::string> AllNumerics() {
  std::vector<std::string> all = {"auto"};
  if (cpu::HardwareBf16() != nullptr) all.push_back("portable");
  if (cpu::HardwareBf16() == nullptr && cpu::EmulatedBf16() != nullptr) all.push_back("emulated-bf16");
  return all;
}

// Every shape of the matrix gives the hash of the first, which is returned.
uint64_t ExpectSameBits(const std::string& dir, int64_t vocab, int64_t length, const std::string& numerics) {
  const std::vector<int32_t> ids = RandomIds(1, length, vocab);
  const uint64_t expected = LogitsHashOf(dir, {.loader = LoaderKind::kRead, .threads = 1, .chunk = length, .numerics = numerics}, ids);
  for (const LoaderKind loader : {LoaderKind::kRead, LoaderKind::kMmap}) {
    for (const int threads : {1, 2}) {
      for (const int64_t chunk : {int64_t{1}, int64_t{7}, int64_t{64}, length}) {
        const RunShape shape{.loader = loader, .threads = threads, .chunk = chunk, .numerics = numerics};
        EXPECT_EQ(LogitsHashOf(dir, shape, ids), expected)
            << "numerics " << numerics << ", loader " << LoaderName(loader) << ", threads " << threads << ", chunk " << chunk;
      }
    }
  }
  for (const int companions : {1, 3, 7, 15}) {
    RunShape shape{.threads = 2, .chunk = 7, .numerics = numerics};
    for (int i = 0; i < companions; ++i) shape.companions.push_back(RandomIds(100 + i, 1 + (37 * i) % length, vocab));
    EXPECT_EQ(LogitsHashOf(dir, shape, ids), expected) << "numerics " << numerics << ", in a batch of " << companions + 1;
  }
  return expected;
}

struct Variant {
  std::string name;
  ModelFamily family = ModelFamily::kLlama;
  DType dtype = DType::kBF16;
  std::optional<Quantization> quantization;
  RopeType rope = RopeType::kDefault;
  Activation activation = Activation::kSilu;
  int64_t head_dim = 16;
  int64_t window = 0;
};

class BitsTest : public ::testing::TestWithParam<Variant> {};

TEST_P(BitsTest, LogitsAreTheSameWhateverTheRunLooksLike) {
  const Variant& variant = GetParam();
  MakeModelOptions options;
  options.config.family = variant.family;
  options.config.quantization = variant.quantization;
  options.config.activation = variant.activation;
  options.config.rope.type = variant.rope;
  options.config.rope.factor = 4;
  options.config.rope.original_max_position = 64;
  options.config.num_heads = 4;
  options.config.num_kv_heads = variant.family == ModelFamily::kOpt ? 4 : 2;
  options.config.head_dim = variant.head_dim;
  options.config.hidden_size = variant.family == ModelFamily::kOpt ? 4 * variant.head_dim : 128;
  options.config.intermediate_size = variant.quantization ? 256 : 173;
  options.config.sliding_window = variant.window;
  options.config.tie_embeddings = variant.family == ModelFamily::kOpt;
  options.dtype = variant.dtype;
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir.path()).ok());
  std::set<uint64_t> hashes;
  for (const std::string& numerics : AllNumerics()) {
    hashes.insert(ExpectSameBits(dir.path(), options.config.vocab_size, 300, numerics));  // more than one piece of 256 positions
  }
  const bool bf16_layers = variant.dtype == DType::kBF16 && !variant.quantization;
  EXPECT_EQ(hashes.size(), bf16_layers ? AllNumerics().size() : 1) << "only layers of bf16 by bf16 have another order";
}

std::vector<Variant> Variants() {
  std::vector<Variant> variants;
  const std::pair<const char*, ModelFamily> families[] = {{"llama", ModelFamily::kLlama},
                                                          {"mistral", ModelFamily::kMistral},
                                                          {"qwen2", ModelFamily::kQwen2},
                                                          {"qwen3", ModelFamily::kQwen3},
                                                          {"opt", ModelFamily::kOpt}};
  const std::pair<const char*, DType> dtypes[] = {{"bf16", DType::kBF16}, {"f16", DType::kF16}, {"f32", DType::kF32}};
  for (const auto& [family_name, family] : families) {
    for (const auto& [dtype_name, dtype] : dtypes) {
      Variant variant{.name = std::string(family_name) + "_" + dtype_name, .family = family, .dtype = dtype, .quantization = std::nullopt};
      if (family == ModelFamily::kMistral) variant.window = 50;
      if (family == ModelFamily::kOpt) variant.rope = RopeType::kNone, variant.activation = Activation::kRelu, variant.head_dim = 24;
      variants.push_back(variant);
    }
  }
  for (const int bits : {3, 4, 6, 8}) {
    for (const auto& [dtype_name, dtype] : {std::pair{"bf16", DType::kBF16}, std::pair{"f16", DType::kF16}}) {
      variants.push_back(
          {.name = "llama_q" + std::to_string(bits) + "_" + dtype_name, .dtype = dtype, .quantization = Quantization{bits, 64}});
    }
  }
  for (const auto& [name, type] : {std::pair{"linear", RopeType::kLinear}, std::pair{"dynamic", RopeType::kDynamic},
                                   std::pair{"llama3", RopeType::kLlama3}, std::pair{"yarn", RopeType::kYarn}}) {
    variants.push_back({.name = std::string("llama_rope_") + name, .quantization = std::nullopt, .rope = type});
  }
  variants.push_back({.name = "llama_relu", .quantization = std::nullopt, .activation = Activation::kRelu});
  return variants;
}

INSTANTIATE_TEST_SUITE_P(Families, BitsTest, ::testing::ValuesIn(Variants()), [](const auto& info) { return info.param.name; });

TEST(ShippedModelBitsTest, LogitsAreTheSameWhateverTheRunLooksLike) {
  const std::string dir = std::string(LIME_SOURCE_DIR) + "/models/lime-fables";
  ASSERT_TRUE(std::filesystem::exists(dir + "/config.json"));
  for (const std::string& numerics : AllNumerics()) ExpectSameBits(dir, 512, 200, numerics);
}

}  // namespace
}  // namespace lime
