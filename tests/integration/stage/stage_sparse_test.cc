// Sparse MLPs leave every bit as one engine makes it: random plans, by seed, over several devices, with
// streamed deciders, batches and chunks of any length.

#include "daemon/stores/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "gtest/gtest.h"
#include "planner/plan/sparse_parts.h"
#include "tests/cases.h"
#include "tests/integration/made_copies.h"
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
                           sum.neurons_copied += stats.neurons_copied;
                         }
                       }});
  EXPECT_GT(sparse, 0);
  EXPECT_GT(sum.neuron_rows, 0);
  EXPECT_GT(sum.neurons_computed, sum.neurons_loaded) << "no neuron stayed in memory";
  EXPECT_GT(sum.neurons_copied, 0) << "no decode step began warm";
  EXPECT_GE(sum.neuron_bytes, sum.neurons_loaded * 4096) << "whole pages are read";
}

TEST_P(StageSparseTest, RandomPlansWithCopiesOfDecidersHaveTheBitsOfOneEngine) {
  if (GetParam().quantization) GTEST_SKIP() << "deciders of packed weights have no copy";
  TempDir dir;
  ASSERT_TRUE(MakeModel(OptionsOf(GetParam()), dir / "model").ok());
  const absl::StatusOr<std::vector<DeciderForm>> copies = PrepareWithCopies(dir / "model", dir / "store");
  ASSERT_TRUE(copies.ok()) << copies.status();
  int certified = 0, begins_stage = 0;
  DeviceStatistics sum;
  ExpectBitsOfOne(dir / "store", static_cast<uint64_t>(Cases(12, 40)), 200,
                  {.shape = {.sparse = true, .deciders = *copies},
                   .adjust = [](uint64_t seed, StageEngine::Options& options) { options.num_threads = 1 + static_cast<int>(seed % 2); },
                   .check =
                       [&](uint64_t, const Plan& plan, StageCluster& cluster) {
                         for (int p = 0; p < plan.NumParts(); ++p) {
                           if (!plan.parts[static_cast<size_t>(p)].certified()) continue;
                           ++certified;
                           begins_stage += plan.stages[static_cast<size_t>(StageOf(plan, p))].lo == p ? 1 : 0;
                         }
                         for (int d = 0; d < plan.NumDevices(); ++d) {
                           const DeviceStatistics stats = cluster.engine(d).stats();
                           sum.neurons_computed += stats.neurons_computed, sum.neurons_loaded += stats.neurons_loaded;
                           sum.neurons_copied += stats.neurons_copied;
                         }
                       }});
  EXPECT_GT(certified, 0);
  if (ManyCases()) EXPECT_GT(begins_stage, 0) << "no stage began with proofs";
  EXPECT_GT(sum.neurons_computed, sum.neurons_loaded) << "no neuron stayed in memory";
  EXPECT_GT(sum.neurons_copied, 0) << "no decode step began warm";
}

INSTANTIATE_TEST_SUITE_P(
    Families, StageSparseTest,
    ::testing::Values(
        Variant{.name = "opt_f32", .family = "opt", .dtype = DType::kF32, .activation = Activation::kRelu, .head_dim = 24},
        Variant{.name = "llama_bf16", .family = "llama", .activation = Activation::kRelu},
        Variant{.name = "llama_q4_bf16", .family = "llama", .quantization = Quantization{4, 64}, .activation = Activation::kRelu}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
