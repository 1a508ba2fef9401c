// The search for another plan while one runs, on described devices: what it finds, and what it says of the plan in use and of the pause.
#include "coordinator/cli/change_search.h"

#include <atomic>
#include <fstream>

#include "coordinator/cli/cluster_planning.h"
#include "coordinator/cli/plan_rates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/temp_dir.h"

namespace lime::cli {
namespace {

using ::testing::Contains;
using ::testing::Not;

// Llama 2 13B: 26 GB, and 819 KB of KV a token. Two fast devices hold it with the KV of 4,000 tokens; the third has room, and computes
// slowly.
constexpr char kDevices[] = R"({
  "link": {"bandwidth": "1Gbit/s", "latency_ms": 0.2},
  "devices": [
    {"name": "a", "memory_bytes": 15000000000, "runtime_bytes": 0, "activation_bytes": 0, "margin_bytes": 0,
     "read_bytes_per_second": 100e9, "flops": 20e12, "block_overhead_ms": 0.1, "disk": {"bytes_per_second": 1e9, "latency_ms": 0.2}},
    {"name": "b", "memory_bytes": 15000000000, "runtime_bytes": 0, "activation_bytes": 0, "margin_bytes": 0,
     "read_bytes_per_second": 100e9, "flops": 20e12, "block_overhead_ms": 0.1, "disk": {"bytes_per_second": 1e9, "latency_ms": 0.2}},
    {"name": "slow", "memory_bytes": 40000000000, "runtime_bytes": 0, "activation_bytes": 0, "margin_bytes": 0,
     "read_bytes_per_second": 20e9, "flops": 2e12, "block_overhead_ms": 0.3, "disk": {"bytes_per_second": 1e9, "latency_ms": 0.2}}
  ]})";
constexpr int64_t kContext = 16384;

class ChangeSearchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = dir_ / "devices.json";
    std::ofstream(path) << kDevices;
    PlanInputFlags flags;
    flags.model_spec = LIME_SOURCE_DIR "/testbed/clusters/llama-2-13b.json";
    flags.device_profiles = path;
    flags.tokens = kContext, flags.kv_tokens = 2048, flags.prompt_tokens = 64;
    flags.no_kv_lending = true;
    absl::StatusOr<PlanInputs> inputs = ReadPlanInputs(flags);
    ASSERT_TRUE(inputs.ok()) << inputs.status();
    inputs_ = *std::move(inputs);
    absl::StatusOr<Plan> plan = ClusterPlanning({.time_limit_ms = kSearchMs}, inputs_).Run();
    ASSERT_TRUE(plan.ok()) << plan.status();
    first_ = *std::move(plan);
  }

  // With KV of `from` to `to` positions left to go through.
  PlanWatcher::Candidate Search(int64_t from, int64_t to, ClusterRates now = {}) {
    for (const auto& [key, rate] : PlannedRates(inputs_, first_)) now.emplace(key, rate);
    const OrderWriter::Left left = {.steps = to - from, .known = from, .pages = from / kPageTokens, .pages_at_end = to / kPageTokens};
    absl::StatusOr<PlanWatcher::Candidate> found =
        SearchForChange(inputs_, {.current = first_, .made_with = made_with_, .now = now, .left = left, .cancelled = cancelled_},
                        {.install_ms = kInstallMs, .time_limit_ms = kSearchMs});
    if (found.ok()) return *std::move(found);
    ADD_FAILURE() << found.status();
    return {};
  }

  static constexpr double kSearchMs = 1000, kInstallMs = 10'000;
  const TempDir dir_;
  PlanInputs inputs_;
  Plan first_;
  const ClusterRates made_with_;
  const std::atomic<bool> cancelled_ = false;
};

TEST_F(ChangeSearchTest, KvThatOutgrowsAPlanIsWorthADeviceThatTheFirstOnesDidWithout) {
  ASSERT_THAT(DevicesUsed(first_), Not(Contains("slow")));
  const PlanWatcher::Candidate early = Search(512, 1024);
  EXPECT_GT(early.ms_per_step, 0.95 * early.current_ms) << "KV fits as it is";
  EXPECT_LT(early.ms_per_step, 1.05 * early.current_ms) << "a plan with all KV from the start has the third device, or streams";
  const PlanWatcher::Candidate late = Search(8192, kContext);
  EXPECT_THAT(DevicesUsed(late.plan), Contains("slow"));
  EXPECT_LT(late.ms_per_step, 0.8 * late.current_ms);
  EXPECT_GT(late.current_ms, 1.5 * early.current_ms) << "what streams at the levels that are left is counted";
}

TEST_F(ChangeSearchTest, ThePlanInUseIsComparedByWhatIsMeasured) {
  const PlanWatcher::Candidate before = Search(512, 1024);
  const PlanWatcher::Candidate slower = Search(512, 1024, {{ComputeKey("a"), 0.1}});
  EXPECT_GT(slower.current_ms, 2 * before.current_ms);
  EXPECT_LT(slower.ms_per_step, 0.9 * slower.current_ms) << "others take layers of a device that has become slow";
  EXPECT_THAT(DevicesUsed(slower.plan), Contains("slow"));
  EXPECT_GT(slower.ms_per_step, 1.2 * before.ms_per_step) << "the search knows that it has";
}

TEST_F(ChangeSearchTest, ThePauseIsWhatIsReadTheFirstStepsAndWhatKvTakesOnItsWay) {
  const PlanWatcher::Candidate late = Search(8192, kContext);
  const bool takes_over = TakesOver(first_, late.plan, 8192 / kPageTokens);
  const double share = ReadShare(first_, late.plan, takes_over);
  EXPECT_GT(share, 0) << "the third device had nothing";
  EXPECT_NEAR(late.install_ms, 500 + 2 * (0.25 + share) * kInstallMs + 2 * late.ms_per_step, 1e-6);
  EXPECT_GT(late.replay_ms, 0);
}

}  // namespace
}  // namespace lime::cli
