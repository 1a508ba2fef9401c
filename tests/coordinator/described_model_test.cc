#include "planner/plan/model/described_model.h"

#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/device_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::string Example(const std::string& name) {
  std::ifstream file(absl::StrCat(LIME_SOURCE_DIR "/testbed/clusters/", name, ".json"));
  return {std::istreambuf_iterator<char>(file), {}};
}

double BlockMb(const ModelSpec& spec, BlockKind kind) {
  return static_cast<double>(spec.block({kind, 0}).bytes) / 1e6;
}

constexpr char kTiny[] = R"({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4,
                             "intermediate_size": 128, "vocab_size": 100)";

// Published parameter counts: 13.016, 32.762 and 70.554 billion.
TEST(DescribedModelTest, TheExamplesHaveTheWeightsOfTheirModels) {
  EXPECT_EQ(DescribeModel(Example("llama-2-13b"), "f")->WeightBytes(), Bytes{2} * 13'015'864'320);
  EXPECT_EQ(DescribeModel(Example("qwen3-32b"), "f")->WeightBytes(), Bytes{2} * 32'762'123'264);
  EXPECT_EQ(DescribeModel(Example("llama-3.3-70b"), "f")->WeightBytes(), Bytes{2} * 70'553'706'496);
}

// Llama 3.3 70B: q and o 8192 x 8192, k and v 1024 x 8192, the MLP 3 x 28672 x 8192, the head
// 128256 x 8192, two bytes each.
TEST(DescribedModelTest, BlocksHaveTheSizesOfTheirMatrices) {
  const ModelSpec spec = *DescribeModel(Example("llama-3.3-70b"), "f");
  EXPECT_EQ(spec.blocks.size(), 162u);
  EXPECT_NEAR(BlockMb(spec, BlockKind::kAttention), 301.989888, 0.02);
  EXPECT_NEAR(BlockMb(spec, BlockKind::kMlp), 1409.286144, 0.02);
  EXPECT_NEAR(BlockMb(spec, BlockKind::kHead), 2101.346304, 0.02);
  EXPECT_EQ(spec.KvBytesPerToken(), 80 * 2 * 1024 * 2);
}

TEST(DescribedModelTest, APackedModelHasWordsScalesAndBiases) {
  const ModelSpec spec =
      *DescribeModel(absl::StrCat(kTiny, R"(, "dtype": "float16", "quantization": {"bits": 4, "group_size": 32}})"), "f");
  EXPECT_EQ(spec.working_dtype, DType::kF16);
  const TensorSpec& q = spec.block({BlockKind::kAttention, 0}).tensors[1];
  EXPECT_EQ(q.info.dtype, DType::kU32);
  EXPECT_EQ(q.info.shape, (std::vector<int64_t>{64, 8}));  // 64 columns of 4 bits in words of 32
  // 128 x 64 weights of 4 bits, and a scale and a bias of 2 bytes for every 32 of them, three
  // times, and a norm of 64 halves.
  EXPECT_EQ(spec.block({BlockKind::kMlp, 0}).bytes, 3 * (128 * 64 / 2 + 2 * 2 * 128 * 2) + 128);
}

TEST(DescribedModelTest, TheDtypeIsAskedFor) {
  EXPECT_EQ(DescribeModel(absl::StrCat(kTiny, R"(, "torch_dtype": "float32"})"), "f")->working_dtype, DType::kF32);
  EXPECT_THAT(DescribeModel(absl::StrCat(kTiny, "}"), "f").status().message(), HasSubstr("f: names no dtype, and there are no weights"));
  EXPECT_THAT(DescribeModel(absl::StrCat(kTiny, R"(, "dtype": "int4"})"), "f").status().message(),
              HasSubstr("dtype \"int4\" is not supported"));
  EXPECT_THAT(DescribeModel(absl::StrCat(kTiny, R"(, "dtype": 4})"), "f").status().message(), HasSubstr("field \"dtype\" is not a string"));
  EXPECT_THAT(DescribeModel("{", "f").status().message(), HasSubstr("f"));
  EXPECT_THAT(DescribeModel(absl::StrCat(kTiny, R"(, "dtype": "float16", "quantization": {"bits": 4, "group_size": 128}})"), "f")
                  .status()
                  .message(),
              HasSubstr("64 columns, not a multiple of the quantisation group of 128"));
}

// The config.json of gpt-oss-20b names no dtype: its weights are BF16 beside U8.
TEST(DescribedModelTest, ThePublishedFileOfGptOssNamesNoDtypeAndMeansBf16) {
  std::ifstream file(LIME_SOURCE_DIR "/testbed/models/gpt-oss-20b.json");
  std::string text(std::istreambuf_iterator<char>(file), {});
  ASSERT_THAT(text, testing::Not(HasSubstr("dtype")));
  const auto spec = DescribeModel(text, "f");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->working_dtype, DType::kBF16);
  text.insert(text.find('{') + 1, R"("dtype": "float32", )");
  EXPECT_EQ(DescribeModel(text, "f")->working_dtype, DType::kF32);
}

TEST(DescribedModelTest, ActivationsGrowWithRowsAndLogits) {
  const ModelSpec spec = *DescribeModel(Example("llama-3.3-70b"), "f");
  const Bytes one = AssumedActivations(spec, 1, 1, 2048), many = AssumedActivations(spec, 512, 1, 2048);
  EXPECT_LT(one, 16 * kMiB);
  EXPECT_GT(many - one, 511 * (28672 * 8 + 8192 * 8));  // gate and up, x and normed at least
  EXPECT_EQ(AssumedActivations(spec, 1, 2, 2048) - one, 128256 * 4 + 8192 * 2);
}

}  // namespace
}  // namespace lime
