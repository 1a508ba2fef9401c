// Experts of every layer on the disks of several devices leave every bit as one engine makes it:
// random plans, by seed, of models with experts.

#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/plan_blocks.h"
#include "planner/problem/plan_problem.h"
#include "tests/cases.h"
#include "tests/integration/models.h"
#include "tests/integration/stage/stage_bits.h"
#include "tests/integration/variants.h"
#include "tests/planner/random_unit_shares.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

class StageUnitsTest : public ::testing::TestWithParam<Variant> {};

TEST_P(StageUnitsTest, ExpertsOnSeveralDevicesHaveTheBitsOfOne) {
  TempDir dir;
  ASSERT_TRUE(MakeModel(OptionsOf(GetParam()), dir / "model").ok());
  const auto checkpoint = Checkpoint::Open(dir / "model");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  int divided = 0;
  int64_t read = 0;
  ExpectBitsOfOne(dir / "model", static_cast<uint64_t>(Cases(8, 30)), 200,
                  {.shape = {.demands = true},
                   .change =
                       [&](uint64_t seed, Plan plan) {
                         std::mt19937_64 random(seed + 1000);
                         DivideUnitsAtRandom(
                             *spec, [&random](int n) { return static_cast<int>(random() % static_cast<uint64_t>(n)); }, plan);
                         for (PlanPart& part : plan.parts)
                           part.ahead_places = part.on_demand() ? static_cast<int32_t>(std::min<int64_t>(2, part.places - 1)) : 0;
                         EXPECT_EQ(plan.Validate(*spec), absl::OkStatus());
                         divided += HasHostedUnits(plan) ? 1 : 0;
                         return plan;
                       },
                   .adjust = [](uint64_t seed, StageEngine::Options& options) { options.num_threads = 1 + static_cast<int>(seed % 2); },
                   .check =
                       [&](uint64_t, const Plan& plan, StageCluster& cluster) {
                         for (int d = 0; d < plan.NumDevices(); ++d) {
                           if (HostsUnits(plan, d)) read += cluster.engine(d).stats().unit_bytes;
                         }
                       }});
  EXPECT_GT(divided, ManyCases() ? 2 : 0);
  EXPECT_GT(read, 0) << "hosts have read experts";
}

// The second device has half of all experts, and nothing else.
TEST(StageUnitsAheadTest, AHostReadsAheadWhatTheOwnerGuesses) {
  TempDir dir;
  const Variant variant{.name = "qwen3_moe_bf16", .family = "qwen3_moe", .quantization = std::nullopt};
  ASSERT_TRUE(MakeModel(OptionsOf(variant), dir / "model").ok());
  const auto checkpoint = Checkpoint::Open(dir / "model");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<ClusterDevice> devices(2);
  for (int d = 0; d < 2; ++d) {
    devices[d] = {.name = d == 0 ? "a" : "b", .budget = kGiB, .activations = 64 * kMiB};
    devices[d].profile.read_bytes_per_second = 1e10;
    devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
  }
  PlanRequest request{.context = 256, .batches = {1}, .prompt_tokens = 16, .chunks = {8}, .ahead_places = 1, .unit_places = 2};
  const int64_t half = spec->config.experts->count / 2;
  request.unit_shares = {{half, 2}, {spec->config.experts->count - half, 2}};
  const auto problem = MakePlanProblem(*spec, devices, request);
  ASSERT_TRUE(problem.ok()) << problem.status();
  PlanChoice choice{.stages = {.stages = {{0, 0, problem->head.NumParts()}}}, .batch = 1};
  choice.first_token = FirstTokenPredictor(*problem->first_token).Predict(choice.stages);
  const auto divided = MakePlan(*problem, choice);
  ASSERT_TRUE(divided.ok()) << divided.status();
  int64_t suggested = 0, read_ahead = 0;
  ExpectBitsOfOne(dir / "model", 1, 200,
                  {.change = [&](uint64_t, const Plan&) { return *divided; },
                   .check =
                       [&](uint64_t, const Plan&, StageCluster& cluster) {
                         const DeviceStatistics stats = cluster.engine(1).stats();
                         suggested = stats.units_suggested, read_ahead = stats.units_read_ahead;
                       }});
  EXPECT_GT(suggested, 0);
  EXPECT_GT(read_ahead, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Families, StageUnitsTest,
    ::testing::Values(Variant{.name = "qwen3_moe_bf16", .family = "qwen3_moe", .quantization = std::nullopt},
                      Variant{.name = "qwen3_moe_fp8", .family = "qwen3_moe", .quantization = kFp8},
                      Variant{.name = "qwen3_5_moe_bf16", .family = "qwen3_5_moe", .quantization = std::nullopt},
                      Variant{.name = "gpt_oss_mxfp4", .family = "gpt_oss", .quantization = std::nullopt},
                      Variant{.name = "gemma4_moe", .family = "gemma4", .quantization = std::nullopt},
                      Variant{.name = "mixtral_q4", .family = "mixtral", .quantization = Quantization{4, 32}, .head_dim = 32}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
