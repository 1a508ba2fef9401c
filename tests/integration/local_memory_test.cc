// One process that runs a model by a plan keeps within its memory, and streams or stores the rest on
// the disk, without another bit.

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/kv/kv_levels.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_spill.h"
#include "tests/cases.h"
#include "tests/integration/fake_machine.h"
#include "tests/integration/local_device_fixture.h"

namespace lime {
namespace {

class LocalMemoryTest : public LocalDeviceTest {};

// As LocalSession has them.
std::vector<Residency> LevelsAt(const Plan& plan, const std::atomic<bool>* /*cancelled*/) {
  std::vector<Residency> levels;
  for (const KvLevel& level : MakeKvLevels(plan).levels) levels.push_back(level.residency);
  return levels;
}

TEST_F(LocalMemoryTest, WhatFitsIsResidentAndTheRestStreams) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const auto streamed = [](const Plan& plan) { return std::ranges::count_if(plan.parts, &PlanPart::streamed); };
  const Plan whole = PlanFor({}, kSlots, 60);
  EXPECT_EQ(streamed(whole), 0);
  EXPECT_EQ(whole.embedding, EmbeddingPlacement::kResident);
  EXPECT_EQ(whole.devices.front().memory.ring, 0);
  const Plan half = PlanFor({.resident = 0.5}, kSlots, 60), none = PlanFor({.resident = 0}, kSlots, 60);
  EXPECT_GT(streamed(half), 0);
  EXPECT_LT(streamed(half), half.NumParts());
  EXPECT_EQ(streamed(none), none.NumParts());
  const auto too_small = PlanForThisProcess(spec_, {.budget = 1 * kMiB, .context = kContext});
  EXPECT_TRUE(absl::IsResourceExhausted(too_small.status())) << too_small.status();
}

TEST_F(LocalMemoryTest, ABudgetThatIsTooSmallForAllIsKept) {
  const std::string model = dir_ / "larger";
  MakeModelOptions options;
  options.config.num_layers = 8;
  options.config.hidden_size = 512;
  options.config.num_heads = 8;
  options.config.intermediate_size = 1536;
  ASSERT_TRUE(MakeModel(options, model).ok());
  const ModelSpec spec = *Checkpoint::Open(model)->BuildModelSpec();
  LocalPlanRequest request{.budget = 8 * kGiB, .context = kContext, .prompt_tokens = 60, .part_bytes = kMiB, .num_threads = 1};
  const auto whole = PlanForThisProcess(spec, request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const PlanMemory& memory = whole->plan.devices.front().memory;
  request.budget = memory.total() - memory.margin + 16 * kMiB - memory.weights / 2;
  const auto tight = PlanForThisProcess(spec, request);
  ASSERT_TRUE(tight.ok()) << tight.status();
  EXPECT_LE(tight->plan.devices.front().memory.total(), request.budget);
  Bytes streamed = 0;
  for (const PlanPart& part : tight->plan.parts) streamed += part.streamed ? part.bytes : 0;
  EXPECT_GT(streamed, memory.weights / 2);
  EXPECT_LT(streamed, memory.weights);
  LocalDevice device({.weights = model, .make_stage = MakeEngineStages({.num_threads = 1})});
  const absl::Status installed = device.Install(tight->plan, {});
  EXPECT_TRUE(installed.ok()) << installed << ToJsonText(tight->plan);
}

TEST_F(LocalMemoryTest, MemoryForMoreLogitsIsCounted) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const Plan one = PlanFor({}, 1, 60), many = PlanFor({.logit_rows = kChunk}, 1, 60), bounded = PlanFor({.logit_rows = 1000}, 1, 60);
  EXPECT_EQ(one.logit_rows, 0);
  EXPECT_EQ(many.logit_rows, kChunk);
  EXPECT_EQ(bounded.logit_rows, kChunk) << "a chunk has no more rows";
  EXPECT_GE(many.devices[0].memory.activations - one.devices[0].memory.activations,
            (kChunk - 1) * spec_.config.vocab_size * static_cast<Bytes>(sizeof(float)));
  const auto read = ParsePlan(ToJsonText(many), "plan.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, many);
}

TEST_F(LocalMemoryTest, ShedsWeightsWhileOthersNeedMemoryAndChangesNoBit) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  const cli::GenerateOptions options = Options({.temperature = 0});
  const std::vector<cli::Generated> expected = ByTheModel(options);
  FakeMachine machine;
  absl::Notification ended;
  std::thread others([&] {  // which need memory, and then do not, while requests are computed
    for (Bytes i = 0; !ended.WaitForNotificationWithTimeout(absl::Milliseconds(7)); ++i)
      machine.SetAvailable(i % 3 == 0 ? 8 * kGiB : i % 7 * kMiB);
  });
  int64_t changes = 0;
  const absl::Time end = absl::Now() + absl::Minutes(1);
  for (const Shape& shape : {Shape{}, Shape{.loader = LoaderKind::kMmap}, Shape{.resident = 0.6, .threads = 2}}) {
    // How often memory changes during a run depends on the machine, so runs go on until it has.
    for (int run = 0; run < 4 || (changes <= 2 && absl::Now() < end); ++run) {
      LocalDevice device({.weights = model_,
                          .make_stage = MakeEngineStages({.num_threads = shape.threads,
                                                          .loader = shape.loader,
                                                          .follow_memory = true,
                                                          .pressure = machine.Watch(),
                                                          .pressure_hold = absl::Milliseconds(20)})});
      const absl::Status installed = device.Install(PlanFor(shape, kSlots, 60), {});
      EXPECT_TRUE(installed.ok()) << installed;
      if (!installed.ok()) break;
      ExpectSame(ByAPlan(device, options), expected);
      changes += device.Statistics(0)->residency_changes;
    }
  }
  ended.Notify();
  others.join();
  EXPECT_GT(changes, 2);
}

TEST_F(LocalMemoryTest, KvThatMemoryHasNoRoomForGoesToTheDiskAndChangesNoBit) {
  if (!ManyCases()) GTEST_SKIP() << "under a sanitizer it takes more than a minute, in scripts/soak asan";
  ASSERT_NO_FATAL_FAILURE(MakeLong());
  const cli::GenerateOptions options = Options({.temperature = 0});
  const std::vector<cli::Generated> expected = ByTheModel(options);
  LocalPlanRequest request{.budget = 8 * kGiB,
                           .context = context_,
                           .spills_kv = false,
                           .sequences = 2,
                           .prompt_tokens = 1250,
                           .chunk = 64,
                           .part_bytes = 64 * kKiB,
                           .num_threads = 1};
  const auto whole = PlanForThisProcess(spec_, request);
  ASSERT_TRUE(whole.ok()) << whole.status();
  EXPECT_FALSE(SpillsKv(whole->plan));
  ExpectSame(ByAPlan(*Install(whole->plan, {}), options), expected);
  // A sanitizer retains freed memory for a while.
  request.beside = 64 * kMiB;
  // Half of the KV, beside what this process has by now.
  const auto half_of_kv = [&, roomy = request]() -> Bytes {
    const auto fits = PlanForThisProcess(spec_, roomy);
    EXPECT_TRUE(fits.ok()) << fits.status();
    if (!fits.ok()) return 0;
    const PlanMemory& memory = fits->plan.devices.front().memory;
    return memory.total() - memory.margin + 16 * kMiB - memory.kv / 2;
  };
  request.budget = half_of_kv();
  const auto refused = PlanForThisProcess(spec_, request);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  request.spills_kv = true;
#ifdef LIME_SANITIZED
  const std::vector<int64_t> kv_tokens_of = {100};  // planning takes half a minute there
#else
  const std::vector<int64_t> kv_tokens_of = {0, 100};
#endif
  for (const int64_t kv_tokens : kv_tokens_of) {
    request.kv_tokens = kv_tokens;
    request.budget = half_of_kv();
    const auto spills = PlanForThisProcess(spec_, request);
    ASSERT_TRUE(spills.ok()) << spills.status();
    SCOPED_TRACE(ToJsonText(spills->plan));
    ASSERT_TRUE(SpillsKv(spills->plan));
    EXPECT_EQ(spills->plan.devices.front().budget, request.budget);
    EXPECT_LE(spills->plan.devices.front().memory.total(), request.budget);
    LocalDevice nowhere({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1, .kv_dir = dir_ / "nowhere"})});
    EXPECT_THAT(std::string(nowhere.Install(spills->plan, {}).message()), ::testing::HasSubstr("give a --kv-dir that limed may write"));
    LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1, .grow_kv = kv_tokens > 0})});
    const absl::Status installed = device.Install(spills->plan, {});
    ASSERT_TRUE(installed.ok()) << installed;
    ExpectSame(ByAPlan(device, options, {.levels = LevelsAt}), expected);
    const auto statistics = device.Statistics(0);
    ASSERT_TRUE(statistics.ok()) << statistics.status();
    EXPECT_GT(statistics->kv_written, 0);
    EXPECT_GT(statistics->kv_read, statistics->kv_written) << "in every step again";
    EXPECT_GT(statistics->residency_changes, 0);
  }
  // What is asked for of a ring or of what stays is kept or refused.
  request.ring_parts = 4;
  EXPECT_TRUE(absl::IsResourceExhausted(PlanForThisProcess(spec_, request).status()));
}

TEST_F(LocalMemoryTest, SaysHowTheWeightsWereLoaded) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  using ::testing::StartsWith;
  const Bytes all = spec_.WeightBytes();
  for (const auto& [shape, says] : {std::pair<Shape, const char*>{{}, "read ("},
                                    {{.loader = LoaderKind::kMmap}, "mmap (views of the files"},
                                    {{.resident = 0.5, .loader = LoaderKind::kAuto}, "read: resident blocks"}}) {
    const LoadSummary load = Install(PlanFor(shape, kSlots, 60), shape)->load();
    EXPECT_THAT(load.loader, StartsWith(says));
    EXPECT_GT(load.seconds, 0);
    EXPECT_GT(load.bytes, 0);
    if (shape.resident) {
      EXPECT_LT(load.bytes, all * 3 / 4);
    } else {
      EXPECT_EQ(load.bytes, all);
    }
  }
  EXPECT_EQ(LocalDevice({.weights = model_, .make_stage = MakeEngineStages({})}).load().loader, "");
}

TEST_F(LocalMemoryTest, APlanThatCannotBeIsRefusedAndLeavesNothing) {
  ASSERT_NO_FATAL_FAILURE(Make(Models().front()));
  Plan plan = PlanFor({}, kSlots, 60);
  LocalDevice device({.weights = model_, .make_stage = MakeEngineStages({.num_threads = 1})});
  Plan two = plan;
  two.devices.push_back(two.devices.front());
  EXPECT_TRUE(absl::IsInvalidArgument(device.Install(two, {})));
  plan.model_key = "another";
  EXPECT_TRUE(absl::IsInvalidArgument(device.Install(plan, {})));
  EXPECT_FALSE(device.Statistics(0).ok());
  EXPECT_TRUE(device.Unload().ok());
}

}  // namespace
}  // namespace lime
