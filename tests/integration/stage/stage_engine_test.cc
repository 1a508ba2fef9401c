// A model over several engines gives the bits of one: random plans, by seed, of tiny models of
// every family and of the shipped one.

#include "daemon/engine/stage_engine.h"

#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/problem/plan_problem.h"
#include "tests/cases.h"
#include "tests/integration/models.h"
#include "tests/integration/stage/stage_bits.h"
#include "tests/integration/stage/stage_cluster.h"
#include "tests/integration/stage/stage_plans.h"
#include "tests/integration/variants.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

class StageEngineBitsTest : public ::testing::TestWithParam<Variant> {};

TEST_P(StageEngineBitsTest, AnyPlanHasTheBitsOfOneEngine) {
  const MakeModelOptions options = OptionsOf(GetParam());
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectBitsOfOne(dir / "model", Cases(6, 24), std::min<int64_t>(200, options.config.vocab_size));
}

INSTANTIATE_TEST_SUITE_P(Families, StageEngineBitsTest, ::testing::ValuesIn(SpreadVariants()),
                         [](const auto& info) { return info.param.name; });

TEST(StageEngineTest, TheShippedModelHasTheSameBitsOverAnyPlan) {
  ExpectBitsOfOne(ShippedModel("lime-fables"), Cases(8, 40), 512);
  ExpectBitsOfOne(ShippedModel("lime-fables-relu"), Cases(4, 12), 512);
}

// The models beside the project, trained ones of several families and dtypes.
TEST(StageEngineTest, SharedModelsHaveTheSameBitsOverAnyPlan) {
  LIME_SKIP_WITHOUT_SHARED(SharedDir() / "models");
  for (const std::string& name : SharedModels()) {
    SCOPED_TRACE(name);
    ExpectBitsOfOne(SharedModel(name), Cases(4, 16), 200);
  }
}

// ---- Slots that are used again, and what does not belong

// The shipped model over two devices, half of it streaming, one sequence at a time.
class TwoDevices : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::string(LIME_SOURCE_DIR) + "/models/lime-fables";
    auto checkpoint = Checkpoint::Open(dir_);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    std::vector<ClusterDevice> devices(2);
    for (int d = 0; d < 2; ++d) {
      devices[d].name = d == 0 ? "a" : "b";
      devices[d].budget = 64 * kGiB;
      devices[d].profile.read_bytes_per_second = 10e9;
      devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
    }
    auto problem = MakePlanProblem(*spec, devices, {.context = kContext, .batches = {1}});
    ASSERT_TRUE(problem.ok()) << problem.status();
    const int blocks = problem->instance.NumBlocks();
    PlanChoice choice{.stages = {.stages = {{0, 0, blocks / 2}, {1, blocks / 2, blocks}}}, .batch = 1};
    for (int b = 0; b < blocks; b += 2) choice.stages.streamed.push_back(b);
    auto plan = MakePlan(*problem, choice);
    ASSERT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
  }

  // One token of a prompt per step, then one generated token per step.
  static void OrderOne(StageCluster& cluster, const std::vector<int32_t>& prompt, int tokens) {
    cluster.SendOrder(AdmitOrder{.positions = kContext, .prompt = prompt});
    const int32_t length = static_cast<int32_t>(prompt.size());
    for (int32_t i = 0; i + 1 < length + tokens; ++i) {
      const BatchRow row{.token = i < length ? prompt[i] : kSampledToken, .position = i, .wants_logits = i + 1 >= length};
      cluster.SendOrder(StepOrder{{MicroBatch{{row}}}});
    }
    cluster.SendOrder(RetireOrder{});
  }

  std::string dir_;
  Plan plan_;
};

TEST_F(TwoDevices, ASlotAdmitsOneSequenceAfterAnotherWithoutWaiting) {
  StageCluster cluster(dir_, plan_, 1);
  ASSERT_TRUE(cluster.ok());
  std::vector<int32_t> expected;
  uint64_t hash = 0;
  for (int i = 0; i < 6; ++i) {  // all ordered at once: what the first ones sample must not reach the later ones
    const Reference reference = Alone(dir_, RandomIds(70 + i, 1 + 5 * i, 512));
    OrderOne(cluster, reference.prompt, kNewTokens);
    expected.insert(expected.end(), reference.tokens.begin(), reference.tokens.end());
    hash = reference.hash;
  }
  EXPECT_EQ(cluster.Await(0, expected.size()), expected);
  EXPECT_EQ(cluster.sampler().hash(0), hash);
  EXPECT_GT(cluster.engine(0).stats().bytes_read, 0);
}

TEST_F(TwoDevices, AStepWithoutRowsMakesNoToken) {
  StageCluster cluster(dir_, plan_, 1);
  ASSERT_TRUE(cluster.ok());
  const Reference reference = Alone(dir_, RandomIds(70, 5, 512));
  OrderOne(cluster, reference.prompt, kNewTokens);
  cluster.SendOrder(StepOrder{{MicroBatch{}}});
  cluster.AwaitSteps();
  EXPECT_EQ(cluster.Await(0, reference.tokens.size()), reference.tokens);
}

TEST_F(TwoDevices, ASlotInUseAdmitsNoOtherSequence) {
  StageCluster cluster(dir_, plan_, 1);
  ASSERT_TRUE(cluster.ok());
  ASSERT_TRUE(cluster.engine(0).OnOrder({0, AdmitOrder{.positions = 9}}).ok());
  EXPECT_THAT(std::string(cluster.engine(0).OnOrder({1, AdmitOrder{.positions = 9}}).message()), HasSubstr("is still in use"));
}

TEST_F(TwoDevices, OrdersThatCannotBeAreRefusedAndChangeNothing) {
  StageCluster cluster(dir_, plan_, 1);
  ASSERT_TRUE(cluster.ok());
  const auto refusal = [&](int64_t number, auto what) {
    const absl::Status status = cluster.engine(0).OnOrder({number, std::move(what)});
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  const auto step = [](BatchRow row) { return StepOrder{{MicroBatch{{row}}}}; };
  EXPECT_THAT(refusal(1, RetireOrder{}), HasSubstr("expected order 0"));
  EXPECT_THAT(refusal(0, AdmitOrder{.sequence = 1, .positions = 1}), HasSubstr("slot 1"));
  EXPECT_THAT(refusal(0, AdmitOrder{.positions = kContext + 1}), HasSubstr("97 positions"));
  EXPECT_THAT(refusal(0, AdmitOrder{.positions = 9, .prompt = {1 << 20}}), HasSubstr("vocabulary"));
  EXPECT_THAT(refusal(0, StepOrder{}), HasSubstr("0 micro-batches"));
  EXPECT_THAT(refusal(0, StepOrder{std::vector<MicroBatch>(9)}), HasSubstr("9 micro-batches"));
  EXPECT_THAT(refusal(0, step({.sequence = -1})), HasSubstr("slot -1"));
  EXPECT_THAT(refusal(0, step({.token = -2})), HasSubstr("token id -2"));
  EXPECT_THAT(refusal(0, step({.position = kContext})), HasSubstr("position 96"));
  EXPECT_THAT(refusal(0, StepOrder{{MicroBatch{std::vector<BatchRow>(2)}}}), HasSubstr("2 rows"));
  const Reference reference = Alone(dir_, RandomIds(3, 4, 512));
  OrderOne(cluster, reference.prompt, kNewTokens);
  EXPECT_EQ(cluster.Await(0, kNewTokens), reference.tokens);
}

TEST_F(TwoDevices, ActivationsThatDoNotBelongAreRefusedAndChangeNothing) {
  StageCluster cluster(dir_, plan_, 1);
  ASSERT_TRUE(cluster.ok());
  const auto refusal = [&](int device, ActivationHeader header, size_t bytes) {
    if (header.bytes == 0) header.bytes = static_cast<int64_t>(bytes);
    const absl::Status status = cluster.engine(device).OnActivation({header, std::vector<std::byte>(bytes)});
    EXPECT_FALSE(status.ok());
    return std::string(status.message());
  };
  const ActivationHeader hidden{.epoch = plan_.epoch};
  const auto with = [&](auto change) {
    ActivationHeader header = hidden;
    change(header);
    return header;
  };
  EXPECT_THAT(refusal(1, with([](auto& h) { h.epoch = 9; }), 0), HasSubstr("epoch 9"));
  EXPECT_THAT(refusal(1, with([](auto& h) { h.bytes = 9; }), 8), HasSubstr("its header says 9"));
  EXPECT_THAT(refusal(1, with([](auto& h) { h.step = int64_t{1} << 40; }), 8), HasSubstr("far beyond"));
  EXPECT_THAT(refusal(1, with([](auto& h) { h.stage = 1; }), 8), HasSubstr("this device expects no"));
  EXPECT_THAT(refusal(1, with([](auto& h) { h.stage = 1 << 14; }), 8), HasSubstr("this device expects no"));
  EXPECT_THAT(refusal(1, with([](auto& h) { h.microbatch = 7; }), 8), HasSubstr("micro-batch 7"));
  EXPECT_THAT(refusal(1, hidden, 7), HasSubstr("7 bytes"));
  EXPECT_THAT(refusal(1, hidden, 1 << 20), HasSubstr("the limit is 1"));
  EXPECT_THAT(refusal(0, hidden, 8), HasSubstr("this device expects no"));
  const ActivationHeader tokens{.epoch = plan_.epoch, .stage = 1, .payload = Payload::kToken};
  EXPECT_THAT(refusal(1, tokens, 12), HasSubstr("this device expects no"));
  EXPECT_THAT(refusal(0, tokens, 24), HasSubstr("the limit is 1"));
  const Reference reference = Alone(dir_, RandomIds(3, 4, 512));
  OrderOne(cluster, reference.prompt, kNewTokens);
  EXPECT_EQ(cluster.Await(0, kNewTokens), reference.tokens);
}

TEST_F(TwoDevices, MessagesThatComeAgainOrOutOfTurnAreRefusedAsThemselvesOnly) {
  const Reference reference = Alone(dir_, RandomIds(5, 60, 512));
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    StageCluster cluster(dir_, plan_, seed, 1, Delivery::kHostile);
    ASSERT_TRUE(cluster.ok());
    OrderOne(cluster, reference.prompt, kNewTokens);
    EXPECT_EQ(cluster.Await(0, kNewTokens), reference.tokens);
    EXPECT_EQ(cluster.sampler().hash(0), reference.hash);
  }
}

TEST_F(TwoDevices, APlanThatDoesNotFitIsRefusedWithTheNumbers) {
  for (PlanDevice& device : plan_.devices) {
    device.memory.margin -= device.budget - 8 * kMiB;
    device.budget = 8 * kMiB;  // less than the program itself takes
  }
  const auto engine = StageEngine::Install({{.weights = dir_, .plan = plan_}});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(engine.status().message()), HasSubstr("may use 8.00 MiB"));
}

TEST_F(TwoDevices, APlanOfAnotherModelIsRefused) {
  plan_.parts[0].rows[0].end += 1;
  EXPECT_FALSE(StageEngine::Install({{.weights = dir_, .plan = plan_}}).ok());
}

}  // namespace
}  // namespace lime
