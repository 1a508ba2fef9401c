// What `lime serve` and `limed` show of themselves: metrics, the cluster, its events.
#include <signal.h>

#include <memory>
#include <set>
#include <string>
#include <thread>

#include "nlohmann/json.hpp"
#include "tests/common/exposition/exposition_parser.h"
#include "tests/common/http/http_client.h"
#include "tests/integration/programs/run_cluster.h"

namespace lime {
namespace {

using nlohmann::json;

// The number behind `words`, where a program says on which port it listens.
int NumberBehind(const std::string& text, const std::string& words) {
  const size_t at = text.find(words);
  return at == std::string::npos ? 0 : std::atoi(text.c_str() + at + words.size());
}

ParsedMetrics MetricsAt(int port) {
  const HttpClient::Answer answer = HttpClient(port).Get("/metrics");
  EXPECT_EQ(answer.status, 200) << answer.body;
  const absl::StatusOr<ParsedMetrics> parsed = ParseExposition(answer.body);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : ParsedMetrics{};
}

class ServeViewsTest : public ClusterRunTest {
 protected:
  void Serve() {
    server_ =
        std::make_unique<Lime>(OverCluster({"serve", "--model", kModel, "--port", "0", "--context", "512", "--parallel", "1", "--json"}));
    ASSERT_TRUE(server_->AwaitOut("\"url\":\"http://127.0.0.1:")) << server_->err();
    port_ = NumberBehind(server_->out(), "\"url\":\"http://127.0.0.1:");
  }
  void TearDown() override {
    if (server_ == nullptr) return;
    kill(server_->pid(), SIGTERM);
    server_->Wait();
  }

  json Complete(int max_tokens) const {
    const std::string body = json{{"prompt", "Once upon a time"}, {"max_tokens", max_tokens}, {"ignore_eos", true}}.dump();
    HttpClient client(port_);
    client.Send(absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: ",
                             body.size(), "\r\n\r\n", body));
    const HttpClient::Answer answer = client.ReadAnswer();
    EXPECT_EQ(answer.status, 200) << answer.body;
    return json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  }

  // The first event for which `is` holds. Events come twice a second.
  template <typename Is>
  static json AwaitEvent(HttpClient& stream, const Is& is) {
    for (int events = 0; events < 120; ++events) {
      if (stream.ReadUntil("event: cluster\ndata: ").empty()) break;
      json seen = json::parse(stream.ReadUntil("\n\n"), nullptr, /*allow_exceptions=*/false);
      EXPECT_TRUE(seen.is_object());
      if (!seen.is_object() || is(seen)) return seen;
    }
    ADD_FAILURE() << "never shown";
    return {};
  }

  std::unique_ptr<Lime> server_;
  int port_ = 0;
};

TEST_F(ServeViewsTest, TheClusterIsShownWithItsNewestStepAndItsLostDevices) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  HttpClient stream(port_);
  stream.Send("GET /lime/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  std::thread generating([&] { Complete(200); });
  const json seen = AwaitEvent(stream, [](const json& cluster) {
    bool ready = !cluster["timeline"]["step"].is_null() && !cluster["measured_ms_per_token"].is_null();
    for (const json& device : cluster["devices"]) ready = ready && device["state"] == "ok";
    return ready;
  });
  generating.join();
  EXPECT_EQ(seen["name"], "test");
  ASSERT_EQ(seen["devices"].size(), 3u);
  for (const json& device : seen["devices"]) {
    EXPECT_EQ(device["backend"], "cpu");
    EXPECT_NE(device["numerics_id"], "");
    EXPECT_GT(device["rss_bytes"], 0);
    EXPECT_FALSE(device["streamed_blocks"].empty());
    EXPECT_GT(device["planned_disk_bytes_per_second"], 0);
    int64_t memory = 0;
    for (const json& bytes : device["memory"]) memory += bytes.get<int64_t>();
    EXPECT_GT(memory, 0);
    EXPECT_LE(memory, device["budget_bytes"]);
  }
  EXPECT_EQ(seen["links"].size(), 3u);
  EXPECT_FALSE(seen["timeline"]["predicted"].empty());
  std::set<std::string> computing;
  for (const json& span : seen["timeline"]["spans"]) {
    if (span["kind"] == "compute") computing.insert(span["device"]);
  }
  EXPECT_EQ(computing, (std::set<std::string>{"a", "b", "c"}));

  limed_[1]->End(SIGKILL);
  AwaitEvent(stream, [](const json& cluster) { return cluster["devices"][1]["state"] == "lost"; });
  EXPECT_EQ(MetricsAt(port_).at("lime_device_up{device=\"b\"}"), 0);
}

TEST_F(ServeViewsTest, MetricsOfRequestsAddUp) {
  ASSERT_NO_FATAL_FAILURE(Serve());
  constexpr int kRequests = 5;
  int64_t prompt = 0, generated = 0;
  for (int i = 0; i < kRequests; ++i) {
    const json usage = Complete(4 + i)["usage"];
    prompt += usage["prompt_tokens"].get<int64_t>(), generated += usage["completion_tokens"].get<int64_t>();
  }
  HttpClient(port_).Get("/no/such/path");
  HttpClient stream(port_);  // asks the devices
  stream.Send("GET /lime/events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  // The first answers of the devices may be older than the requests.
  AwaitEvent(stream, [&](const json& cluster) {
    return cluster["devices"][2]["state"] == "ok" && MetricsAt(port_).at("lime_compute_seconds_total{device=\"c\"}") > 0;
  });
  const ParsedMetrics metrics = MetricsAt(port_);
  EXPECT_EQ(metrics.at("lime_http_requests_total{method=\"POST\",route=\"/v1/completions\",status=\"200\"}"), kRequests);
  EXPECT_EQ(metrics.at("lime_http_request_duration_seconds_count{route=\"/v1/completions\"}"), kRequests);
  EXPECT_EQ(metrics.at("lime_http_requests_total{method=\"GET\",route=\"unknown\",status=\"404\"}"), 1);
  EXPECT_EQ(metrics.at("lime_generations_total{finish=\"length\"}"), kRequests);
  EXPECT_EQ(metrics.at("lime_prompt_tokens_total"), prompt);
  EXPECT_EQ(metrics.at("lime_generated_tokens_total"), generated);
  EXPECT_EQ(metrics.at("lime_time_to_first_token_seconds_count"), kRequests);
  EXPECT_EQ(metrics.at("lime_time_per_token_seconds_count"), kRequests);
  EXPECT_EQ(metrics.at("lime_queue_seconds_count"), kRequests);
  EXPECT_EQ(metrics.at("lime_requests_running"), 0);
  EXPECT_GT(metrics.at("lime_predicted_seconds_per_token"), 0);
  EXPECT_GT(metrics.at("lime_disk_read_bytes_total{device=\"c\"}"), 0);
}

TEST(LimedMetricsProgramTest, ADeviceAnswersForItselfOnlyWhereItIsAskedTo) {
  const Limed limed("a", {.more = {"--metrics", "127.0.0.1:0"}});
  const std::string words = "answers GET /metrics on port ";
  ASSERT_TRUE(limed.AwaitLog(words)) << limed.log();
  const ParsedMetrics metrics = MetricsAt(NumberBehind(limed.log(), words));
  EXPECT_EQ(metrics.at("limed_plan_epoch"), -1);
  EXPECT_GT(metrics.at("process_resident_memory_bytes"), 1e6);
  EXPECT_EQ(Limed("b").log().find(words), std::string::npos);
}

}  // namespace
}  // namespace lime
