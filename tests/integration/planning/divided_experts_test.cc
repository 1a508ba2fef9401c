// Whether a cluster divides the experts of every layer: only if that makes tokens faster, and only over
// devices that compute sums in the same order.
#include <atomic>
#include <fstream>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planning/change_search.h"
#include "coordinator/planning/cluster_planning.h"
#include "coordinator/planning/plan_rates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/status.h"
#include "planner/plan/plan_blocks.h"
#include "planner/sim/simulator.h"
#include "planner/unit_places.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

// Qwen3-30B-A3B in bf16: 61 GB, 58 GB of it experts. Two boards with 16 GB keep a third of these.
constexpr char kExpertsModel[] = R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "torch_dtype": "bfloat16",
  "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
  "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": true,
  "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 151936, "max_position_embeddings": 40960, "rope_theta": 1000000.0,
  "rms_norm_eps": 1e-06, "tie_word_embeddings": false})";

std::string BoardJson(const std::string& name, const std::string& numerics) {
  return absl::StrCat(R"({"name": ")", name, R"(", "numerics_id": ")", numerics,
                      R"(", "memory_bytes": 15000000000, "read_bytes_per_second": 100e9, "flops": 5e12, "block_overhead_ms": 0.02,
                      "disk": {"bytes_per_second": 2e9, "latency_ms": 0.1}})");
}

struct Planned {
  PlanInputs inputs;
  Plan plan;
};

absl::StatusOr<Planned> TwoBoards(double latency_ms, const std::string& numerics_of_b, std::optional<int32_t> ahead_places) {
  const TempDir dir;
  const std::string model = dir / "config.json", devices = dir / "devices.json";
  std::ofstream(model) << kExpertsModel;
  std::ofstream(devices) << absl::StrCat(R"({"link": {"bandwidth": "1Gbit/s", "latency_ms": )", latency_ms, R"(}, "devices": [)",
                                         BoardJson("a", "one"), ", ", BoardJson("b", numerics_of_b), "]}");
  PlanInputFlags flags;
  flags.model_spec = model, flags.device_profiles = devices, flags.tokens = 2048;
  Planned planned;
  LIME_ASSIGN_OR_RETURN(planned.inputs, ReadPlanInputs(flags));
  planned.inputs.ahead_places = ahead_places;
  LIME_ASSIGN_OR_RETURN(planned.plan, ClusterPlanning({.work_ms = 50}, planned.inputs).Run());
  return planned;
}

absl::StatusOr<Plan> PlanOfTwoBoards(double latency_ms, const std::string& numerics_of_b = "one",
                                     std::optional<int32_t> ahead_places = std::nullopt) {
  LIME_ASSIGN_OR_RETURN(Planned planned, TwoBoards(latency_ms, numerics_of_b, ahead_places));
  return std::move(planned.plan);
}

TEST(DividedExpertsTest, DisksOfDevicesWithFastLinksReadExpertsOfTheSameLayer) {
  const auto divided = PlanOfTwoBoards(0.2), undivided = PlanOfTwoBoards(0.2, "other");
  ASSERT_TRUE(divided.ok() && undivided.ok()) << divided.status() << undivided.status();
  EXPECT_TRUE(HasHostedUnits(*divided));
  EXPECT_FALSE(HasHostedUnits(*undivided)) << "the devices compute sums in other orders";
  EXPECT_LT(1.4 * TimeMs(*divided), TimeMs(*undivided));
  RecordProperty("divided_ms", absl::StrCat(TimeMs(*divided)));
  RecordProperty("undivided_ms", absl::StrCat(TimeMs(*undivided)));
  const auto simulated = SimulateDecode(*divided);
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  EXPECT_EQ(simulated->MsPerStep(), divided->predicted.ms_per_step);
}

// While one disk reads its second expert of a layer, the other one can only read ahead.
TEST(DividedExpertsTest, ReadAheadIsWhatDividedExpertsGainBy) {
  const auto ahead = PlanOfTwoBoards(0.2), none = PlanOfTwoBoards(0.2, "one", 0);
  ASSERT_TRUE(ahead.ok() && none.ok()) << ahead.status() << none.status();
  ASSERT_TRUE(HasHostedUnits(*ahead) && HasHostedUnits(*none));
  for (const PlanPart& part : ahead->parts) EXPECT_EQ(part.ahead_places, part.on_demand() ? 2 : 0);
  for (const PlanPart& part : none->parts) EXPECT_EQ(part.ahead_places, 0);
  EXPECT_LT(1.1 * TimeMs(*ahead), TimeMs(*none));
  EXPECT_LT(TimeMs(*none), 1.5 * TimeMs(*ahead));
}

TEST(DividedExpertsTest, ALinkThatBecomesSlowIsAReasonForAnotherPlan) {
  const auto boards = TwoBoards(0.2, "one", std::nullopt);
  ASSERT_TRUE(boards.ok()) << boards.status();
  ASSERT_TRUE(HasHostedUnits(boards->plan));
  ClusterRates now = PlannedRates(boards->inputs, boards->plan);
  now.at(LinkKey("a", "b")) /= 100, now.at(LinkKey("b", "a")) /= 100;
  const std::atomic<bool> cancelled = false;
  const auto found = SearchForChange(
      boards->inputs,
      {.current = boards->plan, .made_with = {}, .now = now, .remaining = {.steps = 1000, .decodes = true}, .cancelled = cancelled},
      {.first = &boards->plan, .install_ms = 1000, .time_limit_ms = 50, .by_clock = false});
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_GT(found->current_ms, 1.5 * boards->plan.predicted.ms_per_step);
  EXPECT_FALSE(HasHostedUnits(found->plan));
  EXPECT_LT(found->ms_per_step, found->current_ms);
}

TEST(DividedExpertsTest, SlowMessagesKeepTheExpertsOfALayerTogether) {
  const auto plan = PlanOfTwoBoards(20);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(HasHostedUnits(*plan));
}

}  // namespace
}  // namespace lime
