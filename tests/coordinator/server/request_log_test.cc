#include "coordinator/server/request_log.h"

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace lime {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

LoggedRequest LoggedChat() {
  return {.at = absl::FromUnixSeconds(1721986200),
          .id = "req_1",
          .method = "POST",
          .route = "/v1/chat/completions",
          .status = 200,
          .code = {},
          .ms = 120.25,
          .answer = LoggedAnswer{.prompt_tokens = 31,
                                 .cached_tokens = 16,
                                 .generated_tokens = 8,
                                 .queue_ms = 0.5,
                                 .first_token_ms = 35.25,
                                 .ms_per_token = 4.125,
                                 .predicted_ms_per_token = 4,
                                 .finish = "stop"},
          .note = {},
          .body = {}};
}

TEST(RequestLogTest, ALineHasTheCountsAndTimes) {
  EXPECT_EQ(LogLine(LoggedChat(), false),
            "2024-07-26T09:30:00.000Z req_1 POST /v1/chat/completions 200 prompt 31 (16 cached), new 8, queue 0.5 ms, first token 35.2 ms, "
            "4.12 ms/token (predicted 4.00), stop");
  const nlohmann::json line = nlohmann::json::parse(LogLine(LoggedChat(), true));
  EXPECT_EQ(line["time"], "2024-07-26T09:30:00.000Z");
  EXPECT_EQ(line["id"], "req_1");
  EXPECT_EQ(line["route"], "/v1/chat/completions");
  EXPECT_EQ(line["cached_tokens"], 16);
  EXPECT_EQ(line["finish"], "stop");
  EXPECT_FALSE(line.contains("error"));
  EXPECT_FALSE(line.contains("body"));
}

TEST(RequestLogTest, ARefusedRequestHasItsError) {
  LoggedRequest refused = LoggedChat();
  refused.answer.reset();
  refused.status = 401;
  refused.code = "invalid_api_key";
  EXPECT_EQ(LogLine(refused, false), "2024-07-26T09:30:00.000Z req_1 POST /v1/chat/completions 401 invalid_api_key 120.2 ms");
  EXPECT_EQ(nlohmann::json::parse(LogLine(refused, true))["error"], "invalid_api_key");
  refused.status = 0;
  refused.code.clear();
  EXPECT_THAT(LogLine(refused, false), HasSubstr(" - 120.2 ms"));
}

TEST(RequestLogTest, ABodyIsOneLine) {
  LoggedRequest request = LoggedChat();
  request.body = "{\"a\":\n\"b\"}";
  EXPECT_THAT(LogLine(request, false), Not(HasSubstr("\n")));
  EXPECT_THAT(LogLine(request, false), EndsWith(R"("{\"a\":\n\"b\"}")"));
}

TEST(RequestLogTest, ATextOfAClientCannotForgeALine) {
  LoggedRequest request = LoggedChat();
  const std::string type = "web\n2026-01-01T00:00:00.000Z forged\r\x1b[2J\x7f\xC2\x9B\xE2\x80\xA8" + std::string(100'000, 'a');
  request.note = SkippedToolsNote({type, type, "other"});
  request.body = type;
  EXPECT_THAT(request.note, HasSubstr(", 'other'"));
  EXPECT_LT(request.note.size(), 200u);
  for (const bool as_json : {false, true}) {
    const std::string line = LogLine(request, as_json);
    for (const char* control : {"\n", "\r", "\x1b", "\x7f", "\xC2\x9B", "\xE2\x80\xA8"}) EXPECT_THAT(line, Not(HasSubstr(control)));
    EXPECT_THAT(line, HasSubstr("\\u009b\\u2028"));
  }
  EXPECT_EQ(nlohmann::json::parse(LogLine(request, true))["body"], type);
}

TEST(RequestLogTest, ManySkippedToolsAreCounted) {
  std::vector<std::string> types;
  for (int i = 0; i < 20; ++i) types.push_back(absl::StrCat("kind_", i));
  EXPECT_THAT(SkippedToolsNote(types), EndsWith("'kind_7' and 12 more"));
  EXPECT_EQ(SkippedToolsNote({"web_search", "web_search"}), "skipped tools of the types 'web_search'");
}

TEST(RequestLogTest, LinesThatWaitAreWrittenAtTheEnd) {
  std::vector<std::string> lines;
  {
    RequestLog log(false, [&](std::string_view line) { lines.emplace_back(line); });
    for (int i = 0; i < 100; ++i) log.Add(LoggedChat());
  }
  EXPECT_EQ(lines.size(), 100u);
}

TEST(RequestLogTest, LinesThatNobodyReadsAreCounted) {
  absl::Notification blocked, may_go_on;
  std::vector<std::string> lines;
  {
    RequestLog log(true, [&](std::string_view line) {
      if (!blocked.HasBeenNotified()) blocked.Notify();
      may_go_on.WaitForNotification();
      lines.emplace_back(line);
    });
    log.Add(LoggedChat());
    blocked.WaitForNotification();
    for (int64_t i = 0; i < RequestLog::kMostWaiting + 10; ++i) log.Add(LoggedChat());
    may_go_on.Notify();
  }
  ASSERT_EQ(lines.size(), static_cast<size_t>(RequestLog::kMostWaiting) + 2);
  EXPECT_EQ(nlohmann::json::parse(lines[1])["lost_lines"], 10);
}

}  // namespace
}  // namespace lime
