#include "planner/plan/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "planner/program/compile.h"
#include "planner/program/program_runner.h"
#include "tests/planner/program_text.h"
#include "tests/planner/random_clusters.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Runner = ProgramRunner;

// Two streamed parts of which one fits at a time, every instruction once.
Program SmallProgram() {
  return {
      .device = 0,
      .num_stages = 2,
      .microbatches = 1,
      .ring_bytes = 100,
      .step = {Recv{0, 0, 1, Payload::kToken}, Compute{0, 0, kEmbeddingPart, 1, 0}, AskKv{0, 0, 3, 1}, AwaitKv{0, 0, 3, 1}, AwaitWeights{0},
               Compute{0, 0, 0, 1, 0}, Evict{0}, AwaitWeights{1}, Compute{0, 0, 1, 1, 1}, Evict{1}, Send{0, 0, 1, Payload::kHidden}},
      .loads = {{0, 100, 1}, {1, 80, 1}}};
}

std::string ProgramError(const Program& program) {
  return std::string(CheckProgram(program).message());
}

TEST(ProgramTest, TheCheckOfWhatIsCompiledNamesTheFirstThingWrong) {
  ASSERT_TRUE(CheckProgram(SmallProgram()).ok()) << ProgramError(SmallProgram());
  Program program = SmallProgram();
  program.loads[1].loads_in_ring = 2;
  EXPECT_THAT(ProgramError(program), HasSubstr("loads[1] and the 1 before it take 180 bytes together, and the ring has 100"));
  program = SmallProgram();
  program.loads[0].loads_in_ring = 0;
  EXPECT_THAT(ProgramError(program), HasSubstr("loads[0].loads_in_ring = 0"));
  program = SmallProgram();
  program.step.erase(program.step.begin() + 6);  // the first eviction
  EXPECT_THAT(ProgramError(program), HasSubstr("awaits load 1, which begins when load 0 is evicted, and that is later"));
  program = SmallProgram();
  std::swap(program.step[5], program.step[6]);
  EXPECT_THAT(ProgramError(program), HasSubstr("computes part 0, which streams and is not in the ring then"));
  program = SmallProgram();
  program.step[7] = AwaitWeights{0};
  EXPECT_THAT(ProgramError(program), HasSubstr("awaits load 0 where 1 is next of 2"));
  program = SmallProgram();
  program.step[9] = Evict{0};
  EXPECT_THAT(ProgramError(program), HasSubstr("evicts load 0 where 1 is next"));
  program = SmallProgram();
  program.step.resize(7);
  EXPECT_THAT(ProgramError(program), HasSubstr("a step awaits 1 and evicts 1 of its 2 loads"));
  program = SmallProgram();
  program.step[0] = Recv{2, 0, 1, Payload::kToken};
  EXPECT_THAT(ProgramError(program), HasSubstr("step[0].stage = 2"));
  program = SmallProgram();
  program.step[2] = AskKv{0, 0, 3, -1};
  EXPECT_THAT(ProgramError(program), HasSubstr("step[2].to = -1"));
  program = SmallProgram();
  program.step[3] = AwaitKv{0, 0, 4, 1};
  EXPECT_THAT(ProgramError(program), HasSubstr("step[3] awaits KV of part 4, which was not asked for"));
  program = SmallProgram();
  program.step[3] = AskKv{0, 0, 4, 1};
  EXPECT_THAT(ProgramError(program), HasSubstr("step[3] asks for KV where part 3 is asked for and not awaited"));
  program = SmallProgram();
  program.step.erase(program.step.begin() + 3);
  EXPECT_THAT(ProgramError(program), HasSubstr("a step asks for KV and does not await it"));
  program = SmallProgram();
  program.step[8] = Compute{0, 0, 1, 1, 2};
  EXPECT_THAT(ProgramError(program), HasSubstr("step[8].logit_rows = 2"));
}

// A part on demand between two others that are resident.
Program DemandProgram() {
  return {.num_stages = 1,
          .microbatches = 1,
          .step = {Compute{0, 0, 0, 3, 0}, AskUnits{0, 0, 1}, ComputeUnits{0, 0, 1, 3}, Compute{0, 0, 2, 3, 1}}};
}

TEST(ProgramTest, UnitsAreAskedForAndThenComputed) {
  ASSERT_TRUE(CheckProgram(DemandProgram()).ok()) << ProgramError(DemandProgram());
  Program program = DemandProgram();
  std::swap(program.step[1], program.step[2]);
  EXPECT_THAT(ProgramError(program), HasSubstr("step[1] computes units of part 1, which were not asked for"));
  program = DemandProgram();
  program.step[2] = ComputeUnits{0, 0, 2, 3};
  EXPECT_THAT(ProgramError(program), HasSubstr("step[2] computes units of part 2, which were not asked for"));
  program = DemandProgram();
  program.step[2] = AskUnits{0, 0, 2};
  EXPECT_THAT(ProgramError(program), HasSubstr("step[2] asks for units where those of part 1 are asked for and not computed"));
  program = DemandProgram();
  program.step.erase(program.step.begin() + 2);
  EXPECT_THAT(ProgramError(program), HasSubstr("a step asks for units and does not compute them"));
  program = DemandProgram();
  program.step[2] = ComputeUnits{0, 0, 1, 0};
  EXPECT_THAT(ProgramError(program), HasSubstr("step[2].rows = 0"));
}

// "compute 0/0" of stage and part, "load 3", "release 2", "send to 1", "asks 1", "waited 2.5",
// "end".
std::string Text(const Runner::Action& action) {
  if (const auto* a = std::get_if<Runner::StartCompute>(&action)) return absl::StrCat("compute ", a->what.part);
  if (const auto* a = std::get_if<Runner::StartLoad>(&action)) return absl::StrCat("load ", a->load);
  if (const auto* a = std::get_if<Runner::Release>(&action)) return absl::StrCat("release ", a->load);
  if (const auto* a = std::get_if<Runner::StartSend>(&action)) return absl::StrCat("send to ", a->what.to);
  if (const auto* a = std::get_if<Runner::StartAskKv>(&action)) return absl::StrCat("asks ", a->what.to);
  if (const auto* a = std::get_if<Runner::StartAskUnits>(&action)) return absl::StrCat("asks units of ", a->what.part);
  if (const auto* a = std::get_if<Runner::StartComputeUnits>(&action)) return absl::StrCat("computes units of ", a->what.part);
  if (const auto* a = std::get_if<Runner::Waited>(&action)) {
    return absl::StrCat(InstructionName(a->what), " waited ", a->end_ms - a->begin_ms);
  }
  return "end";
}

class RunnerTest : public ::testing::Test {
 protected:
  explicit RunnerTest(Program program = SmallProgram()) : program_(std::move(program)) {}

  std::vector<std::string> Do(const Runner::Event& event, double now_ms) {
    std::vector<Runner::Action> actions;
    const absl::Status status = runner_.OnEvent(event, now_ms, actions);
    if (!status.ok()) return {std::string(status.message())};
    std::vector<std::string> texts(actions.size());
    std::ranges::transform(actions, texts.begin(), [](const Runner::Action& action) { return Text(action); });
    return texts;
  }

  const Program program_;
  Runner runner_{{&program_}};
};

class DemandRunnerTest : public RunnerTest {
 protected:
  DemandRunnerTest() : RunnerTest(DemandProgram()) {}

  // Begins a step, and computes until the units of part 1 are asked for.
  void SetUp() override {
    std::vector<Runner::Action> actions;
    runner_.Start(actions);
    EXPECT_THAT(Do(Runner::BeginStep{0}, 0), ElementsAre("compute 0"));
    EXPECT_THAT(Do(Runner::Computed{}, 1), ElementsAre("asks units of 1"));
  }
};

TEST_F(DemandRunnerTest, ComputesUnitsAsTheyComeAndWaitsForTheOthers) {
  ASSERT_NE(runner_.waiting(), nullptr);
  EXPECT_EQ(runner_.awaited_part(), 1);
  EXPECT_THAT(Do(Runner::UnitsChosen{1, 0, 5}, 2), ElementsAre());
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 3}, 2), ElementsAre("compute_units waited 1", "computes units of 1"));
  EXPECT_EQ(runner_.awaited_part(), std::nullopt) << "it computes";
  EXPECT_THAT(Do(Runner::Computed{.units = 2}, 4), ElementsAre("computes units of 1"));
  EXPECT_THAT(Do(Runner::Computed{.units = 1}, 5), ElementsAre());
  EXPECT_EQ(runner_.awaited_part(), 1);
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 1}, 8), ElementsAre("compute_units waited 3", "computes units of 1"));
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 1}, 9), ElementsAre()) << "while others are computed";
  EXPECT_THAT(Do(Runner::Computed{.units = 1}, 10), ElementsAre("computes units of 1"));
  EXPECT_THAT(Do(Runner::Computed{.units = 1}, 11), ElementsAre("compute 2"));
  EXPECT_THAT(Do(Runner::Computed{}, 12), ElementsAre("end"));
}

TEST_F(DemandRunnerTest, UnitsThatAreAllThereCostNoWait) {
  EXPECT_THAT(Do(Runner::UnitsChosen{1, 0, 2}, 1), ElementsAre());
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 2}, 1), ElementsAre("computes units of 1"));
  EXPECT_THAT(Do(Runner::Computed{.units = 2}, 3), ElementsAre("compute 2"));
}

TEST_F(DemandRunnerTest, ChoosingNoUnitGoesOn) {
  EXPECT_THAT(Do(Runner::UnitsChosen{1, 0, 0}, 1), ElementsAre("compute 2"));
}

TEST_F(DemandRunnerTest, EventsOutOfOrderAreErrorsThatChangeNothing) {
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 1}, 1), ElementsAre(HasSubstr("not as many were chosen")));
  EXPECT_THAT(Do(Runner::UnitsChosen{2, 0, 1}, 1), ElementsAre(HasSubstr("were not asked for")));
  EXPECT_THAT(Do(Runner::UnitsChosen{1, 1, 1}, 1), ElementsAre(HasSubstr("were not asked for")));
  EXPECT_THAT(Do(Runner::UnitsChosen{1, 0, -1}, 1), ElementsAre(HasSubstr("were not asked for")));
  EXPECT_THAT(Do(Runner::Computed{.units = 1}, 1), ElementsAre(HasSubstr("nothing is being computed")));
  EXPECT_THAT(Do(Runner::UnitsChosen{1, 0, 2}, 1), ElementsAre());
  EXPECT_THAT(Do(Runner::UnitsChosen{1, 0, 2}, 1), ElementsAre(HasSubstr("were not asked for"))) << "a second answer";
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 3}, 1), ElementsAre(HasSubstr("not as many were chosen")));
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 0}, 1), ElementsAre(HasSubstr("not as many were chosen")));
  EXPECT_THAT(Do(Runner::UnitsReady{2, 0, 1}, 1), ElementsAre(HasSubstr("not as many were chosen")));
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 1}, 1), ElementsAre("computes units of 1"));
  EXPECT_THAT(Do(Runner::Computed{}, 2), ElementsAre(HasSubstr("0 units were computed, but 1 were ready")));
  EXPECT_THAT(Do(Runner::Computed{.units = 2}, 2), ElementsAre(HasSubstr("2 units were computed, but 1 were ready")));
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 2}, 2), ElementsAre(HasSubstr("not as many were chosen")));
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 1}, 2), ElementsAre());
  EXPECT_THAT(Do(Runner::Computed{.units = 2}, 3), ElementsAre("compute 2"));
  EXPECT_THAT(Do(Runner::Computed{.units = 1}, 4), ElementsAre(HasSubstr("1 units were computed, but 0 were ready")));
  EXPECT_THAT(Do(Runner::UnitsReady{1, 0, 1}, 4), ElementsAre(HasSubstr("not as many were chosen")));
  EXPECT_THAT(Do(Runner::Computed{}, 4), ElementsAre("end"));
}

TEST(CompileTest, APartOnDemandIsAskedForAndComputedByUnitsAndNeverLoaded) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE(seed);
    const RandomClusters::Drawn drawn = RandomClusters(seed, /*experts=*/true).Draw();
    const absl::StatusOr<Plan> plan = MakePlan(drawn.problem, drawn.choice);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const absl::StatusOr<std::vector<Program>> programs = Compile(*plan, DecodeShape(*plan));
    ASSERT_TRUE(programs.ok()) << programs.status().message();
    int64_t asks = 0, computes = 0;
    for (const Program& program : *programs) {
      ASSERT_TRUE(CheckProgram(program).ok()) << ProgramError(program);
      for (const Prefetch& load : program.loads) EXPECT_FALSE(plan->parts[static_cast<size_t>(load.part)].on_demand());
      for (const Instruction& instruction : program.step) {
        asks += std::holds_alternative<AskUnits>(instruction) ? 1 : 0;
        const auto* const compute = std::get_if<Compute>(&instruction);
        if (compute != nullptr && compute->part >= 0) EXPECT_FALSE(plan->parts[static_cast<size_t>(compute->part)].on_demand());
        const auto* const units = std::get_if<ComputeUnits>(&instruction);
        if (units == nullptr) continue;
        ++computes;
        EXPECT_TRUE(plan->parts[static_cast<size_t>(units->part)].on_demand());
      }
    }
    const int64_t parts = std::ranges::count_if(plan->parts, &PlanPart::on_demand);
    EXPECT_EQ(asks, parts * plan->microbatches);
    EXPECT_EQ(computes, asks);
  }
}

TEST_F(RunnerTest, GoesThroughAStepAndReadsOnIntoTheNext) {
  std::vector<Runner::Action> actions;
  runner_.Start(actions);
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(Text(actions[0]), "load 0");
  EXPECT_THAT(Do(Runner::BeginStep{0}, 1), ElementsAre());
  EXPECT_NE(runner_.waiting(), nullptr);
  EXPECT_THAT(Do(Runner::Arrived{0, 0}, 3), ElementsAre("recv waited 2", "compute -1"));
  EXPECT_EQ(runner_.waiting(), nullptr);
  EXPECT_THAT(Do(Runner::Computed{}, 4), ElementsAre("asks 1"));
  EXPECT_THAT(Do(Runner::KvArrived{4, 0}, 5), ElementsAre(HasSubstr("was not asked for")));
  EXPECT_THAT(Do(Runner::KvArrived{3, 0}, 5), ElementsAre("await_kv waited 1"));
  EXPECT_THAT(Do(Runner::KvArrived{3, 0}, 5), ElementsAre(HasSubstr("was not asked for")));
  EXPECT_THAT(Do(Runner::Loaded{0}, 9), ElementsAre("await_weights waited 4", "compute 0"));
  EXPECT_THAT(Do(Runner::Computed{}, 10), ElementsAre("release 0", "load 1"));
  EXPECT_THAT(Do(Runner::Loaded{1}, 11), ElementsAre("await_weights waited 1", "compute 1"));
  EXPECT_THAT(Do(Runner::Computed{}, 12), ElementsAre("release 1", "send to 1", "end", "load 2"));
  EXPECT_EQ(runner_.steps_ended(), 1);
}

TEST_F(RunnerTest, WhatCannotBeIsAnErrorThatChangesNothing) {
  std::vector<Runner::Action> actions;
  runner_.Start(actions);
  EXPECT_THAT(Do(Runner::Loaded{1}, 0), ElementsAre(HasSubstr("load 1 is not under way")));
  EXPECT_THAT(Do(Runner::Computed{}, 0), ElementsAre(HasSubstr("nothing is being computed")));
  EXPECT_THAT(Do(Runner::Arrived{1, 0}, 0), ElementsAre(HasSubstr("no message is expected")));
  EXPECT_THAT(Do(Runner::Arrived{0, -1}, 0), ElementsAre(HasSubstr("no micro-batch -1")));
  EXPECT_THAT(Do(Runner::KvArrived{7, 0}, 0), ElementsAre(HasSubstr("was not asked for")));
  EXPECT_THAT(Do(Runner::BeginStep{1}, 0), ElementsAre(HasSubstr("no program 1")));
  EXPECT_THAT(Do(Runner::Loaded{0}, 0), ElementsAre());
  EXPECT_THAT(Do(Runner::Loaded{0}, 0), ElementsAre(HasSubstr("load 0 is not under way")));
}

TEST_F(RunnerTest, MessagesOfLaterStepsMayComeEarly) {
  std::vector<Runner::Action> actions;
  runner_.Start(actions);
  EXPECT_THAT(Do(Runner::Arrived{0, 0}, 0), ElementsAre());
  EXPECT_THAT(Do(Runner::Arrived{0, 0}, 0), ElementsAre());
  EXPECT_THAT(Do(Runner::BeginStep{0}, 0), ElementsAre("compute -1"));
}

TEST(CompileTest, TheLoadsOfADeviceAreTheSameForEveryShape) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const RandomClusters::Drawn drawn = RandomClusters(seed).Draw();
    const absl::StatusOr<Plan> plan = MakePlan(drawn.problem, drawn.choice);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    if (!plan->reads_once) continue;
    const absl::StatusOr<std::vector<Program>> decode = Compile(*plan, DecodeShape(*plan));
    ASSERT_TRUE(decode.ok()) << decode.status().message();
    int64_t tokens = 0;
    for (const StepShape& shape : PrefillShapes(*plan)) {
      const absl::StatusOr<std::vector<Program>> prefill = Compile(*plan, shape);
      ASSERT_TRUE(prefill.ok()) << prefill.status().message();
      tokens += (shape.microbatches - 1) * shape.rows + shape.last_rows;
      for (size_t d = 0; d < decode->size(); ++d) ASSERT_EQ((*prefill)[d].loads, (*decode)[d].loads);
    }
    ASSERT_EQ(tokens, plan->prompt_tokens);
  }
}

// A ring that comes with a change is not used before the room that the change makes is there, and
// one that goes is not used behind it.
TEST(ProgramRunnerTest, ARingThatAChangeBringsIsUsedOnceItIsThere) {
  const Program whole = {.num_stages = 1, .microbatches = 1, .step = {Compute{0, 0, 0, 1, 0}}};
  Program streamed = whole, kept = whole;
  streamed.ring_bytes = kept.ring_bytes = 10;
  streamed.loads = {{.part = 0, .bytes = 10, .loads_in_ring = 1}};
  kept.loads = {{.part = 0, .bytes = 10, .loads_in_ring = 1, .becomes_resident = true}};
  streamed.step = kept.step = {AwaitWeights{0}, Compute{0, 0, 0, 1, 0}, Evict{0}};
  Runner runner({&whole});
  std::vector<Runner::Action> actions;
  const auto on = [&](const Runner::Event& event) {
    actions.clear();
    const absl::Status status = runner.OnEvent(event, 0, actions);
    EXPECT_TRUE(status.ok()) << status;
    return actions.size();
  };
  runner.Start(actions);
  EXPECT_TRUE(actions.empty());
  EXPECT_EQ(on(Runner::Change{{&streamed}, {&streamed}}), 1u);
  EXPECT_TRUE(std::holds_alternative<Runner::Border>(actions[0]));
  EXPECT_EQ(on(Runner::BeginStep{}), 0u) << "no ring yet";
  EXPECT_EQ(on(Runner::RoomMade{}), 1u);
  EXPECT_TRUE(std::holds_alternative<Runner::StartLoad>(actions[0]));
  EXPECT_EQ(on(Runner::Loaded{0}), 1u);
  EXPECT_EQ(on(Runner::Computed{}), 3u) << "its room is free, the step has ended, the next one's load begins";
  EXPECT_TRUE(runner.settled());
  // The load of the next step has begun: what it reads is used.
  EXPECT_EQ(on(Runner::Loaded{1}), 0u);
  EXPECT_EQ(on(Runner::Change{{&kept}, {&whole}}), 0u);
  EXPECT_EQ(on(Runner::BeginStep{}), 1u);
  EXPECT_EQ(on(Runner::Computed{}), 3u) << "nothing is read for the step behind the border, which is noted";
  EXPECT_TRUE(std::holds_alternative<Runner::Border>(actions[2]));
  EXPECT_EQ(on(Runner::RoomMade{}), 1u);
  EXPECT_EQ(on(Runner::Loaded{2}), 0u);
  EXPECT_EQ(on(Runner::BeginStep{}), 1u);
  EXPECT_EQ(on(Runner::Computed{}), 1u);
  EXPECT_TRUE(runner.settled());
  EXPECT_EQ(on(Runner::BeginStep{}), 1u) << "computes at once";
}

TEST(CompileTest, EveryMessageThatIsSentIsReceivedAndLogitsAreMadeOncePerToken) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    const RandomClusters::Drawn drawn = RandomClusters(seed).Draw();
    const absl::StatusOr<Plan> plan = MakePlan(drawn.problem, drawn.choice);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    const absl::StatusOr<std::vector<Program>> programs = Compile(*plan, DecodeShape(*plan));
    ASSERT_TRUE(programs.ok()) << programs.status().message();
    std::vector<std::tuple<int, int, int, int, Payload>> sent, received;  // stage that receives, micro-batch, from, to
    int64_t logit_rows = 0;
    const int stages = static_cast<int>(plan->stages.size());
    for (const Program& program : *programs) {
      ASSERT_TRUE(CheckProgram(program).ok()) << CheckProgram(program).message();
      for (const Instruction& instruction : program.step) {
        if (const auto* s = std::get_if<Send>(&instruction)) {
          sent.emplace_back((s->stage + 1) % stages, s->microbatch, program.device, s->to, s->payload);
        } else if (const auto* r = std::get_if<Recv>(&instruction)) {
          received.emplace_back(r->stage, r->microbatch, r->from, program.device, r->payload);
        } else if (const auto* c = std::get_if<Compute>(&instruction); c != nullptr && c->part + 1 == plan->NumParts()) {
          logit_rows += c->logit_rows;
        }
      }
    }
    std::ranges::sort(sent), std::ranges::sort(received);
    ASSERT_EQ(sent, received);
    ASSERT_EQ(logit_rows, plan->sequences);
  }
}

TEST(CompileTest, ShapesThatAreNoneAreSentences) {
  const RandomClusters::Drawn drawn = RandomClusters(1).Draw();
  const absl::StatusOr<Plan> plan = MakePlan(drawn.problem, drawn.choice);
  ASSERT_TRUE(plan.ok()) << plan.status().message();
  EXPECT_FALSE(Compile(*plan, {.microbatches = 0}).ok());
  EXPECT_FALSE(Compile(*plan, {.microbatches = kMaxMicrobatches + 1}).ok());
  EXPECT_FALSE(Compile(*plan, {.rows = 0}).ok());
  EXPECT_FALSE(Compile(Plan{}, {}).ok());
}

}  // namespace
}  // namespace lime
