// `lime run --cluster` over real daemons that divide the experts of every layer: the bits of one
// device, also if a device is killed in the middle of it.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "planner/plan/plan_blocks.h"
#include "tests/integration/programs/run_cluster.h"
#include "tests/skips.h"

namespace lime {
namespace {

class ClusterExpertsTest : public ClusterRunTest {
 protected:
  void SetUp() override {
    LIME_SKIP_WITHOUT_SHARED(SharedDir() / "families/qwen3_moe-tiny");
    model_ = SharedDir() / "families/qwen3_moe-tiny";
    for (int d = 0; d < kDevices; ++d) limed_.push_back(std::make_unique<Limed>(Name(d)));
    WriteCluster();
  }

  // The layers go round the first `owners` devices; `shares`: of the eight experts, by device.
  void WritePlan(int owners, std::vector<UnitShare> shares) {
    const auto checkpoint = Checkpoint::Open(model_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    std::vector<ClusterDevice> devices(kDevices);
    for (int d = 0; d < kDevices; ++d) {
      devices[d] = {.name = Name(d), .budget = 2 * kGiB, .runtime = 256 * kMiB, .activations = 64 * kMiB};
      devices[d].profile.read_bytes_per_second = 1e10;
      devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
    }
    PlanRequest request{.model_name = "experts", .context = 512, .batches = {1}, .prompt_tokens = 16};
    request.chunks = {8};
    request.unit_places = 4, request.unit_shares = std::move(shares);
    const auto problem = MakePlanProblem(*spec, devices, request);
    ASSERT_TRUE(problem.ok()) << problem.status();
    PlanChoice choice{.batch = 1};
    choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 8, .chunks = 2, .chunks_per_sweep = 1};
    choice.stages.embedding_by_rows = true;
    const Instance& instance = problem->instance;
    int begun = 0;
    for (int b = 0; b < instance.NumBlocks(); ++b) {
      std::vector<Stage>& stages = choice.stages.stages;
      if (b == 0 || (owners > 1 && !instance.ContinuesBlock(b))) {
        stages.push_back({begun++ % owners, b, b + 1});
      } else {
        stages.back().hi = b + 1;
      }
    }
    const auto plan = MakePlan(*problem, choice);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(HasHostedUnits(*plan));
    dir_.Write("plan.json", ToJsonText(*plan));
  }

  std::vector<std::string> LongRun() const {
    return {"run",
            "--model",
            model_,
            "--prompt",
            "Once upon a time there was a fox",
            "--max-tokens",
            "400",
            "--context",
            "512",
            "--json",
            "--hash-logits",
            "--ignore-eos",
            "--seed",
            "11",
            "--temperature",
            "0.8"};
  }

  void ExpectTheBitsOfOne(const Answer& answer) const {
    const Answer alone = Call(LongRun());
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    for (const char* field : {"token_ids", "text", "logits_xxh3", "completion_tokens", "finish_reason"})
      EXPECT_EQ(answer.Json()[field], alone.Json()[field]) << field << "\n" << answer.err;
  }
};

TEST_F(ClusterExpertsTest, ADeviceWithoutAStageComputesExpertsForOneThatHasAll) {
  WritePlan(1, {{4, 2}, {4, 2}, {0, 0}});
  ExpectTheBitsOfOne(Call(OverCluster(LongRun())));
}

TEST_F(ClusterExpertsTest, ThreeDevicesComputeExpertsForEachOther) {
  WritePlan(3, {{3, 1}, {3, 2}, {2, 2}});
  ExpectTheBitsOfOne(Call(OverCluster(LongRun())));
}

class LostExperts : public ClusterExpertsTest, public ::testing::WithParamInterface<int> {};

TEST_P(LostExperts, AKilledDeviceCostsNoTokenAndNoBit) {
  WritePlan(3, {{3, 1}, {3, 2}, {2, 2}});
  Lime run(OverCluster(LongRun()));
  AwaitSteps(10);
  EXPECT_TRUE(WIFSIGNALED(limed_[static_cast<size_t>(GetParam())]->End(SIGKILL)));
  const int port = limed_[static_cast<size_t>(GetParam())]->port();
  limed_[static_cast<size_t>(GetParam())] = std::make_unique<Limed>(Name(GetParam()), port);
  const Answer answer = run.Wait();
  ExpectTheBitsOfOne(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

INSTANTIATE_TEST_SUITE_P(FirstAndLast, LostExperts, ::testing::Values(0, 2));

// The killed device has no stage: it only computes experts for others.
TEST_F(ClusterExpertsTest, ALostHostIsPlannedWithout) {
  WritePlan(2, {{3, 1}, {3, 2}, {2, 2}});
  std::vector<std::string> call = OverCluster(LongRun());
  call.insert(call.end(), {"--patience", "0.2"});
  Lime run(call);
  AwaitSteps(10);
  EXPECT_TRUE(WIFSIGNALED(limed_[2]->End(SIGKILL)));
  const Answer answer = run.Wait();
  ExpectTheBitsOfOne(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

}  // namespace
}  // namespace lime
