// The text of the metrics, and the server that answers with it. tests/golden/metrics_limed.txt is the
// text of a small plan, to be read in review.
//
// To write it anew: limed_metrics_test --update_golden, then read the difference as you would read
// code.
#include "daemon/limed/limed_metrics.h"

#include <fstream>
#include <regex>
#include <sstream>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/exposition/exposition.h"
#include "daemon/limed/metrics_server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/exposition/exposition_parser.h"
#include "tests/common/http/http_client.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

bool update_golden = false;

TEST(LimedMetricsTest, EveryFamilyIsThereWithoutAPlan) {
  const absl::StatusOr<ParsedMetrics> parsed = ParseExposition(LimedMetricsText({}, {}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->at("limed_plan_epoch"), -1);
  for (const std::string sample :
       {"limed_steps_total", "limed_wait_seconds_total{for=\"weights\"}", "limed_wait_seconds_total{for=\"input\"}",
        "limed_wait_seconds_total{for=\"kv\"}", "limed_disk_read_bytes_total", "limed_memory_bytes{kind=\"weights\"}",
        "limed_memory_bytes{kind=\"kv\"}", "limed_memory_bytes{kind=\"ring\"}", "limed_memory_bytes{kind=\"activations\"}",
        "limed_memory_bytes{kind=\"runtime\"}", "limed_kv_pages{state=\"used\"}", "limed_kv_pages{state=\"free\"}",
        "limed_pressure_events_total"})
    EXPECT_EQ(parsed->at(sample), 0) << sample;
  for (const std::string family : {"limed_sent_bytes_total", "limed_received_bytes_total", "process_cpu_seconds_total"})
    EXPECT_TRUE(parsed->families.contains(family)) << family;
}

TEST(LimedMetricsTest, StatisticsAreShownInBaseUnits) {
  const absl::StatusOr<ParsedMetrics> parsed = ParseExposition(LimedMetricsText({.epoch = 4,
                                                                                 .steps = 9,
                                                                                 .wait_weights_ms = 1500,
                                                                                 .wait_input_ms = 2750,
                                                                                 .wait_kv_ms = 250,
                                                                                 .kv_pages = 10,
                                                                                 .kv_pages_free = 4,
                                                                                 .traffic = {{"nano", 11, 12}}},
                                                                                {.weights = 100, .embedding = 20, .margin = 7}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->at("limed_steps_total"), 9);
  EXPECT_EQ(parsed->at("limed_wait_seconds_total{for=\"weights\"}"), 1.5);
  EXPECT_EQ(parsed->at("limed_wait_seconds_total{for=\"input\"}"), 2.5) << "without the host of KV";
  EXPECT_EQ(parsed->at("limed_wait_seconds_total{for=\"kv\"}"), 0.25);
  EXPECT_EQ(parsed->at("limed_memory_bytes{kind=\"weights\"}"), 120);
  EXPECT_EQ(parsed->at("limed_kv_pages{state=\"used\"}"), 6);
  EXPECT_EQ(parsed->at("limed_sent_bytes_total{peer=\"nano\"}"), 11);
  EXPECT_EQ(parsed->at("limed_received_bytes_total{peer=\"nano\"}"), 12);
}

TEST(LimedMetricsTest, Golden) {
  const DeviceStatistics statistics{.epoch = 3,
                                    .steps = 1200,
                                    .bytes_read = 123'456'789,
                                    .wait_weights_ms = 1500,
                                    .wait_input_ms = 2750,
                                    .wait_kv_ms = 250,
                                    .kv_pages = 128,
                                    .kv_pages_free = 96,
                                    .pressure_events = 2,
                                    .traffic = {{"a", 100, 200}, {"c", 300, 0}}};
  const PlanMemory memory{
      .runtime = 8'388'608, .activations = 4'194'304, .kv = 1'048'576, .ring = 8'208'384, .weights = 37'928'960, .margin = 4096};
  // The values of this process are not of the plan.
  const std::string text = std::regex_replace(LimedMetricsText(statistics, memory), std::regex("\n(process_[a-z_]+) [^\n]+"), "\n$1 N");
  const std::string path = absl::StrCat(LIME_SOURCE_DIR, "/tests/golden/metrics_limed.txt");
  if (update_golden) {
    std::ofstream(path) << text;
    return;
  }
  std::ifstream file(path);
  ASSERT_TRUE(file) << path << " is missing; run with --update_golden";
  std::stringstream golden;
  golden << file.rdbuf();
  EXPECT_EQ(text, golden.str()) << "If this is meant, run with --update_golden and read the difference.";
}

TEST(MetricsServerTest, OnlyMetricsAreReadThere) {
  const auto server = MetricsServer::Start({.host = "127.0.0.1", .port = 0}, [] { return std::string("a 1\n"); });
  ASSERT_TRUE(server.ok()) << server.status();
  const auto answer = [&](const std::string& request) {
    HttpClient client((*server)->port());
    client.Send(absl::StrCat(request, " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    return client.ReadAnswer();
  };
  const HttpClient::Answer metrics = answer("GET /metrics");
  EXPECT_EQ(metrics.status, 200);
  EXPECT_EQ(metrics.body, "a 1\n");
  EXPECT_THAT(metrics.head, HasSubstr(absl::StrCat("Content-Type: ", std::string(kExpositionType))));
  EXPECT_EQ(answer("GET /").status, 404);
  const HttpClient::Answer wrong = answer("DELETE /metrics");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_THAT(wrong.head, HasSubstr("Allow: GET, HEAD"));
  HttpClient client((*server)->port());
  client.Send("POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.ReadAnswer().status, 413) << "without reading the body";
}

TEST(MetricsServerTest, ATakenPortIsAnErrorThatNamesIt) {
  const auto first = MetricsServer::Start({.host = "127.0.0.1", .port = 0}, [] { return std::string(); });
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MetricsServer::Start({.host = "127.0.0.1", .port = (*first)->port()}, [] { return std::string(); });
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat("127.0.0.1:", (*first)->port())));
}

}  // namespace
}  // namespace lime

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) lime::update_golden |= std::string_view(argv[i]) == "--update_golden";
  return RUN_ALL_TESTS();
}
