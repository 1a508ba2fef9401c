// Logs of routes: what is recorded comes back, and no file does harm.
#include "planner/demand/route_log.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/demand/route_model.h"
#include "tests/cases.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

RouteLog SmallLog() {
  RouteLog log({.model = "tiny", .layers = 3, .units = 300, .per_token = 2});
  EXPECT_TRUE(log.Add(0, 0, 1, std::vector<int32_t>{0, 299}).ok());
  EXPECT_TRUE(log.Add(0, 2, 1, std::vector<int32_t>{5, 6}).ok());
  EXPECT_TRUE(log.Add(1, 1, 700, std::vector<int32_t>{1, 2, 200}).ok());
  return log;
}

TEST(RouteLogTest, WhatIsRecordedComesBack) {
  const RouteLog log = SmallLog();
  ASSERT_EQ(log.num_steps(), 2);
  ASSERT_EQ(log.visits_of(0).size(), 2u);
  EXPECT_EQ(log.visits_of(1)[0].rows, 700);
  EXPECT_THAT(log.units_of(log.visits_of(1)[0]), ElementsAre(1, 2, 200));
  const absl::StatusOr<RouteLog> again = ParseRouteLog(EncodeRouteLog(log), "log");
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(*again, log);
  const RouteLog empty({.model = "m", .layers = 1, .units = 1});
  EXPECT_EQ(*ParseRouteLog(EncodeRouteLog(empty), "log"), empty);
}

TEST(RouteLogTest, ALogTakesAboutAByteForEachUnit) {
  const RouteShape shape{.model = "m", .layers = 4, .units = 128, .per_token = 8};
  const RouteLog log = *ModelRoutes({.shape = shape}, 100);
  EXPECT_EQ(*ParseRouteLog(EncodeRouteLog(log), "log"), log);
  EXPECT_LT(std::ssize(EncodeRouteLog(log)), log.num_choices() * 3 / 2);
}

TEST(RouteLogTest, AVisitThatBreaksARuleIsRefusedAndChangesNothing) {
  RouteLog log = SmallLog();
  const RouteLog before = log;
  const auto refused = [&](int64_t step, int32_t layer, int32_t rows, const std::vector<int32_t>& units) {
    return std::string(log.Add(step, layer, rows, units).message());
  };
  EXPECT_THAT(refused(3, 0, 1, {1}), HasSubstr("step 3 does not follow"));
  EXPECT_THAT(refused(0, 2, 1, {1}), HasSubstr("step 0 does not follow"));
  EXPECT_THAT(refused(1, 1, 1, {1}), HasSubstr("layer 1 follows layer 1"));
  EXPECT_THAT(refused(1, 3, 1, {1}), HasSubstr("layer 3 is not among"));
  EXPECT_THAT(refused(1, 2, 0, {1}), HasSubstr("0 rows"));
  EXPECT_THAT(refused(1, 2, 1, {}), HasSubstr("no unit"));
  EXPECT_THAT(refused(1, 2, 1, {4, 4}), HasSubstr("must ascend"));
  EXPECT_THAT(refused(1, 2, 1, {300}), HasSubstr("unit 300"));
  EXPECT_EQ(log, before);
}

TEST(RouteLogTest, AShapeOutsideItsBoundsIsRefused) {
  const auto refused = [](const RouteShape& shape) { return std::string(CheckRouteShape(shape).message()); };
  EXPECT_EQ(refused({.model = "m", .layers = 48, .units = 128, .per_token = 8}), "");
  EXPECT_THAT(refused({.model = "", .layers = 1, .units = 1}), HasSubstr("key"));
  EXPECT_THAT(refused({.model = "a\nb", .layers = 1, .units = 1}), HasSubstr("key"));
  EXPECT_THAT(refused({.model = "m", .layers = 0, .units = 1}), HasSubstr("0 layers"));
  EXPECT_THAT(refused({.model = "m", .layers = 1, .units = 1 << 20}), HasSubstr("units"));
  EXPECT_THAT(refused({.model = "m", .layers = 4096, .units = 4096}), HasSubstr("together"));
  EXPECT_THAT(refused({.model = "m", .layers = 1, .units = 4, .per_token = 5}), HasSubstr("per_token 5"));
}

TEST(RouteLogTest, EveryBeginningOfAFileIsRefusedInOneSentence) {
  const std::string bytes = EncodeRouteLog(SmallLog());
  for (size_t length = 0; length < bytes.size(); ++length) {
    const auto log = ParseRouteLog(bytes.substr(0, length), "log");
    ASSERT_FALSE(log.ok()) << length;
    EXPECT_THAT(std::string(log.status().message()), Not(HasSubstr("\n")));
  }
  EXPECT_THAT(std::string(ParseRouteLog(bytes + '\0', "log").status().message()), HasSubstr("1 bytes follow"));
}

TEST(RouteLogTest, NumbersInMoreBytesThanTheyNeedAreRefused) {
  const std::string head = std::string("LIMEROUT") + "\x01\x01m";
  EXPECT_TRUE(ParseRouteLog(head + std::string("\x01\x01\x00\x00", 4), "log").ok());
  EXPECT_THAT(std::string(ParseRouteLog(head + std::string("\x81\x00\x01\x00\x00", 5), "log").status().message()), HasSubstr("fewest"));
  EXPECT_THAT(std::string(ParseRouteLog(head + std::string(12, '\xff'), "log").status().message()), HasSubstr("more than 8 bytes"));
}

TEST(RouteLogTest, DamagedFilesAreRefusedOrComeBackTheSame) {
  const std::string good = EncodeRouteLog(*ModelRoutes({.shape = {.model = "m", .layers = 3, .units = 40, .per_token = 4}}, 5));
  std::mt19937_64 random(3);
  int accepted = 0;
  for (int i = 0; i < Cases(20000, 400000); ++i) {
    std::string bytes = good;
    for (int n = 0; n < 1 + i % 3; ++n) bytes[random() % bytes.size()] = static_cast<char>(random());
    const auto log = ParseRouteLog(bytes, "log");
    accepted += log.ok();
    if (log.ok()) ASSERT_EQ(EncodeRouteLog(*log), bytes) << i;
  }
  EXPECT_GT(accepted, 0);
}

}  // namespace
}  // namespace lime
