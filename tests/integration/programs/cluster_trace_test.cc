// Traces of `lime run --cluster` over real daemons, and of one process.

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "tests/integration/programs/run_cluster.h"

namespace lime {
namespace {

// The spans of a device's computation, in order of time.
std::vector<nlohmann::json> ComputeLane(const nlohmann::json& events, const std::string& device) {
  std::vector<nlohmann::json> lane;
  for (const auto& event : events) {
    const std::string kind = event["kind"];
    if (event["device"] == device && (kind == "compute" || kind.starts_with("wait_"))) lane.push_back(event);
  }
  std::ranges::stable_sort(lane, {}, [](const nlohmann::json& event) { return event["begin_ms"].get<double>(); });
  return lane;
}

double SumOf(const nlohmann::json& events, const std::string& device, const std::string& kind) {
  double sum = 0;
  for (const auto& event : events) {
    if (event["device"] == device && event["kind"] == kind) sum += event["end_ms"].get<double>() - event["begin_ms"].get<double>();
  }
  return sum;
}

TEST_F(ClusterRunTest, ATraceSaysWhatEveryDeviceDidAndChangesNoBit) {
  const std::vector<std::string> words = {"--model",
                                          kModel,
                                          "--prompt",
                                          "Once upon a time there was a fox",
                                          "--max-tokens",
                                          "24",
                                          "--json",
                                          "--seed",
                                          "5",
                                          "--temperature",
                                          "0.8",
                                          "--context",
                                          "512",
                                          "--hash-logits"};
  std::vector<std::string> run = {"run"}, trace = {"trace", "--trace", dir_ / "trace.json"};
  run.insert(run.end(), words.begin(), words.end());
  trace.insert(trace.end(), words.begin(), words.end());
  const Answer plain = Call(OverCluster(run)), traced = Call(OverCluster(trace));
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  ASSERT_EQ(traced.exit_code, 0) << traced.err;
  EXPECT_EQ(traced.Json()["logits_xxh3"], plain.Json()["logits_xxh3"]);
  EXPECT_EQ(traced.Json()["token_ids"], plain.Json()["token_ids"]);
  EXPECT_FALSE(plain.Json().contains("trace"));

  const nlohmann::json report = traced.Json()["trace"];
  const nlohmann::json& events = report["events"];
  EXPECT_EQ(report["lost_spans"], 0);
  ASSERT_EQ(report["devices"].size(), static_cast<size_t>(kDevices));
  const int64_t steps = (traced.Json()["prompt_tokens"].get<int64_t>() + 7) / 8 + 23;  // chunks of eight, then one for each later token
  EXPECT_EQ(report["steps"].size(), static_cast<size_t>(steps));
  std::map<std::string, double> error_ms;
  for (size_t d = 0; d < report["devices"].size(); ++d) {
    const nlohmann::json about = report["devices"][d], of = traced.Json()["devices"][d];
    const std::string device = about["name"];
    ASSERT_EQ(of["name"], device);
    error_ms[device] = about["clock_error_ms"];
    EXPECT_GT(error_ms[device], 0);
    EXPECT_LT(error_ms[device], 1000);
    EXPECT_GE(about["hidden_loading"], 0);
    EXPECT_LE(about["hidden_loading"], 1);
    // What it computed and waited for, one thing after another, steps in order, and within the run.
    double free_ms = -1, sum_ms = 0;
    int step = 0;
    for (const nlohmann::json& span : ComputeLane(events, device)) {
      EXPECT_GE(span["begin_ms"].get<double>(), free_ms - 1e-6) << span;
      EXPECT_GE(span["step"], step) << span;
      free_ms = span["end_ms"], step = span["step"];
      sum_ms += free_ms - span["begin_ms"].get<double>();
    }
    EXPECT_EQ(step, steps - 1);
    EXPECT_LE(sum_ms, report["steps"].back()["end_ms"].get<double>() + 1e-6);
    // And as much as it says without a trace: of its own count only whole blocks' empty parts are
    // left out.
    EXPECT_NEAR(SumOf(events, device, "wait_weights"), of["wait_weights_ms"].get<double>(), 1e-3);
    EXPECT_NEAR(SumOf(events, device, "wait_input"), of["wait_input_ms"].get<double>(), 1e-3);
    EXPECT_LE(SumOf(events, device, "compute"), of["compute_ms"].get<double>() + 1e-3);
    EXPECT_GT(SumOf(events, device, "compute"), 0);
    EXPECT_GT(SumOf(events, device, "load"), 0);
  }
  // Every message that was received was sent before, as far as the clocks are known. Of the last
  // step something may still be on its way.
  using Message = std::tuple<std::string, std::string, int, int, int>;
  std::map<Message, double> sent_ms;
  int received = 0;
  for (const char* kind : {"send", "receive"}) {
    for (const auto& event : events) {
      if (event["kind"] != kind || event["step"] == steps - 1) continue;
      const std::string device = event["device"], peer = event["peer"];
      const bool sends = event["kind"] == "send";
      const Message message = {sends ? device : peer, sends ? peer : device, event["step"], event["stage"], event["microbatch"]};
      if (sends) {
        sent_ms[message] = event["begin_ms"];
        continue;
      }
      ++received;
      ASSERT_TRUE(sent_ms.contains(message)) << event;
      EXPECT_GE(event["begin_ms"].get<double>(), sent_ms[message] - error_ms[device] - error_ms[peer]) << event;
    }
  }
  EXPECT_GE(received, 6 * (steps - 1));
  const nlohmann::json file = nlohmann::json::parse(Slurp(dir_ / "trace.json"), nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(file.is_object());
  EXPECT_GT(file["traceEvents"].size(), events.size());
}

TEST_F(ClusterRunTest, ATraceOfOneProcessSaysTheSameOfItsStreaming) {
  const std::vector<std::string> call = {"--model",       kModel,      "--prompt", "Once upon a time", "--max-tokens", "8", "--json",
                                         "--hash-logits", "--context", "128",      "--resident",       "0.3"};
  std::vector<std::string> run = {"run"}, trace = {"trace"};
  run.insert(run.end(), call.begin(), call.end());
  trace.insert(trace.end(), call.begin(), call.end());
  const Answer plain = Call(run), traced = Call(trace);
  ASSERT_EQ(traced.exit_code, 0) << traced.err;
  EXPECT_EQ(traced.Json()["logits_xxh3"], plain.Json()["logits_xxh3"]);
  const nlohmann::json report = traced.Json()["trace"];
  ASSERT_EQ(report["devices"].size(), 1u);
  EXPECT_GE(report["hidden_loading"], 0);
  EXPECT_EQ(report["steps"].size(), 8u);
  EXPECT_GT(SumOf(report["events"], "local", "load"), 0);
  double free_ms = -1;
  for (const nlohmann::json& span : ComputeLane(report["events"], "local")) {
    EXPECT_GE(span["begin_ms"].get<double>(), free_ms - 1e-6) << span;
    free_ms = span["end_ms"];
  }
}

}  // namespace
}  // namespace lime
