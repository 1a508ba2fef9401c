#include "planner/kv/hosting/kv_hosting.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/kv/kv_growth.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/search/plan_search.h"
#include "planner/sim/simulator.h"
#include "tests/planner/small_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLongContext = 16384;

// One that computes fast and holds the model with a little KV, one that computes slowly and has
// room.
std::vector<ClusterDevice> FastAndRoomy() {
  return {Board("fast", 190 * kMiB, 100e9, 0.2e9), Board("roomy", 400 * kMiB, 30e9, 0.2e9)};
}

struct Planned {
  std::vector<ClusterDevice> devices;
  LinkPoint link;
  Plan plan;  // cut
};

absl::StatusOr<Planned> HostedPlanFor(const std::vector<ClusterDevice>& devices, const LinkPoint& link, int64_t prompt_tokens = 0,
                                      const ModelSpec& spec = SmallModel()) {
  const PlanRequest request{
      .context = kLongContext, .kv_tokens = 512, .part_bytes = kMiB, .prompt_tokens = prompt_tokens, .default_link = link};
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, devices, request));
  SearchOptions options{.granularity = Granularity::kWholeBlock, .time_limit_ms = 200};
  const FoundPlan found = SearchPlan(problem.instance, options);
  if (!found.feasible) return absl::ResourceExhaustedError(found.reason);
  PlanChoice choice{.stages = found.plan, .batch = 1};
  if (problem.first_token) choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(found.plan);
  LIME_ASSIGN_OR_RETURN(const Plan plan, MakePlan(problem, choice));
  LIME_ASSIGN_OR_RETURN(Plan cut, CutForKv(plan, spec, /*for_hosts=*/true));
  return Planned{devices, link, std::move(cut)};
}

const LinkPoint kGigabit = {.peer = "", .bytes_per_second = 125e6, .latency_ms = 0.1};

// Every level of a plan fits, and takes as long as the simulation says; the plan returns from a
// file as it is.
void ExpectAsSimulated(const Plan& plan) {
  for (const KvLevel& level : MakeKvLevels(plan).levels) {
    const absl::StatusOr<Plan> changed = WithResidency(plan, level.residency);
    ASSERT_TRUE(changed.ok()) << changed.status();
    for (const PlanDevice& device : changed->devices) EXPECT_EQ(device.memory.total(), device.budget) << device.name;
    const absl::StatusOr<SimulationResult> result = SimulateDecode(*changed, {.timeline = false});
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_NEAR(result->MsPerStep(), level.ms_per_step, 0.01 * level.ms_per_step);
  }
  const absl::StatusOr<Plan> read = ParsePlan(ToJsonText(plan), "plan.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, plan);
}

TEST(KvHostingTest, AskingCostsTheWayAndWhatTheHostIsSlower) {
  const ModelSpec spec = SmallModel();
  const absl::StatusOr<Planned> planned = HostedPlanFor(FastAndRoomy(), kGigabit);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const KvHosting hosting = MakeKvHosting(spec, planned->devices, planned->link, planned->plan);
  EXPECT_FALSE(hosting.Allows(0, 0));
  ASSERT_TRUE(hosting.Allows(0, 1));
  const double bytes = static_cast<double>(spec.config.num_heads * (2 * spec.config.MostHeadDim() + 2) * 4);
  const KvHosting::Pair& pair = *hosting.pairs[0][1];
  EXPECT_NEAR(pair.decode.way_ms, bytes / 125e6 * 1000 + 0.2, 1e-9);
  EXPECT_GT(pair.decode.position_ms, 0);
  EXPECT_NEAR(hosting.pairs[1][0]->decode.position_ms, -pair.decode.position_ms, 1e-12);
  std::vector<ClusterDevice> others = planned->devices;
  others[1].numerics_id = "another";
  EXPECT_FALSE(MakeKvHosting(spec, others, planned->link, planned->plan).Allows(0, 1));
}

TEST(KvHostingTest, NoDeviceHostsKvOfAModelWhoseLayersHaveDifferentWindows) {
  ModelSpec spec = SmallModel();
  const absl::StatusOr<Planned> planned = HostedPlanFor(FastAndRoomy(), kGigabit);
  ASSERT_TRUE(planned.ok()) << planned.status();
  ASSERT_TRUE(MakeKvHosting(spec, planned->devices, planned->link, planned->plan).Allows(0, 1));
  spec.config.layers.front().window = 64;
  EXPECT_FALSE(MakeKvHosting(spec, planned->devices, planned->link, planned->plan).Allows(0, 1));
}

TEST(KvHostingTest, WhatGoesToAHostComesBackAsItWas) {
  const ModelSpec spec = SmallModel();
  const absl::StatusOr<Planned> planned = HostedPlanFor(FastAndRoomy(), kGigabit, /*prompt_tokens=*/64);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const Plan& plan = planned->plan;
  const KvHosting hosting = MakeKvHosting(spec, planned->devices, planned->link, plan);
  const Plan away = WithKvAway(plan, hosting, 0, {.layer_pages = WorkingPages(plan), .host = 1});
  EXPECT_EQ(away.devices[0].kv_host, 1);
  EXPECT_GT(away.devices[0].ask_kv_ms, 0);
  EXPECT_GT(away.devices[0].memory.activations, plan.devices[0].memory.activations);
  EXPECT_GT(away.devices[1].memory.activations, plan.devices[1].memory.activations);
  EXPECT_TRUE(
      std::ranges::any_of(away.parts, [](const PlanPart& part) { return part.is_kv() && part.decode_ms > 0 && part.prefill_ms > 0; }));
  EXPECT_EQ(WithKvAway(away, hosting, 0, {}), plan);
  const Plan back = WithKvAway(away, hosting, 0, {.layer_pages = WorkingPages(plan), .host = 1, .back = 2});
  EXPECT_EQ(back.devices[0].kv_fetch_pieces, 2 * HostedPieces(back, back.devices[0]) + kKvFetchesUnderWay);
  EXPECT_GT(back.devices[1].memory.activations, away.devices[1].memory.activations);
  EXPECT_EQ(KvPlaceOf(back, 0).back, 2);
  EXPECT_EQ(WithKvAway(back, hosting, 0, {.layer_pages = WorkingPages(plan), .host = 1}), away);
}

TEST(KvHostingTest, ADeviceWithRoomHasTheKvOfAFastOne) {
  const ModelSpec spec = SmallModel();
  const absl::StatusOr<Planned> planned = HostedPlanFor(FastAndRoomy(), kGigabit);
  ASSERT_TRUE(planned.ok()) << planned.status();
  ASSERT_EQ(planned->plan.stages.size(), 1u) << "the fast one is fastest alone while its KV is short";
  const KvHosting hosting = MakeKvHosting(spec, planned->devices, planned->link, planned->plan);
  const absl::StatusOr<Plan> lends = PlanToSpill(planned->plan, {.hosting = &hosting}), spills = PlanToSpill(planned->plan);
  ASSERT_TRUE(lends.ok()) << lends.status();
  ASSERT_TRUE(spills.ok()) << spills.status();
  ASSERT_TRUE(lends->Validate(spec).ok()) << lends->Validate(spec);
  EXPECT_EQ(lends->devices[0].kv_host, 1) << ToJsonText(*lends);
  EXPECT_FALSE(std::ranges::any_of(spills->devices, HasKvOnHost));
  EXPECT_TRUE(HasPart(*lends, 1)) << "it has no stage, and takes part";
  EXPECT_FALSE(HasPart(*spills, 1));
  const KvLevels levels = MakeKvLevels(*lends);
  SCOPED_TRACE(ToJsonText(*lends));
  EXPECT_EQ(levels.exhausted, "");
  EXPECT_LT(1.2 * MeanMs(levels), MeanMs(MakeKvLevels(*spills)));
  ExpectAsSimulated(*lends);
}

TEST(KvHostingTest, OverASlowLinkNobodyIsAsked) {
  const absl::StatusOr<Planned> planned = HostedPlanFor(FastAndRoomy(), {.peer = "", .bytes_per_second = 0.2e6, .latency_ms = 20});
  ASSERT_TRUE(planned.ok()) << planned.status();
  const KvHosting hosting = MakeKvHosting(SmallModel(), planned->devices, planned->link, planned->plan);
  const absl::StatusOr<Plan> plan = PlanToSpill(planned->plan, {.hosting = &hosting});
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_FALSE(std::ranges::any_of(plan->devices, HasKvOnHost)) << ToJsonText(*plan);
}

// What the host keeps of a device that asks it about nothing: the link has time for all of it, and
// what is predicted is what is simulated.
TEST(KvHostingTest, WithoutRemoteAttentionAllThatIsLentComesBack) {
  const ModelSpec spec = *DescribeModel(LlamaConfig(/*layers=*/16, /*hidden=*/512, /*inner=*/4096, /*vocab=*/8000), "deep");
  const std::vector<ClusterDevice> devices = {Board("fast", 300 * kMiB, 10e9, 0.2e9), Board("roomy", 700 * kMiB, 3e9, 0.2e9)};
  const LinkPoint fast = {.peer = "", .bytes_per_second = 25e9, .latency_ms = 0.01};
  const absl::StatusOr<Planned> planned = HostedPlanFor(devices, fast, 0, spec);
  ASSERT_TRUE(planned.ok()) << planned.status();
  KvHosting hosting = MakeKvHosting(spec, devices, fast, planned->plan);
  hosting.asks = false;
  const absl::StatusOr<Plan> lends = PlanToSpill(planned->plan, {.hosting = &hosting});
  ASSERT_TRUE(lends.ok()) << lends.status();
  ASSERT_TRUE(lends->Validate(spec).ok()) << lends->Validate(spec);
  SCOPED_TRACE(ToJsonText(*lends));
  ASSERT_EQ(lends->devices[0].kv_host, 1);
  EXPECT_FALSE(lends->devices[0].asks_kv);
  EXPECT_EQ(lends->devices[0].memory.fetched, FetchedBytes(*lends, lends->devices[0]));
  EXPECT_LT(MeanMs(MakeKvLevels(*lends)), MeanMs(MakeKvLevels(*PlanToSpill(planned->plan))));
  ExpectAsSimulated(*lends);
  Plan tight = *lends;
  tight.devices[0].kv_fetch_pieces = HostedPieces(tight, tight.devices[0]) + kKvFetchesUnderWay - 1;
  EXPECT_THAT(std::string(tight.Validate().message()), HasSubstr("has no room for the"));
  tight.devices[0].kv_fetch_pieces = -1;
  EXPECT_FALSE(tight.Validate().ok());
  tight = *lends, tight.devices[0].kv_fetch_mb_per_ms = 0;
  EXPECT_THAT(std::string(tight.Validate().message()), HasSubstr("kv_fetch_mb_per_ms = 0, but all KV"));
  tight.devices[0].kv_fetch_mb_per_ms = 1e-320;
  EXPECT_THAT(std::string(tight.Validate().message()), HasSubstr("is below"));
}

// More layers come back where the link is faster and where more have room; Eq. 8 bounds them.
TEST(KvHostingTest, AsManyLayersComeBackInTimeAsTheLinkCarriesAndTheRoomHolds) {
  const ModelSpec spec = SmallModel();
  const absl::StatusOr<Planned> planned = HostedPlanFor(FastAndRoomy(), kGigabit);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const KvHosting hosting = MakeKvHosting(spec, planned->devices, planned->link, planned->plan);
  const int64_t full = FullLayerPages(planned->plan);
  Plan plan = WithKvAway(planned->plan, hosting, 0, {.layer_pages = WorkingPages(planned->plan), .host = 1, .back = 1});
  double step_ms = plan.decode.lat_ms;
  for (const PlanPart& part : plan.parts) step_ms += part.is_kv() ? 0 : part.decode_ms;
  const int64_t layers = std::ssize(LayersOn(plan, 0));
  int64_t before = 0;
  for (const double mb_per_ms : {0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0}) {
    plan.devices[0].kv_fetch_mb_per_ms = mb_per_ms;
    const int64_t in_time = LayersInTime(plan, 0, full);
    EXPECT_GE(in_time, before) << mb_per_ms;
    EXPECT_LE(in_time, std::max(1.0, step_ms / FetchLayerMs(plan, 0, full))) << mb_per_ms;
    before = in_time;
  }
  EXPECT_EQ(before, layers);
  plan.devices[0].kv_fetch_mb_per_ms = 5;
  before = 0;
  for (const int64_t back : {0, 1, 2, 4, 8}) {
    plan.devices[0].kv_fetch_pieces = back == 0 ? 0 : back * HostedPieces(plan, plan.devices[0]) + kKvFetchesUnderWay;
    const int64_t in_time = LayersInTime(plan, 0, full);
    EXPECT_GE(in_time, std::max(before, std::min(back, layers))) << back;
    EXPECT_LE(in_time, std::max(static_cast<double>(back), step_ms / FetchLayerMs(plan, 0, full))) << back;
    before = in_time;
  }
  EXPECT_EQ(LayersInTime(plan, 0, WorkingPages(plan)), 0) << "nothing is away";
  EXPECT_EQ(LayersInTime(plan, 1, full), 0) << "it has no host";
  const auto waits = [&](int64_t pages) {
    int64_t parts = 0;
    for (int p = 0; p < plan.NumParts(); ++p) parts += WaitsForKv(plan, p) && WaitMs(plan, p, pages) > 0;
    return parts;
  };
  EXPECT_EQ(waits(full), layers - before);
}

// Neither streams nor spills: what would be refused runs with the memory of the other.
TEST(KvHostingTest, WithoutDisksAHostIsWhatMakesLongContextsFit) {
  std::vector<ClusterDevice> devices = FastAndRoomy();
  for (ClusterDevice& device : devices) device.profile.disk.clear();
  const absl::StatusOr<Planned> planned = HostedPlanFor(devices, kGigabit);
  ASSERT_TRUE(planned.ok()) << planned.status();
  const KvHosting hosting = MakeKvHosting(SmallModel(), devices, planned->link, planned->plan);
  EXPECT_FALSE(PlanToSpill(planned->plan).ok());
  const absl::StatusOr<Plan> lends = PlanToSpill(planned->plan, {.disks = false, .hosting = &hosting});
  ASSERT_TRUE(lends.ok()) << lends.status();
  EXPECT_EQ(MakeKvLevels(*lends).exhausted, "");
}

TEST(KvHostingTest, AHostWithoutAnOwnerIsRefused) {
  const absl::StatusOr<Planned> planned = HostedPlanFor(FastAndRoomy(), kGigabit);
  ASSERT_TRUE(planned.ok()) << planned.status();
  Plan plan = planned->plan;
  plan.devices[1].max_layer_pages = WorkingPages(plan), plan.devices[1].kv_host = 0;
  EXPECT_THAT(std::string(plan.Validate().message()), HasSubstr("devices[1].kv_host is given, but the device has no stage"));
}

}  // namespace
}  // namespace lime
