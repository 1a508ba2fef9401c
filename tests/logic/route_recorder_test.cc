#include "daemon/logic/route_recorder.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/demand/route_log.h"
#include "planner/demand/route_model.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

const RouteShape kShape{.model = "m", .layers = 3, .units = 24, .per_token = 4};

std::vector<int32_t> UnitsOf(const RouteLog& log, const RouteLog::Visit& visit) {
  const std::span<const int32_t> units = log.units_of(visit);
  return {units.begin(), units.end()};
}

TEST(RouteRecorderTest, TheLogHasEveryChoiceAndIsReadBackTheSame) {
  RouteLog made = *ModelRoutes({.shape = kShape}, 50);
  RouteRecorder recorder;
  for (int64_t step = 0; step < made.num_steps(); ++step) {
    for (const RouteLog::Visit& visit : made.visits_of(step))
      recorder.Add(/*step=*/7 + 3 * step, /*microbatch=*/0, visit.layer, visit.rows, made.units_of(visit));
  }
  const absl::StatusOr<RouteLog> log = recorder.ToLog(kShape);
  ASSERT_TRUE(log.ok()) << log.status();
  EXPECT_EQ(*log, made);
  EXPECT_EQ(recorder.lost(), 0);
  EXPECT_EQ(recorder.recorded(), 150);
  EXPECT_EQ(*ParseRouteLog(EncodeRouteLog(*log), "file"), made);
}

TEST(RouteRecorderTest, MicroBatchesOfAStepAreStepsOfTheirOwn) {
  RouteRecorder recorder;
  for (const int32_t layer : {0, 2}) {  // both micro-batches come to a layer before one comes to the next
    for (const int32_t microbatch : {0, 1})
      recorder.Add(5, microbatch, layer, 2 + microbatch, std::vector<int32_t>{layer, 10 + microbatch});
  }
  recorder.Add(6, 0, 1, 1, std::vector<int32_t>{3});
  const absl::StatusOr<RouteLog> log = recorder.ToLog(kShape);
  ASSERT_TRUE(log.ok()) << log.status();
  ASSERT_EQ(log->num_steps(), 3);
  for (const int32_t microbatch : {0, 1}) {
    const auto visits = log->visits_of(microbatch);
    ASSERT_EQ(visits.size(), 2u);
    EXPECT_EQ(visits[0].layer, 0);
    EXPECT_EQ(visits[1].layer, 2);
    EXPECT_EQ(visits[1].rows, 2 + microbatch);
    EXPECT_EQ(UnitsOf(*log, visits[1]), (std::vector<int32_t>{2, 10 + microbatch}));
  }
  EXPECT_EQ(UnitsOf(*log, log->visits_of(2)[0]), std::vector<int32_t>{3});
}

TEST(RouteRecorderTest, AFullOneKeepsTheBeginningAndCountsTheRest) {
  RouteRecorder recorder({.visits = 10, .choices = 4});
  const Bytes bytes = recorder.bytes();
  recorder.Add(0, 0, 0, 1, std::vector<int32_t>{1, 2, 3});
  recorder.Add(1, 0, 0, 1, std::vector<int32_t>{4, 5});
  recorder.Add(2, 0, 0, 1, std::vector<int32_t>{6});
  EXPECT_EQ(recorder.lost(), 2) << "the last one has room, but a log has no gaps";
  EXPECT_EQ(recorder.ToLog(kShape)->num_steps(), 1);
  EXPECT_EQ(recorder.bytes(), bytes);
  RouteRecorder few({.visits = 1, .choices = 40});
  few.Add(0, 0, 0, 1, std::vector<int32_t>{1});
  few.Add(1, 0, 0, 1, std::vector<int32_t>{});
  few.Add(1, 0, 0, 1, std::vector<int32_t>{1});
  EXPECT_EQ(few.lost(), 1) << "no choice needs no room";
  EXPECT_EQ(few.ToLog(kShape)->num_steps(), 1);
}

TEST(RouteRecorderTest, ChoicesOfAnotherModelAreRefused) {
  RouteRecorder recorder;
  recorder.Add(0, 0, 3, 1, std::vector<int32_t>{1});
  EXPECT_THAT(std::string(recorder.ToLog(kShape).status().message()), HasSubstr("layer 3"));
  EXPECT_FALSE(recorder.ToLog({.model = "two words", .layers = 3, .units = 24}).ok());
}

}  // namespace
}  // namespace lime
