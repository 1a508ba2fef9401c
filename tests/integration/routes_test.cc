// Routes are recorded, hits are measured, and a plan with the recorded routes predicts them.

#include "coordinator/planning/routes.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"
#include "coordinator/sessions/local_session.h"
#include "daemon/logic/route_recorder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/demand/replay.h"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kExperts = 8;
constexpr int64_t kTokens = 48;

std::string MakeExperts(const TempDir& dir, const std::string& name, int64_t experts) {
  MakeModelOptions options;
  options.config = {.family = "qwen3_moe", .num_layers = 3, .num_experts = experts, .experts_per_token = 2};
  EXPECT_TRUE(MakeModel(options, dir / name).ok());
  return dir / name;
}

std::vector<int32_t> Ids() {
  std::vector<int32_t> ids(kTokens);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(1 + 37 * i % 300);
  return ids;
}

struct RouteRun {
  absl::Status status;
  Plan plan;
  DeviceStatistics statistics;
  absl::StatusOr<RouteLog> log;
  nlohmann::json described;
};

// Scores the ids, `chunk` of them in a step, and records the choices.
RouteRun RunWith(const cli::ModelFlags& given, int64_t chunk = 1) {
  cli::ModelFlags flags = given;
  flags.chunk = chunk;
  RouteRun run;
  const auto routes = std::make_shared<RouteRecorder>();
  {
    const auto session = cli::LocalSession::Open(
        flags, {.context = kTokens, .prompt_tokens = kTokens, .all_prompt_tokens = kTokens, .logit_rows = chunk}, {.routes = routes});
    run.status = session.status();
    if (!run.status.ok()) return run;
    run.status = (*session)->Score({Ids()}, {}).status();
    run.plan = (*session)->plan(), run.statistics = (*session)->statistics(), run.described = (*session)->Describe();
    run.log = routes->ToLog(*RouteShapeOf((*session)->spec(), flags.model));
  }
  return run;
}

std::vector<int32_t> PlacesOf(const RouteLog& log, const Plan& plan) {
  std::vector<int32_t> places(static_cast<size_t>(log.shape().layers));
  for (const PlanPart& part : plan.parts) {
    if (part.on_demand()) places[static_cast<size_t>(part.block.layer)] = static_cast<int32_t>(part.places);
  }
  return places;
}

UnitPolicy PolicyOf(const Plan& plan) {
  return std::ranges::find_if(plan.parts, &PlanPart::on_demand)->policy;
}

TEST(RoutesTest, MeasuredHitsAreThoseOfTheReplayedLog) {
  const TempDir dir;
  const std::string model = MakeExperts(dir, "model", kExperts);
  for (const int64_t chunk : {1, 16}) {
    SCOPED_TRACE(absl::StrCat("chunks of ", chunk));
    const RouteRun run = RunWith({.model = model, .experts = "3", .threads = 2}, chunk);
    ASSERT_TRUE(run.status.ok()) << run.status;
    ASSERT_TRUE(run.log.ok()) << run.log.status();
    const DeviceStatistics& seen = run.statistics;
    const LayerHits replayed = SumOf(*Replay(*run.log, PolicyOf(run.plan), PlacesOf(*run.log, run.plan)));
    EXPECT_EQ(seen.unit_hits, replayed.hits);
    EXPECT_EQ(seen.unit_misses, replayed.misses);
    EXPECT_EQ(seen.unit_hits + seen.unit_misses, run.log->num_choices());
    EXPECT_GT(seen.unit_hits, 0);
    EXPECT_GT(seen.unit_bytes, 0);
    EXPECT_LE(seen.unit_bytes, seen.bytes_read + seen.unit_misses * 64 * kKiB);
    EXPECT_EQ(seen.decode_unit_hits + seen.decode_unit_misses, chunk == 1 ? run.log->num_choices() : 0) << "a prompt does not decode";
    const nlohmann::json experts = run.described["streaming"]["experts"];
    EXPECT_EQ(experts["hits"], seen.unit_hits);
    EXPECT_EQ(experts["measured_hit_share"].is_null(), chunk != 1);
  }
}

TEST(RoutesTest, RoutesDependOnNeitherThreadsNorPlaces) {
  const TempDir dir;
  const std::string model = MakeExperts(dir, "model", kExperts);
  const RouteRun few = RunWith({.model = model, .experts = "2", .threads = 1});
  const RouteRun all = RunWith({.model = model, .experts = absl::StrCat(kExperts), .threads = 3});
  ASSERT_TRUE(few.status.ok() && all.status.ok()) << few.status << all.status;
  EXPECT_EQ(*few.log, *all.log);
  EXPECT_EQ(few.log->num_steps(), kTokens);
  EXPECT_GT(few.statistics.unit_misses, all.statistics.unit_misses);
}

TEST(RoutesTest, APlanWithTheRoutesExpectsWhatIsMeasured) {
  const TempDir dir;
  const std::string model = MakeExperts(dir, "model", kExperts);
  const RouteRun recorded = RunWith({.model = model, .experts = "3", .threads = 2});
  ASSERT_TRUE(recorded.status.ok()) << recorded.status;
  dir.Write("routes.bin", EncodeRouteLog(*recorded.log));
  const RouteCurve curve = *CurveOfRoutes(*recorded.log, "log");
  for (const std::string places : {"2", "3", "5"}) {
    SCOPED_TRACE(places);
    const RouteRun run = RunWith({.model = model, .experts = places, .routes = dir / "routes.bin", .threads = 2});
    ASSERT_TRUE(run.status.ok()) << run.status;
    const size_t i = static_cast<size_t>(std::stoi(places)) - 1;
    EXPECT_EQ(PolicyOf(run.plan), curve.policies[i]);
    const double expected = UnitUseOf(run.plan).hit_share, measured = *run.statistics.decode_hit_share();
    EXPECT_DOUBLE_EQ(expected, curve.hits[i]);
    EXPECT_NEAR(measured, expected, 0.06) << "a concave curve is a little above the replay";
    EXPECT_EQ(*run.log, *recorded.log);
  }
}

TEST(RoutesTest, WhatCannotBeRecordedOrUsedIsRefusedByName) {
  const TempDir dir;
  const std::string model = MakeExperts(dir, "model", kExperts), other = MakeExperts(dir, "other", 2 * kExperts);
  MakeModelOptions dense;
  ASSERT_TRUE(MakeModel(dense, dir / "dense").ok());
  const auto refusal = [](const cli::ModelFlags& flags) { return std::string(RunWith(flags).status.message()); };
  EXPECT_THAT(refusal({.model = dir / "dense"}), HasSubstr("dense has no experts, so it has no routes; leave out --routes"));
  EXPECT_THAT(refusal({.model = model}), HasSubstr("keeps all experts in memory; give --experts N, at most 8"));
  const RouteRun recorded = RunWith({.model = other, .experts = "3"});
  ASSERT_TRUE(recorded.status.ok()) << recorded.status;
  dir.Write("routes.bin", EncodeRouteLog(*recorded.log));
  EXPECT_THAT(refusal({.model = model, .experts = "3", .routes = dir / "routes.bin"}),
              HasSubstr("routes.bin: has the routes of another model"));
  EXPECT_THAT(refusal({.model = model, .experts = "3", .routes = dir / "absent"}), HasSubstr("absent"));
  dir.Write("damaged.bin", "LIMEROUT");
  EXPECT_THAT(refusal({.model = model, .experts = "3", .routes = dir / "damaged.bin"}), HasSubstr("damaged.bin"));
}

}  // namespace
}  // namespace lime
