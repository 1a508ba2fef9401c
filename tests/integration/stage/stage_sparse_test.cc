// Sparse MLPs leave every bit as one engine makes it: random plans, by seed, over several devices, with
// streamed deciders, batches and chunks of any length.

#include "daemon/stores/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "gtest/gtest.h"
#include "planner/plan/sparse_parts.h"
#include "tests/cases.h"
#include "tests/integration/models.h"
#include "tests/integration/stage/stage_bits.h"
#include "tests/integration/variants.h"

namespace lime {
namespace {

class StageSparseTest : public ::testing::TestWithParam<Variant> {};

TEST_P(StageSparseTest, RandomPlansHaveTheBitsOfOneEngine) {
  TempDir dir;
  ASSERT_TRUE(MakeModel(OptionsOf(GetParam()), dir / "model").ok());
  const auto prepared = PrepareBlockStore(dir / "model", dir / "store", {.bundles = true});
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  int sparse = 0;
  DeviceStatistics sum;
  ExpectBitsOfOne(dir / "store", static_cast<uint64_t>(Cases(10, 40)), 200,
                  {.shape = {.sparse = true},
                   .adjust = [](uint64_t seed, StageEngine::Options& options) { options.num_threads = 1 + static_cast<int>(seed % 2); },
                   .check =
                       [&](uint64_t, const Plan& plan, StageCluster& cluster) {
                         sparse += HasSparseParts(plan) ? 1 : 0;
                         for (int d = 0; d < plan.NumDevices(); ++d) {
                           const DeviceStatistics stats = cluster.engine(d).stats();
                           sum.neuron_rows += stats.neuron_rows, sum.neurons_computed += stats.neurons_computed;
                           sum.neurons_loaded += stats.neurons_loaded, sum.neuron_bytes += stats.neuron_bytes;
                         }
                       }});
  EXPECT_GT(sparse, 0);
  EXPECT_GT(sum.neuron_rows, 0);
  EXPECT_GT(sum.neurons_computed, sum.neurons_loaded) << "no neuron stayed in memory";
  EXPECT_GE(sum.neuron_bytes, sum.neurons_loaded * 4096) << "whole pages are read";
}

INSTANTIATE_TEST_SUITE_P(
    Families, StageSparseTest,
    ::testing::Values(Variant{.name = "opt_f32", .family = "opt", .dtype = DType::kF32, .activation = Activation::kRelu, .head_dim = 24},
                      Variant{.name = "llama_bf16", .family = "llama", .activation = Activation::kRelu}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
