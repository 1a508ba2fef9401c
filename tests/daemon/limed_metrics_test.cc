#include "daemon/limed/limed_metrics.h"

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

TEST(LimedMetricsTest, EveryFamilyIsThereWithoutAPlan) {
  const absl::StatusOr<ParsedMetrics> parsed = ParseExposition(LimedMetricsText({}, {}));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->at("limed_plan_epoch"), -1);
  for (const std::string sample :
       {"limed_steps_total", "limed_wait_seconds_total{for=\"weights\"}", "limed_wait_seconds_total{for=\"input\"}",
        "limed_wait_seconds_total{for=\"kv\"}", "limed_disk_read_bytes_total", "limed_memory_bytes{kind=\"weights\"}",
        "limed_memory_bytes{kind=\"kv\"}", "limed_memory_bytes{kind=\"ring\"}", "limed_memory_bytes{kind=\"activations\"}",
        "limed_memory_bytes{kind=\"runtime\"}", "limed_kv_pages{state=\"used\"}", "limed_kv_pages{state=\"free\"}",
        "limed_sent_bytes_total{peer=\"\"}", "limed_received_bytes_total{peer=\"\"}", "limed_pressure_events_total",
        "limed_expert_hits_total", "limed_expert_misses_total", "limed_expert_read_bytes_total"})
    EXPECT_EQ(parsed->at(sample), 0) << sample;
  EXPECT_TRUE(parsed->families.contains("process_cpu_seconds_total"));
  for (const auto& [name, family] : parsed->families) EXPECT_FALSE(family.samples.empty()) << name;
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
  EXPECT_EQ(parsed->families.at("limed_sent_bytes_total").samples.size(), 1u);
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
