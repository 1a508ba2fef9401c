// The search for another plan while one runs, on described devices: what it finds, and what it says
// of the plan in use and of the pause.
#include "coordinator/planning/change_search.h"

#include <atomic>
#include <fstream>

#include "coordinator/planning/cluster_planning.h"
#include "coordinator/planning/plan_rates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/status.h"
#include "planner/plan/kv_spill.h"
#include "planner/sim/simulator.h"
#include "tests/cases.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

// Llama 2 13B: 26 GB, and 819 KB of KV a token. Two fast devices hold it with the KV of 4,000
// tokens; the third has room, and computes slowly.
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
  struct Planned {
    PlanInputs inputs;
    Plan plan;
  };

  void SetUp() override {
    static const absl::StatusOr<Planned> planned = PlanOnce();
    ASSERT_TRUE(planned.ok()) << planned.status();
    inputs_ = planned->inputs;
    first_ = installed_ = planned->plan;
    install_ms_ = ReadWeightsMs(inputs_.spec, installed_);
  }

  static absl::StatusOr<Planned> PlanOnce() {
    const TempDir dir;
    const std::string path = dir / "devices.json";
    std::ofstream(path) << kDevices;
    PlanInputFlags flags;
    flags.model_spec = LIME_SOURCE_DIR "/testbed/clusters/llama-2-13b.json";
    flags.device_profiles = path;
    flags.tokens = kContext, flags.kv_tokens = 2048, flags.prompt_tokens = 64;
    flags.kv.no_lending = true;
    Planned planned;
    LIME_ASSIGN_OR_RETURN(planned.inputs, ReadPlanInputs(flags));
    LIME_ASSIGN_OR_RETURN(planned.plan, ClusterPlanning({.work_ms = kSearchMs}, planned.inputs).Run());
    return planned;
  }

  // With KV of `from` to `to` positions left to go through.
  absl::StatusOr<PlanWatcher::Candidate> TrySearch(int64_t from, int64_t to, ClusterRates now, KvRoom room) {
    for (const auto& [key, rate] : PlannedRates(inputs_, first_)) now.emplace(key, rate);
    const OrderWriter::Remaining remaining = {
        .steps = to - from, .known = from, .pages = from / kPageTokens, .pages_at_end = to / kPageTokens, .decodes = decodes_};
    return SearchForChange(inputs_,
                           {.current = first_, .made_with = made_with_, .now = now, .remaining = remaining, .cancelled = cancelled_},
                           {.online = online_,
                            .first = &installed_,
                            .install_ms = install_ms_,
                            .time_limit_ms = search_ms_,
                            .by_clock = false,
                            .levels = levels_,
                            .kv_room = std::move(room)});
  }
  PlanWatcher::Candidate Search(int64_t from, int64_t to, ClusterRates now = {}, KvRoom room = {}) {
    absl::StatusOr<PlanWatcher::Candidate> found = TrySearch(from, to, std::move(now), std::move(room));
    if (found.ok()) return *std::move(found);
    ADD_FAILURE() << found.status();
    return {};
  }

  // Search(512, 1024) and Search(8192, kContext), made once. REQUIRES: nothing of the fixture has
  // changed yet.
  const PlanWatcher::Candidate& Early() {
    static const PlanWatcher::Candidate early = Search(512, 1024);
    return early;
  }
  const PlanWatcher::Candidate& Late() {
    static const PlanWatcher::Candidate late = Search(8192, kContext);
    return late;
  }

  static constexpr double kSearchMs = 1000;
  PlanInputs inputs_;
  Plan first_;      // in use
  Plan installed_;  // at first, in as long as its profile says
  double install_ms_ = 0;
  KvGrowth online_ = kLimeRule;
  double search_ms_ = kSearchMs;
  bool decodes_ = true;
  std::vector<Residency> levels_;
  const ClusterRates made_with_ = {};
  const std::atomic<bool> cancelled_ = false;
};

TEST_F(ChangeSearchTest, KvThatOutgrowsAPlanIsWorthADeviceThatTheFirstOnesDidWithout) {
  ASSERT_THAT(DevicesUsed(first_), Not(Contains("slow")));
  const PlanWatcher::Candidate& early = Early();
  EXPECT_GT(early.ms_per_step, 0.95 * early.current_ms) << "KV fits as it is";
  EXPECT_LT(early.ms_per_step, 1.05 * early.current_ms) << "a plan with all KV from the start has the third device, or streams";
  const PlanWatcher::Candidate& late = Late();
  EXPECT_THAT(DevicesUsed(late.plan), Contains("slow"));
  EXPECT_LT(late.ms_per_step, 0.8 * late.current_ms);
  EXPECT_GT(late.current_ms, 1.5 * early.current_ms) << "what streams at the levels that are left is counted";
}

TEST_F(ChangeSearchTest, ThePlanInUseIsComparedByWhatIsMeasured) {
  const PlanWatcher::Candidate& before = Early();
  const PlanWatcher::Candidate slower = Search(512, 1024, {{ComputeKey("a"), 0.1}});
  EXPECT_GT(slower.current_ms, 2 * before.current_ms);
  EXPECT_LT(slower.ms_per_step, 0.9 * slower.current_ms) << "others take layers of a device that has become slow";
  EXPECT_THAT(DevicesUsed(slower.plan), Contains("slow"));
  EXPECT_GT(slower.ms_per_step, 1.2 * before.ms_per_step) << "the search knows that it has";
}

TEST_F(ChangeSearchTest, ThePauseIsReadingTheFirstStepsAndMovingKv) {
  const PlanWatcher::Candidate& late = Late();
  const auto slow = std::ranges::find(late.plan.devices, "slow", &PlanDevice::name);
  ASSERT_NE(slow, late.plan.devices.end());
  const double slow_reads_ms = static_cast<double>(slow->memory.weights) / 1e9 * 1000, steps_ms = 2 * late.ms_per_step;
  ASSERT_TRUE(late.taking_over);
  EXPECT_GT(late.taking_over->fixed_ms, 500 + 2 * slow_reads_ms + steps_ms) << "it had nothing";
  EXPECT_GE(late.computing_again.fixed_ms, late.taking_over->fixed_ms - 2 * 1000) << "all is read; nobody is called for KV";
  EXPECT_GT(late.computing_again.Of(8192), late.taking_over->Of(8192));
  EXPECT_GT(late.going_back.fixed_ms, 500 + 2 * 13'000 - 2 * 3'000) << "each of the fast ones reads some 12 GB";
  EXPECT_GT(late.going_back.fixed_ms, 2 * ComputeAgainMs(inputs_, first_, 8192));
  // A disk on which the first installation took twice what the profile says.
  install_ms_ *= 2;
  const PlanWatcher::Candidate slower = Search(8192, kContext);
  ASSERT_TRUE(slower.taking_over);
  EXPECT_GT(slower.taking_over->fixed_ms, late.taking_over->fixed_ms + slow_reads_ms);
}

TEST_F(ChangeSearchTest, InAPromptThePauseIsAStepOfItLonger) {
  const PlanWatcher::Candidate& decoding = Late();
  decodes_ = false;
  const PlanWatcher::Candidate in_prompt = Search(8192, kContext);
  ASSERT_TRUE(decoding.taking_over && in_prompt.taking_over);
  EXPECT_FALSE(decoding.in_prompt);
  EXPECT_TRUE(in_prompt.in_prompt);
  const double step_ms = ComputeAgainMs(inputs_, in_prompt.plan, 64);
  EXPECT_GT(in_prompt.taking_over->fixed_ms, decoding.taking_over->fixed_ms + step_ms);
  EXPECT_GE(in_prompt.most_pages, 8192 / kPageTokens);
  EXPECT_LT(in_prompt.most_pages, kContext / kPageTokens) << "for as long as the search and the next step take";
}

// At its level of KV the plan in use streams what it has in memory at first.
TEST_F(ChangeSearchTest, WhatHasGrownOutOfMemoryIsReadAgain) {
  const PlanWatcher::Candidate& as_planned = Late();
  for (const KvLevel& level : LevelsOf(first_, kLimeRule).levels) levels_.push_back(level.residency);
  ASSERT_GT(levels_.size(), 2u);
  const PlanWatcher::Candidate by_then = Search(8192, kContext);
  ASSERT_TRUE(as_planned.taking_over && by_then.taking_over);
  EXPECT_GT(by_then.taking_over->fixed_ms, as_planned.taking_over->fixed_ms);
}

TEST_F(ChangeSearchTest, GoingBackIsAsSlowAsLinksAreNow) {
  const ClusterRates slow = {{LinkKey("a", "b"), 1e6}, {LinkKey("b", "a"), 1e6}};  // of 125e6
  EXPECT_GT(Search(8192, kContext, slow).going_back.fixed_ms, 1.15 * Late().going_back.fixed_ms);
}

TEST_F(ChangeSearchTest, ComputingAgainCountsAllChunksAtTheRateOfTheLast) {
  Plan longer = first_;
  longer.prompt_tokens = 8192;
  const absl::StatusOr<SimulationResult> short_ones = SimulatePrefill(longer, {.timeline = false});
  ASSERT_TRUE(short_ones.ok()) << short_ones.status();
  const double again_ms = ComputeAgainMs(inputs_, first_, 8192);
  EXPECT_GT(again_ms, 1.01 * short_ones->step_ends_ms.back()) << "its chunks attend to more";
  EXPECT_LT(again_ms, 3 * short_ones->step_ends_ms.back());
  EXPECT_GT(ComputeAgainMs(inputs_, first_, 4096), 0.4 * again_ms);
  EXPECT_LT(ComputeAgainMs(inputs_, first_, 4096), 0.6 * again_ms);
}

// The two fast devices alone: 49,152 tokens are more than they have memory for.
TEST_F(ChangeSearchTest, APlanWhoseKvHasNoRoomOnADiskIsNone) {
  constexpr int64_t kTokens = 3 * kContext;
  inputs_.devices.pop_back();
  inputs_.request.context = kTokens;
  online_.reset();
  if (!Soaking()) inputs_.request.part_bytes = 512 * kMiB;  // whole blocks: levels of KV are searched part by part
  search_ms_ = 200;
  absl::StatusOr<Plan> plan = ClusterPlanning({.work_ms = search_ms_}, inputs_).Run();
  ASSERT_TRUE(plan.ok()) << plan.status();
  first_ = *std::move(plan);
  const Bytes a = KvOnDiskBytes(first_, 0), b = KvOnDiskBytes(first_, 1);
  ASSERT_TRUE(a > kGiB && b > kGiB) << a << " " << b;
  // What others have written is not there even when the file of the plan in use is gone.
  const absl::StatusOr<PlanWatcher::Candidate> full = TrySearch(8192, kTokens, {}, {{"a", -a}, {"b", -b}});
  ASSERT_TRUE(absl::IsResourceExhausted(full.status())) << full.status();
  EXPECT_THAT(std::string(full.status().message()), HasSubstr("has room for 0"));
  // There is room for the next file once that of the plan in use is gone; and beside it.
  const PlanWatcher::Candidate alone = Search(8192, kTokens, {}, {{"a", a / 2}, {"b", b / 2}});
  EXPECT_GT(KvOnDiskBytes(alone.plan, 0) + KvOnDiskBytes(alone.plan, 1), (a + b) / 2);
  EXPECT_FALSE(alone.taking_over);
  const PlanWatcher::Candidate beside = Search(8192, kTokens, {}, {{"a", 10 * a}, {"b", 10 * b}});
  EXPECT_GT(KvOnDiskBytes(beside.plan, 0) + KvOnDiskBytes(beside.plan, 1), (a + b) / 2);
  EXPECT_TRUE(beside.taking_over);
}

}  // namespace
}  // namespace lime
