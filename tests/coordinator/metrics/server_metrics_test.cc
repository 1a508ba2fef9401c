#include "coordinator/metrics/server_metrics.h"

#include <array>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/api/endpoint.h"
#include "coordinator/metrics/server_views.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/exposition/exposition_parser.h"
#include "tests/coordinator/cluster_view/small_view.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ParsedMetrics Parsed(const ServerMetrics& metrics, const ClusterFacts& facts = {}) {
  const absl::StatusOr<ParsedMetrics> parsed = ParseExposition(metrics.Text(facts, /*connections=*/3));
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : ParsedMetrics{};
}

TEST(ServerMetricsTest, EveryFamilyHasAHelpAndSamplesFromTheStart) {
  const ServerMetrics metrics;
  const ParsedMetrics parsed = Parsed(metrics, SmallFacts(SmallServedPlan()));
  for (const std::string name : {"lime_build_info",
                                 "lime_model_info",
                                 "lime_plan_epoch",
                                 "lime_http_requests_total",
                                 "lime_http_request_duration_seconds",
                                 "lime_http_connections",
                                 "lime_requests_running",
                                 "lime_requests_waiting",
                                 "lime_requests_rejected_total",
                                 "lime_generations_total",
                                 "lime_prompt_tokens_total",
                                 "lime_prompt_tokens_cached_total",
                                 "lime_generated_tokens_total",
                                 "lime_queue_seconds",
                                 "lime_time_to_first_token_seconds",
                                 "lime_time_per_token_seconds",
                                 "lime_predicted_seconds_per_token",
                                 "lime_measured_seconds_per_token",
                                 "lime_kv_pages",
                                 "lime_memory_bytes",
                                 "lime_memory_budget_bytes",
                                 "lime_device_up",
                                 "lime_disk_read_bytes_total",
                                 "lime_weights_wait_seconds_total",
                                 "lime_compute_seconds_total",
                                 "lime_expert_hits_total",
                                 "lime_expert_misses_total",
                                 "lime_expert_read_bytes_total",
                                 "lime_expert_hit_share",
                                 "lime_link_sent_bytes_total",
                                 "lime_link_bandwidth_bytes_per_second",
                                 "lime_recoveries_total",
                                 "lime_plan_changes_total",
                                 "process_cpu_seconds_total",
                                 "process_resident_memory_bytes",
                                 "process_open_fds",
                                 "process_start_time_seconds"}) {
    ASSERT_TRUE(parsed.families.contains(name)) << name;
    EXPECT_FALSE(parsed.families.at(name).samples.empty()) << name;
  }
  EXPECT_EQ(parsed.families.size(), 37u) << "a family is missing in the list above";
  for (const char* const reason : {"queue_full", "too_long", "auth", "draining"})
    EXPECT_EQ(parsed.at(absl::StrCat("lime_requests_rejected_total{reason=\"", reason, "\"}")), 0);
  for (const char* const finish : {"stop", "length", "tool_calls", "cancelled", "error"})
    EXPECT_EQ(parsed.at(absl::StrCat("lime_generations_total{finish=\"", finish, "\"}")), 0);
  for (const std::string_view route : RoutePatterns())
    EXPECT_EQ(parsed.at(absl::StrCat("lime_http_request_duration_seconds_count{route=\"", std::string(route), "\"}")), 0) << route;
  EXPECT_EQ(parsed.at("lime_http_requests_total{method=\"POST\",route=\"/v1/chat/completions\",status=\"200\"}"), 0);
  EXPECT_EQ(parsed.at("lime_http_requests_total{method=\"GET\",route=\"/metrics\",status=\"200\"}"), 0);
  EXPECT_EQ(parsed.at("lime_http_requests_total{method=\"GET\",route=\"unknown\",status=\"404\"}"), 0);
  EXPECT_EQ(parsed.at("lime_http_connections"), 3);
}

TEST(ServerMetricsTest, EveryFamilyHasASampleOfADeviceAlone) {
  const ServerMetrics metrics;
  const ParsedMetrics parsed = Parsed(metrics, {.model = "small", .devices = {{.name = "a"}}});
  for (const auto& [name, family] : parsed.families) EXPECT_FALSE(family.samples.empty()) << name;
  EXPECT_EQ(parsed.at("lime_link_sent_bytes_total{from=\"a\",to=\"a\"}"), 0);
  EXPECT_EQ(parsed.at("lime_link_bandwidth_bytes_per_second{from=\"a\",kind=\"measured\",to=\"a\"}"), 0);
}

TEST(ServerMetricsTest, EveryFamilyHasASampleWhileTheModelLoads) {
  const ServerMetrics metrics;
  const ParsedMetrics parsed = Parsed(metrics);
  for (const auto& [name, family] : parsed.families) EXPECT_FALSE(family.samples.empty()) << name;
  EXPECT_EQ(parsed.at("lime_device_up{device=\"\"}"), 0);
  EXPECT_EQ(parsed.at("lime_memory_bytes{device=\"\",kind=\"kv\"}"), 0);
  EXPECT_EQ(parsed.at("lime_link_sent_bytes_total{from=\"\",to=\"\"}"), 0);
}

TEST(ServerMetricsTest, WithoutAPlanEveryGaugeIsZero) {
  const ServerMetrics metrics;
  const ParsedMetrics parsed = Parsed(metrics, {.model = "small", .devices = {{.name = "a"}}});
  EXPECT_EQ(parsed.at("lime_plan_epoch"), 0);
  EXPECT_EQ(parsed.at("lime_measured_seconds_per_token"), 0);
  EXPECT_EQ(parsed.at("lime_memory_bytes{device=\"a\",kind=\"kv\"}"), 0);
  EXPECT_EQ(parsed.at("lime_device_up{device=\"a\"}"), 1) << "it was not asked yet";
  EXPECT_EQ(parsed.families.at("lime_build_info").samples.size(), 1u);
}

TEST(ServerMetricsTest, TheHitsOfExpertsAreThereAsExpectedAndAsMeasured) {
  const ServerMetrics metrics;
  ClusterFacts facts{.model = "small", .devices = {{.name = "a"}, {.name = "b"}}};
  facts.devices[1].experts = {.kept = 2, .of = 8, .expected_hit_share = 0.75, .measured_hit_share = 0.5};
  facts.devices[1].totals.unit_hits = 30, facts.devices[1].totals.unit_misses = 10, facts.devices[1].totals.unit_bytes = 5000;
  const ParsedMetrics parsed = Parsed(metrics, facts);
  EXPECT_EQ(parsed.at("lime_expert_hit_share{device=\"b\",kind=\"expected\"}"), 0.75);
  EXPECT_EQ(parsed.at("lime_expert_hit_share{device=\"b\",kind=\"measured\"}"), 0.5);
  EXPECT_EQ(parsed.at("lime_expert_hit_share{device=\"a\",kind=\"measured\"}"), 0);
  EXPECT_EQ(parsed.at("lime_expert_hits_total{device=\"b\"}"), 30);
  EXPECT_EQ(parsed.at("lime_expert_misses_total{device=\"b\"}"), 10);
  EXPECT_EQ(parsed.at("lime_expert_read_bytes_total{device=\"b\"}"), 5000);
}

TEST(ServerMetricsTest, FactsAreShownInBaseUnits) {
  const ServerMetrics metrics;
  const ParsedMetrics parsed = Parsed(metrics, SmallFacts(SmallServedPlan()));
  EXPECT_EQ(parsed.at("lime_plan_epoch"), 3);
  EXPECT_DOUBLE_EQ(parsed.at("lime_measured_seconds_per_token"), 0.02123456);
  EXPECT_EQ(parsed.at("lime_device_up{device=\"c\"}"), 0);
  EXPECT_EQ(parsed.at("lime_memory_budget_bytes{device=\"b\"}"), 58 * kMiB);
  EXPECT_EQ(parsed.at("lime_kv_pages{state=\"free\"}"), 96);
  EXPECT_EQ(parsed.at("lime_kv_pages{state=\"cached\"}"), 16);
  EXPECT_EQ(parsed.at("lime_kv_pages{state=\"used\"}"), 16);
  EXPECT_EQ(parsed.at("lime_disk_read_bytes_total{device=\"b\"}"), 123'456'789);
  EXPECT_EQ(parsed.at("lime_weights_wait_seconds_total{device=\"b\"}"), 1.25);
  EXPECT_EQ(parsed.at("lime_compute_seconds_total{device=\"b\"}"), 9.5);
  EXPECT_EQ(parsed.at("lime_link_sent_bytes_total{from=\"a\",to=\"b\"}"), 4096);
  EXPECT_EQ(parsed.at("lime_link_bandwidth_bytes_per_second{from=\"a\",kind=\"measured\",to=\"b\"}"), 11.25e6);
  EXPECT_EQ(parsed.at("lime_link_bandwidth_bytes_per_second{from=\"b\",kind=\"planned\",to=\"a\"}"), 0);
  EXPECT_EQ(parsed.at("lime_recoveries_total"), 1);
  EXPECT_EQ(parsed.at("lime_plan_changes_total"), 4);
}

// Random requests; every count is the sum of what was reported.
TEST(ServerMetricsTest, CountsOfManyRequestsAddUp) {
  const std::array<std::string, 5> finishes = {"stop", "length", "tool_calls", "cancelled", "error"};
  const std::array<std::string, 4> reasons = {"queue_full", "too_long", "auth", "draining"};
  std::mt19937 random(7);
  const auto below = [&](int64_t bound) { return static_cast<int64_t>(random() % static_cast<uint32_t>(bound)); };
  ServerMetrics metrics;
  std::map<std::string, double> expected;
  for (int i = 0; i < 2000; ++i) {
    if (below(4) == 0) {
      const int64_t reason = below(4);
      metrics.OnRejected(static_cast<Rejection>(reason));
      ++expected["lime_requests_rejected_total{reason=\"" + reasons[static_cast<size_t>(reason)] + "\"}"];
    }
    std::vector<SeenChoice> choices(static_cast<size_t>(below(3)));
    for (SeenChoice& choice : choices) {
      choice.finish = static_cast<GenerationFinish>(below(5));
      choice.generated_tokens = below(100);
      if (below(2) == 0) choice.queue = absl::Milliseconds(below(100'000));
      if (choice.generated_tokens > 0) {
        metrics.OnFirstToken(absl::Milliseconds(250));
        ++expected["lime_time_to_first_token_seconds_count"];
      }
      if (choice.generated_tokens > 1) choice.per_token = absl::Milliseconds(8);
      ++expected["lime_generations_total{finish=\"" + finishes[static_cast<size_t>(choice.finish)] + "\"}"];
      expected["lime_generated_tokens_total"] += static_cast<double>(choice.generated_tokens);
      expected["lime_queue_seconds_count"] += choice.queue.has_value();
      expected["lime_queue_seconds_sum"] += choice.queue ? absl::ToDoubleSeconds(*choice.queue) : 0;
      expected["lime_time_per_token_seconds_count"] += choice.per_token.has_value();
    }
    const int64_t prompt = below(1000);
    const int64_t cached = prompt / 2;
    metrics.OnAnswer({.prompt_tokens = prompt, .cached_tokens = cached, .choices = choices});
    expected["lime_prompt_tokens_total"] += static_cast<double>(prompt);
    expected["lime_prompt_tokens_cached_total"] += static_cast<double>(cached);
    const std::string_view route = below(2) == 0 ? "/v1/chat/completions" : "/health";
    const int status = below(10) == 0 ? 503 : 200;
    metrics.OnExchange({.route = route, .method = "GET", .status = status, .duration = absl::Seconds(1)});
    ++expected[absl::StrCat("lime_http_requests_total{method=\"GET\",route=\"", std::string(route), "\",status=\"", status, "\"}")];
    ++expected[absl::StrCat("lime_http_request_duration_seconds_count{route=\"", std::string(route), "\"}")];
  }
  const ParsedMetrics parsed = Parsed(metrics);
  for (const auto& [sample, value] : expected) EXPECT_NEAR(parsed.at(sample), value, 1e-6 * value) << sample;
  double requests = 0;
  for (const auto& [sample, value] : parsed.families.at("lime_http_requests_total").samples) requests += value;
  EXPECT_EQ(requests, 2000);
  EXPECT_NEAR(parsed.at("lime_time_to_first_token_seconds_sum"), 0.25 * expected["lime_time_to_first_token_seconds_count"], 1e-6);
}

TEST(ServerMetricsTest, NoPathAndNoMethodOfAClientBecomesALabel) {
  ServerMetrics metrics;
  const size_t before = Parsed(metrics).families.at("lime_http_requests_total").samples.size();
  for (int i = 0; i < 1000; ++i) {
    const std::string path = absl::StrCat("/secret/", i), method = absl::StrCat("M", i);
    metrics.OnExchange({.route = path, .method = method, .status = 404, .duration = absl::Milliseconds(1)});
  }
  const std::string text = metrics.Text({}, 0);
  EXPECT_THAT(text, Not(HasSubstr("secret")));
  const ParsedMetrics parsed = Parsed(metrics);
  EXPECT_EQ(parsed.families.at("lime_http_requests_total").samples.size(), before + 1);
  EXPECT_EQ(parsed.at("lime_http_requests_total{method=\"other\",route=\"unknown\",status=\"404\"}"), 1000);
  EXPECT_EQ(parsed.at("lime_http_request_duration_seconds_count{route=\"unknown\"}"), 1000);
}

TEST(ServerMetricsTest, AClientThatLeftBeforeTheStatusIsCounted) {
  ServerMetrics metrics;
  metrics.OnExchange({.route = "/v1/chat/completions", .method = "POST", .status = 0, .duration = absl::Seconds(2)});
  EXPECT_EQ(Parsed(metrics).at("lime_http_requests_total{method=\"POST\",route=\"/v1/chat/completions\",status=\"none\"}"), 1);
}

TEST(ServerMetricsTest, TokensAreMetered) {
  ServerMetrics metrics;
  EXPECT_EQ(metrics.tokens().MsPerToken(), std::nullopt);
  metrics.OnFirstToken(absl::Seconds(1));
  for (int i = 0; i < 3; ++i) metrics.OnToken(absl::Milliseconds(20));
  EXPECT_NEAR(*metrics.tokens().MsPerToken(), 20, 1e-9);
}

TEST(WatchedViewsTest, MetricsAndClusterShowTheSameFacts) {
  ServerMetrics metrics;
  ClusterWatch watch({.now = [] { return ClusterWatch::Now{.running = 6}; }});
  WatchedViews views(metrics, watch, [] { return int64_t{8}; });
  const absl::StatusOr<ParsedMetrics> parsed = ParseExposition(views.Metrics());
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->at("lime_requests_running"), 6);
  EXPECT_EQ(parsed->at("lime_http_connections"), 8);
  EXPECT_THAT(views.ClusterJson(), HasSubstr("\"requests\":{\"running\":6,\"waiting\":0}"));
}

}  // namespace
}  // namespace lime
