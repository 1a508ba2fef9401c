// Models in FP8 give the logits of the dense F32 models whose weights are the exact products of codes
// and scales.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "testbed/make_model/make_model.h"
#include "tests/integration/reference_model.h"
#include "tests/integration/variants.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

struct Fp8Model {
  std::string name, family, method;
  ScaleShape scales = ScaleShape::kBlocks;
};

std::vector<Fp8Model> Fp8Models() {
  std::vector<Fp8Model> models;
  for (const std::string family : {"qwen3", "qwen3_moe"}) {
    models.push_back({family + "_blocks", family, "fp8", ScaleShape::kBlocks});
    models.push_back({family + "_matrix", family, "fp8", ScaleShape::kMatrix});
    models.push_back({family + "_compressed_blocks", family, "compressed-tensors", ScaleShape::kBlocks});
    models.push_back({family + "_compressed_rows", family, "compressed-tensors", ScaleShape::kRows});
    models.push_back({family + "_compressed_matrix", family, "compressed-tensors", ScaleShape::kMatrix});
  }
  return models;
}

class Fp8Test : public ::testing::TestWithParam<Fp8Model> {
 protected:
  // Blocks of 128 rows and columns do not divide the matrices.
  void SetUp() override {
    MakeModelOptions options{.dtype = DType::kF32};
    options.config = {.family = GetParam().family, .hidden_size = 192, .num_heads = 6, .intermediate_size = 320};
    options.config.expert_intermediate_size = 160;
    options.config.quantization = kFp8;
    options.config.quantization->scales = GetParam().scales;
    options.config.quantization_method = GetParam().method;
    ASSERT_TRUE(MakeModel(options, dir_.file("fp8")).ok());
    options.widened = true;
    ASSERT_TRUE(MakeModel(options, dir_.file("f32")).ok());
  }

  // Of all positions of `ids`.
  std::vector<float> LogitsOf(const std::string& model, const std::string& numerics, const std::vector<int32_t>& ids) const {
    const auto length = static_cast<int64_t>(ids.size());
    const auto reference = ReferenceModel::Open(dir_.file(model), {.context = length, .numerics = numerics});
    EXPECT_TRUE(reference.ok()) << reference.status();
    if (!reference.ok() || !(*reference)->StartSequence(0, length).ok()) return {};
    MicroBatch batch;
    for (const int32_t id : ids)
      batch.rows.push_back({.token = id, .position = static_cast<int32_t>(batch.rows.size()), .wants_logits = true});
    const auto logits = (*reference)->Step(batch);
    EXPECT_TRUE(logits.ok()) << logits.status();
    return logits.ok() ? std::vector<float>(logits->begin(), logits->end()) : std::vector<float>();
  }

  TempDir dir_;
};

TEST_P(Fp8Test, LogitsAreThoseOfTheExactProducts) {
  const std::vector<int32_t> ids = RandomIds(7, 40, 320);
  const std::vector<float> golden = LogitsOf("f32", "portable", ids);
  ASSERT_EQ(golden.size(), 40u * 320u);
  EXPECT_GT(*std::ranges::max_element(golden), 1) << "logits are of order one";
  for (const std::string numerics : {"portable", "bf16-dot"}) {
    const std::vector<float> logits = LogitsOf("fp8", numerics, ids);
    ASSERT_EQ(logits.size(), golden.size());
    double worst = 0;
    for (size_t i = 0; i < golden.size(); ++i) worst = std::max<double>(worst, std::abs(logits[i] - golden[i]));
    EXPECT_LE(worst, 1e-3) << numerics;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Fp8Test, ::testing::ValuesIn(Fp8Models()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
