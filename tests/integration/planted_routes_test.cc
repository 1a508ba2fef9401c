// Text that a model with planted routes samples chooses experts as recorded routes of published models
// do (testbed/make_model/planted_routes.h).
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/cli/command.h"
#include "coordinator/planning/routes.h"
#include "coordinator/sessions/local_session.h"
#include "daemon/logic/route_recorder.h"
#include "gtest/gtest.h"
#include "planner/demand/replay.h"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

constexpr int64_t kLayers = 4, kPlantedExperts = 128, kSampled = 512;

std::string MakePlanted(const TempDir& dir) {
  MakeModelOptions options{.planted_routes = true};
  options.config = {.family = "qwen3_moe",
                    .num_layers = kLayers,
                    .hidden_size = 256,
                    .head_dim = 64,
                    .vocab_size = 8192,
                    .max_positions = 1024,
                    .num_experts = kPlantedExperts,
                    .experts_per_token = 8};
  EXPECT_TRUE(MakeModel(options, dir / "planted").ok());
  return dir / "planted";
}

// The routes of text that is sampled at temperature 1, with 32 experts of each layer in memory. Portable
// numerics sample the same text on every machine.
absl::StatusOr<RouteLog> SampledRoutes(const std::string& model) {
  const auto recorder = std::make_shared<RouteRecorder>();
  LIME_ASSIGN_OR_RETURN(const auto tokenizer, Tokenizer::Load(model));
  const std::vector<int32_t> prompt = {'O', 'n', 'c', 'e'};
  const int64_t context = std::ssize(prompt) + kSampled;
  LIME_ASSIGN_OR_RETURN(
      const auto session,
      cli::LocalSession::Open({.model = model, .numerics = "portable", .experts = "32", .threads = 2},
                              {.context = context, .prompt_tokens = std::ssize(prompt), .new_tokens = kSampled}, {.routes = recorder}));
  cli::GenerateOptions options{.max_new_tokens = {kSampled}};
  options.sampling.temperature = 1;
  options.sampling.seed = 1;
  LIME_RETURN_IF_ERROR(session->Generate(*tokenizer, {prompt}, options).status());
  LIME_ASSIGN_OR_RETURN(const RouteShape shape, RouteShapeOf(session->spec(), model));
  return recorder->ToLog(shape);
}

// With LRU, of choices of single rows.
double LruShare(const RouteLog& log, int32_t places) {
  return SumOf(*Replay(log, UnitPolicy::kLru, std::vector<int32_t>(kLayers, places), {.most_rows = 1})).share();
}

// Of the experts of a row, those of the row before.
double RepeatedShare(const RouteLog& log) {
  std::vector<std::vector<int32_t>> before(kLayers);
  int64_t repeated = 0, uses = 0;
  for (const RouteLog::Visit& visit : log.visits()) {
    if (visit.rows != 1) continue;
    std::vector<int32_t>& last = before[static_cast<size_t>(visit.layer)];
    const auto units = log.units_of(visit);
    repeated += std::ranges::count_if(units, [&](int32_t unit) { return std::ranges::binary_search(last, unit); });
    uses += std::ssize(units);
    last.assign(units.begin(), units.end());
  }
  return static_cast<double>(repeated) / static_cast<double>(uses);
}

TEST(PlantedRoutesTest, SampledTextHasTheHitsOfRecordedRoutes) {
  const TempDir dir;
  const absl::StatusOr<RouteLog> log = SampledRoutes(MakePlanted(dir));
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_GE(log->num_steps(), kSampled - 1);
  EXPECT_NEAR(RepeatedShare(*log), 0.39, 0.04);
  EXPECT_NEAR(LruShare(*log, 15), 0.60, 0.07) << "12 % kept";
  EXPECT_NEAR(LruShare(*log, 32), 0.785, 0.025) << "25 % kept";
  EXPECT_NEAR(LruShare(*log, 77), 0.87, 0.03) << "60 % kept, from cold";
}

}  // namespace
}  // namespace lime
