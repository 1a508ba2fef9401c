// Models whose experts load on demand give the bits of the model by itself, all in memory: whatever the
// number of experts that memory has room for, in prompts of any chunks and in batches, from a plain
// folder and from a prepared one.
#include "daemon/stores/block_store.h"
#include "gtest/gtest.h"
#include "tests/integration/models.h"
#include "tests/integration/variants.h"

namespace lime {
namespace {

std::vector<Variant> ModelsWithExperts() {
  return {{.name = "qwen3_moe_bf16", .family = "qwen3_moe", .quantization = std::nullopt},
          {.name = "qwen3_moe_q4", .family = "qwen3_moe", .quantization = Quantization{4, 32}, .head_dim = 32},
          {.name = "qwen3_5_moe_bf16", .family = "qwen3_5_moe", .quantization = std::nullopt},
          {.name = "qwen3_next_f16", .family = "qwen3_next", .dtype = DType::kF16, .quantization = std::nullopt},
          {.name = "mixtral_f32", .family = "mixtral", .dtype = DType::kF32, .quantization = std::nullopt},
          {.name = "minimax_bf16", .family = "minimax_m2", .quantization = std::nullopt},
          {.name = "glm4_bf16", .family = "glm4_moe", .quantization = std::nullopt},
          {.name = "gpt_oss_mxfp4", .family = "gpt_oss", .quantization = std::nullopt},
          {.name = "gpt_oss_q8", .family = "gpt_oss", .quantization = Quantization{8, 32}, .head_dim = 32},
          {.name = "qwen3_moe_fp8", .family = "qwen3_moe", .quantization = kFp8}};
}

class ExpertsTest : public ::testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    const MakeModelOptions options = OptionsOf(GetParam());
    ASSERT_TRUE(MakeModel(options, Model()).ok());
    ASSERT_TRUE(PrepareBlockStore(Model(), Store()).ok());
    ids_ = RandomIds(3, 90, 200);
  }
  std::string Model() const { return dir_ / "model"; }
  std::string Store() const { return dir_ / "store"; }

  TempDir dir_;
  std::vector<int32_t> ids_;
};

TEST_P(ExpertsTest, AnyNumberOfExpertsInMemoryGivesTheSameBits) {
  const uint64_t expected = ReferenceHash(Model(), ids_);
  for (const std::string& folder : {Model(), Store()}) {
    for (const int64_t places : {1, 2, 3, 5, 8}) {
      const RunShape shape{.threads = places % 2 == 0 ? 1 : 2, .chunk = places == 3 ? 64 : 7, .unit_places = places};
      EXPECT_EQ(LogitsHashOf(folder, shape, ids_), expected) << folder << ", " << places << " places";
    }
  }
}

TEST_P(ExpertsTest, TokenByTokenGivesTheBitsOfChunks) {
  const std::vector<int32_t> some(ids_.begin(), ids_.begin() + 24);
  const uint64_t expected = ReferenceHash(Model(), some);
  for (const int64_t places : {1, 4}) {
    EXPECT_EQ(LogitsHashOf(Store(), {.chunk = 1, .unit_places = places}, some), expected) << places << " places";
  }
}

TEST_P(ExpertsTest, ReadingAheadChangesNoBit) {
  const std::vector<int32_t> some(ids_.begin(), ids_.begin() + 24);
  const uint64_t expected = ReferenceHash(Model(), some);
  for (const auto& [places, ahead] : {std::pair(2, 1), std::pair(4, 3)}) {
    for (const int64_t chunk : {1, 3}) {
      EXPECT_EQ(LogitsHashOf(Store(), {.chunk = chunk, .unit_places = places, .ahead_places = ahead}, some), expected)
          << places << " places, " << ahead << " ahead, chunk " << chunk;
    }
  }
}

TEST_P(ExpertsTest, ASequenceHasTheSameBitsInCompany) {
  const uint64_t expected = ReferenceHash(Model(), ids_);
  const RunShape shape{.chunk = 16, .companions = {RandomIds(5, 40, 200), RandomIds(6, 3, 200)}, .unit_places = 3};
  EXPECT_EQ(LogitsHashOf(Store(), shape, ids_), expected);
}

INSTANTIATE_TEST_SUITE_P(Families, ExpertsTest, ::testing::ValuesIn(ModelsWithExperts()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
