// `lime run --cluster` over real daemons: three `limed` processes on loopback that interleave and stream give what one process gives, also
// where devices are killed, stopped or left by their coordinator in the middle of it.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <map>
#include <memory>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "daemon/profile/profile_file.h"
#include "daemon/weights/checkpoint.h"
#include "planner/kv_growth.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/kv_eviction.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan_problem.h"
#include "tests/integration/limed_process.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

const std::string kModel = LIME_SOURCE_DIR "/models/lime-fables";
constexpr int kDevices = 3;

struct Shape {
  int64_t kv_tokens = 0;       // KV for so many at first; 0: for all
  bool split_head = false;     // each of its ranges on a device of its own
  int64_t kept_positions = 0;  // KV of so many, and then nothing streams; 0: of all
};

// Stages go round the devices three times; every other part streams, in pieces of at most 32 KiB.
Plan InterleavedPlan(const Shape& shape = {}) {
  const auto checkpoint = Checkpoint::Open(kModel);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  EXPECT_TRUE(spec.ok()) << spec.status();
  std::vector<ClusterDevice> devices(kDevices);
  for (int d = 0; d < kDevices; ++d) {
    devices[d] = {.name = std::string(1, static_cast<char>('a' + d)), .budget = 2 * kGiB, .runtime = 256 * kMiB, .activations = 64 * kMiB};
    devices[d].profile.read_bytes_per_second = 1e10;
    devices[d].profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
  }
  PlanRequest request{.model_name = "lime-fables", .context = 512, .batches = {1}, .piece_bytes = 32 * kKiB, .prompt_tokens = 16};
  request.chunks = {8};
  request.kv_tokens = shape.kv_tokens;
  request.kept_positions = shape.kept_positions;
  const auto problem = MakePlanProblem(*spec, devices, request);
  EXPECT_TRUE(problem.ok()) << problem.status();
  PlanChoice choice{.batch = 1};
  choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 8, .chunks = 2, .chunks_per_sweep = 1};
  choice.stages.embedding_by_rows = true;
  const Instance& instance = problem->instance;
  int begun = 0;
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    std::vector<Stage>& stages = choice.stages.stages;
    const bool range = shape.split_head && instance.blocks[b].kind == Instance::Kind::kHead;
    const bool begins = b == 0 || range || (!instance.IsLaterPiece(b) && b * 3 * kDevices / instance.NumBlocks() >= begun);
    if (begins) {
      stages.push_back({begun++ % kDevices, b, b + 1});
    } else {
      stages.back().hi = b + 1;
    }
    if (b % 2 == 1 && shape.kept_positions == 0) choice.stages.streamed.push_back(b);
  }
  auto plan = MakePlan(*problem, choice);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : Plan{};
}

// As tight as its first level: more KV takes the place of parts.
Plan GrowingPlan() {
  Plan plan = InterleavedPlan({.kv_tokens = 64});
  for (PlanDevice& device : plan.devices) {
    device.memory.ring = std::min<Bytes>(device.memory.ring, 192 * kKiB);
    device.memory.margin = device.least_margin = 0;
    device.budget = device.memory.total();
  }
  EXPECT_TRUE(plan.Validate().ok()) << plan.Validate();
  return plan;
}

// That keeps the KV of few positions, as tight.
Plan EvictingPlan() {
  Plan plan = InterleavedPlan({.kept_positions = 64});
  for (PlanDevice& device : plan.devices) {
    device.memory.margin = device.least_margin = 0;
    device.budget = device.memory.total();
  }
  return plan;
}

// The same where no device keeps more pages than those at work: the rest of KV is on disks, or where there are hosts, with the next device
// but for the last one's: hosts that are asked about all of it, or about none.
enum class KvFrom : uint8_t { kDisks, kHostsThatAttend, kHostsThatSendBack };
Plan SpillingPlan(KvFrom from = KvFrom::kDisks) {
  const bool hosts = from != KvFrom::kDisks;
  const auto checkpoint = Checkpoint::Open(kModel);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  absl::StatusOr<Plan> cut = CutForKv(InterleavedPlan({.kv_tokens = 64}), *checkpoint->BuildModelSpec());
  EXPECT_TRUE(cut.ok()) << cut.status();
  for (PlanDevice& device : cut->devices) {
    device.max_layer_pages = WorkingPages(*cut);
    device.memory.ring = std::min<Bytes>(device.memory.ring, 192 * kKiB);
  }
  for (int d = 0; hosts && d + 1 < kDevices; ++d) {
    PlanDevice& device = cut->devices[d];
    device.kv_host = d + 1, device.asks_kv = from == KvFrom::kHostsThatAttend;
    if (!device.asks_kv) device.kv_fetch_pieces = HostedPieces(*cut, device) + kKvFetchesUnderWay, device.kv_fetch_mb_per_ms = 0.1;
  }
  absl::StatusOr<Plan> plan = WithResidency(*cut, ResidencyOf(*cut));
  EXPECT_TRUE(plan.ok()) << plan.status();
  for (PlanDevice& device : plan->devices) {
    device.memory.margin = device.least_margin = 0;
    device.budget = device.memory.total();
  }
  EXPECT_TRUE(plan->Validate().ok()) << plan->Validate();
  return *std::move(plan);
}

class ClusterRunTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const Plan plan = InterleavedPlan();
    ASSERT_GE(plan.stages.size(), 2u * kDevices) << ToJsonText(plan);
    dir_.Write("plan.json", ToJsonText(plan));
    for (int d = 0; d < kDevices; ++d) limed_.push_back(std::make_unique<Limed>(Name(d)));
    WriteCluster();
  }

  static std::string Name(int device) { return std::string(1, static_cast<char>('a' + device)); }

  void WriteCluster(bool profiles = true) {
    DeviceProfile profile{.threads = 1, .read_bytes_per_second = 1e10, .flops = 1e10};
    profile.SetDisk({{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}});
    ASSERT_TRUE(WriteProfile(profile, dir_ / "profile.json").ok());
    std::string text =
        absl::StrCat("[cluster]\nname = \"test\"\nmodel = \"", kModel, "\"\n[[link]]\nbandwidth = \"1Gbit/s\"\nlatency = \"0.1ms\"\n");
    for (int d = 0; d < kDevices; ++d) {
      absl::StrAppend(&text, "[[device]]\nname = \"", Name(d), "\"\naddress = \"127.0.0.1:", limed_[d]->port(),
                      "\"\nmemory = \"2GiB\"\nweights = \"", kModel, "\"\n", profiles ? "profile = \"profile.json\"\n" : "");
    }
    dir_.Write("cluster.toml", text);
  }

  std::vector<std::string> OverCluster(std::vector<std::string> call) {
    for (const std::string& more : {std::string("--cluster"), dir_ / "cluster.toml", std::string("--plan"), dir_ / "plan.json"})
      call.push_back(more);
    return call;
  }

  TempDir dir_;
  std::vector<std::unique_ptr<Limed>> limed_;
};

TEST_F(ClusterRunTest, TokensAndLogitsAreThoseOfOneProcess) {
  const std::vector<std::vector<std::string>> sampling = {{"--temperature", "0"}, {"--temperature", "0.8", "--seed", "5"}};
  for (const std::vector<std::string>& flags : sampling) {
    std::vector<std::string> call = {
        "run",    "--model",       kModel,      "--prompt", "Once upon a time there was a fox who wanted to find", "--max-tokens", "40",
        "--json", "--hash-logits", "--context", "512"};
    call.insert(call.end(), flags.begin(), flags.end());
    const Answer alone = Call(call), cluster = Call(OverCluster(call));
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
    for (const char* field : {"token_ids", "text", "logits_xxh3", "prompt_tokens", "completion_tokens", "finish_reason"}) {
      EXPECT_EQ(cluster.Json()[field], alone.Json()[field]) << field;
    }
    EXPECT_GT(cluster.Json()["disk_bytes_per_token"], 0);
    for (const char* field : {"predicted_ms", "measured_ms", "error", "cause", "why"})
      EXPECT_TRUE(cluster.Json()["prediction"].contains(field)) << field;
    EXPECT_EQ(cluster.Json()["pauses"]["count"], 0);
  }
}

TEST_F(ClusterRunTest, TheHashOfLogitsIsPrintedWithoutJsonToo) {
  const std::vector<std::string> call =
      OverCluster({"run", "--model", kModel, "--prompt", "Once upon a time", "--max-tokens", "8", "--hash-logits", "--context", "512"});
  std::vector<std::string> as_json = call;
  as_json.push_back("--json");
  const Answer text = Call(call), object = Call(as_json);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_TRUE(text.out.ends_with("\nlogits_xxh3 " + object.Json()["logits_xxh3"].get<std::string>() + "\n")) << text.out;
}

TEST_F(ClusterRunTest, ScoresAreThoseOfOneProcess) {
  dir_.Write("text.txt", "Once upon a time there was a fox who wanted to find a friend. The fox went to the river and met a small bear.");
  for (const std::vector<std::string>& what : std::vector<std::vector<std::string>>{
           {"--ids", "1,5,9,17,33,65,5,9", "--top", "3"}, {"--text-file", dir_ / "text.txt", "--context", "16"}}) {
    std::vector<std::string> call = {"score", "--model", kModel, "--json"};
    call.insert(call.end(), what.begin(), what.end());
    const Answer alone = Call(call), cluster = Call(OverCluster(call));
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
    for (const char* field : {"positions", "perplexity", "logits_xxh3"}) EXPECT_EQ(cluster.Json()[field], alone.Json()[field]) << field;
  }
}

TEST_F(ClusterRunTest, AHeadThatDevicesShareGivesWhatOneProcessGives) {
  const Plan plan = InterleavedPlan({.split_head = true});
  ASSERT_NE(plan.stages.back().device, plan.stages[plan.stages.size() - 2].device);
  ASSERT_EQ(plan.parts[plan.stages.back().lo - 1].block.kind, BlockKind::kHead) << ToJsonText(plan);
  dir_.Write("plan.json", ToJsonText(plan));
  const std::vector<std::string> run = {"run",          "--model", kModel,   "--prompt",  "Once upon a time there was",
                                        "--max-tokens", "30",      "--json", "--context", "512"};
  std::vector<std::vector<std::string>> calls = {{"score", "--model", kModel, "--json", "--ids", "1,5,9,17,33,65,5,9", "--top", "3"}};
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{{},
                                                                                     {"--hash-logits"},
                                                                                     {"--temperature", "0.9", "--top-k", "30"},
                                                                                     {"--temperature", "0.8", "--top-p", "0.9"},
                                                                                     {"--repetition-penalty", "1.2"}}) {
    calls.push_back(run);
    calls.back().insert(calls.back().end(), flags.begin(), flags.end());
  }
  for (const std::vector<std::string>& call : calls) {
    SCOPED_TRACE(testing::PrintToString(call));
    const Answer alone = Call(call), cluster = Call(OverCluster(call));
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
    for (const char* field : {"token_ids", "text", "logits_xxh3", "positions", "perplexity"}) {
      EXPECT_EQ(cluster.Json()[field], alone.Json()[field]) << field;
    }
  }
}

TEST_F(ClusterRunTest, ScoresBesideOthersAreThoseOfOneProcess) {
  dir_.Write("others.txt", "9,8,7,6,5,4,3,2,1\n40,41\n");
  const std::vector<std::string> call = {"score", "--model", kModel, "--json", "--ids", "1,5,9,17,33,65,5,9"};
  std::vector<std::string> beside = call;
  beside.insert(beside.end(), {"--batch-with", dir_ / "others.txt", "--cluster", dir_ / "cluster.toml"});
  const Answer alone = Call(call), cluster = Call(beside);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
  for (const char* field : {"positions", "perplexity", "logits_xxh3"}) EXPECT_EQ(cluster.Json()[field], alone.Json()[field]) << field;
}

TEST_F(ClusterRunTest, KvThatGrowsTakesThePlaceOfPartsAndChangesNoBit) {
  dir_.Write("plan.json", ToJsonText(GrowingPlan()));
  std::vector<std::string> call = {"run",          "--model", kModel,   "--prompt",      "Once upon a time there was a fox",
                                   "--max-tokens", "480",     "--json", "--hash-logits", "--ignore-eos",
                                   "--context",    "512"};
  const Answer alone = Call(call);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  call = OverCluster(call);
  const Answer cluster = Call(call);
  ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
  const auto json = cluster.Json();
  for (const char* field : {"token_ids", "text", "logits_xxh3", "completion_tokens"}) EXPECT_EQ(json[field], alone.Json()[field]) << field;
  EXPECT_GE(json["plan"]["kv_levels"].size(), 3u);
  int devices = 0;
  for (const auto& device : json["devices"]) {
    EXPECT_LE(device["peak_rss_bytes"], device["budget_bytes"]);
    devices += device["residency_changes"] >= 2 ? 1 : 0;
  }
  EXPECT_GE(devices, 2) << json["devices"];
  call.insert(call.end(), {"--online", "off"});
  const Answer off = Call(call);
  EXPECT_EQ(off.exit_code, 1);
  EXPECT_THAT(off.err, HasSubstr("pages of 16"));
}

TEST_F(ClusterRunTest, KvThatIsComputedAgainChangesNoBit) {
  ASSERT_EQ(MostEvicted(EvictingPlan()), 448);
  dir_.Write("plan.json", ToJsonText(EvictingPlan()));
  std::vector<std::string> call = {"run",          "--model", kModel,   "--prompt",      "Once upon a time there was a fox",
                                   "--max-tokens", "300",     "--json", "--hash-logits", "--ignore-eos",
                                   "--context",    "512"};
  const Answer alone = Call(call), cluster = Call(OverCluster(call));
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
  const auto json = cluster.Json();
  for (const char* field : {"token_ids", "text", "logits_xxh3", "completion_tokens"}) EXPECT_EQ(json[field], alone.Json()[field]) << field;
  EXPECT_EQ(json["plan"]["kv_levels"].size(), 13u);
  std::string ids = "1";  // every row of the prompt asks for logits
  for (int i = 1; i < 100; ++i) absl::StrAppend(&ids, ",", 5 * i);
  const std::vector<std::string> score = {"score", "--model", kModel, "--json", "--ids", ids};
  const Answer score_alone = Call(score), score_cluster = Call(OverCluster(score));
  ASSERT_EQ(score_cluster.exit_code, 0) << score_cluster.err;
  for (const char* field : {"positions", "logits_xxh3"}) EXPECT_EQ(score_cluster.Json()[field], score_alone.Json()[field]) << field;
  for (const auto& device : json["devices"]) EXPECT_LE(device["peak_rss_bytes"], device["budget_bytes"]);
}

TEST_F(ClusterRunTest, KvThatGoesToDisksChangesNoBit) {
  dir_.Write("plan.json", ToJsonText(SpillingPlan()));
  std::vector<std::string> call = {"run",          "--model", kModel,   "--prompt",      "Once upon a time there was a fox",
                                   "--max-tokens", "480",     "--json", "--hash-logits", "--ignore-eos",
                                   "--context",    "512"};
  const Answer alone = Call(call);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  const Answer cluster = Call(OverCluster(call));
  ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
  const auto json = cluster.Json();
  for (const char* field : {"token_ids", "text", "logits_xxh3", "completion_tokens"}) EXPECT_EQ(json[field], alone.Json()[field]) << field;
  for (const auto& device : json["devices"]) {
    EXPECT_LE(device["peak_rss_bytes"], device["budget_bytes"]);
    EXPECT_GT(device["kv_written_bytes"], 0) << device;
    EXPECT_GT(device["kv_read_bytes"], 50 * device["kv_written_bytes"].get<Bytes>()) << device;
  }
}

TEST_F(ClusterRunTest, KvThatOtherDevicesHostChangesNoBit) {
  const std::vector<std::string> call = {"run",          "--model", kModel,   "--prompt",      "Once upon a time there was a fox",
                                         "--max-tokens", "480",     "--json", "--hash-logits", "--ignore-eos",
                                         "--context",    "512"};
  const Answer alone = Call(call);
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  for (const KvFrom from : {KvFrom::kHostsThatAttend, KvFrom::kHostsThatSendBack}) {
    SCOPED_TRACE(from == KvFrom::kHostsThatAttend ? "the hosts attend" : "the hosts send it back");
    dir_.Write("plan.json", ToJsonText(SpillingPlan(from)));
    const Answer cluster = Call(OverCluster(call));
    ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
    const auto json = cluster.Json();
    for (const char* field : {"token_ids", "text", "logits_xxh3", "completion_tokens"})
      EXPECT_EQ(json[field], alone.Json()[field]) << field;
    for (const auto& device : json["devices"]) {
      const bool comes_back = from == KvFrom::kHostsThatSendBack && device["name"] != "c";
      EXPECT_LE(device["peak_rss_bytes"], device["budget_bytes"]);
      EXPECT_GT(device["kv_written_bytes"], 0) << device;
      EXPECT_EQ(device["kv_read_bytes"] > 0, device["name"] == "c") << device;
      EXPECT_EQ(device["kv_fetched_bytes"] >= device["kv_written_bytes"], comes_back) << device;
    }
  }
}

// ---- A trace

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

  const nlohmann::json report = traced.Json()["trace"], events = report["events"];
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
    // And as much as it says without a trace: of its own count only whole blocks' empty parts are left out.
    EXPECT_NEAR(SumOf(events, device, "wait_weights"), of["wait_weights_ms"].get<double>(), 1e-3);
    EXPECT_NEAR(SumOf(events, device, "wait_input"), of["wait_input_ms"].get<double>(), 1e-3);
    EXPECT_LE(SumOf(events, device, "compute"), of["compute_ms"].get<double>() + 1e-3);
    EXPECT_GT(SumOf(events, device, "compute"), 0);
    EXPECT_GT(SumOf(events, device, "load"), 0);
  }
  // Every message that was received was sent before, as far as the clocks are known. Of the last step something may still be on its way.
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

// ---- Faults

class FaultTest : public ClusterRunTest {
 protected:
  // Long enough that a fault comes in the middle of it; sampled, so that a wrong random number would show.
  static std::vector<std::string> LongRun() {
    return {"run",
            "--model",
            kModel,
            "--prompt",
            "Once upon a time there was a fox",
            "--max-tokens",
            "450",
            "--context",
            "512",
            "--json",
            "--hash-logits",
            "--ignore-eos",
            "--temperature",
            "0.8",
            "--seed",
            "11"};
  }
  static const Answer& Alone() {
    static const Answer answer = Call(LongRun());
    return answer;
  }
  static std::vector<std::string> With(std::vector<std::string> call, const std::vector<std::string>& more) {
    call.insert(call.end(), more.begin(), more.end());
    return call;
  }
  // The run, once tokens come.
  std::unique_ptr<Lime> Begin(const std::vector<std::string>& more = {}) {
    auto run = std::make_unique<Lime>(With(OverCluster(LongRun()), more));
    EXPECT_TRUE(limed_[kDevices - 1]->AwaitLog("is to join in slot")) << run->err();
    std::this_thread::sleep_for(100ms);
    return run;
  }
  void Restart(int device) {
    const int port = limed_[device]->port();
    limed_[device] = std::make_unique<Limed>(Name(device), port);
  }
  static void ExpectNothingLost(const Answer& answer) {
    ASSERT_EQ(Alone().exit_code, 0) << Alone().err;
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    for (const char* field : {"token_ids", "text", "logits_xxh3", "completion_tokens", "finish_reason"})
      EXPECT_EQ(answer.Json()[field], Alone().Json()[field]) << field << "\n" << answer.err;
  }
};

class AnyDevice : public FaultTest, public ::testing::WithParamInterface<int> {};

TEST_P(AnyDevice, KilledAndStartedAgainCostsNoTokenAndNoBit) {
  const std::unique_ptr<Lime> run = Begin();
  EXPECT_TRUE(WIFSIGNALED(limed_[GetParam()]->End(SIGKILL)));
  Restart(GetParam());
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

TEST_P(AnyDevice, KilledForGoodIsPlannedWithout) {
  const std::unique_ptr<Lime> run = Begin({"--patience", "0.2"});
  EXPECT_TRUE(WIFSIGNALED(limed_[GetParam()]->End(SIGKILL)));
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
  const nlohmann::json root = answer.Json();  // the loop walks in it
  EXPECT_FALSE(root["devices"].empty());
  for (const auto& device : root["devices"]) EXPECT_NE(device["name"], Name(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(FirstMiddleLast, AnyDevice, ::testing::Values(0, 1, 2));

// A plan whose KV has grown begins at its first level again, and grows to what is known before that is computed.
TEST_F(FaultTest, KvThatHasGrownGrowsAgainAfterALoss) {
  dir_.Write("plan.json", ToJsonText(GrowingPlan()));
  const std::unique_ptr<Lime> run = Begin();
  ASSERT_TRUE(limed_[1]->AwaitLog("is to have 10 KV pages of each layer")) << limed_[1]->log();
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  Restart(1);
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
  EXPECT_THAT(limed_[1]->log(), HasSubstr("KV pages of each layer"));
}

// What was generated is prompt then, and goes beyond what is kept.
TEST_F(FaultTest, EvictedKvIsComputedAgainAfterALoss) {
  dir_.Write("plan.json", ToJsonText(EvictingPlan()));
  const std::unique_ptr<Lime> whole = Begin();
  const auto begin = std::chrono::steady_clock::now();
  ExpectNothingLost(whole->Wait());
  const auto took = std::chrono::steady_clock::now() - begin;
  limed_[kDevices - 1]->End(SIGTERM);
  Restart(kDevices - 1);  // whose log says when the next run begins
  const std::unique_ptr<Lime> run = Begin();
  std::this_thread::sleep_for(took / 2);
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  Restart(1);
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  const std::string log = limed_[1]->log(), joins = "is to join in slot 0: ";
  const size_t at = log.find(joins);
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_GT(std::atoi(log.c_str() + at + joins.size()), 64) << "of which all are kept";
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

TEST_F(FaultTest, KvThatHasGrownIsPlannedWithoutALostDevice) {
  dir_.Write("plan.json", ToJsonText(GrowingPlan()));
  const std::unique_ptr<Lime> run = Begin({"--patience", "0.2"});
  ASSERT_TRUE(limed_[1]->AwaitLog("is to have 10 KV pages of each layer")) << limed_[1]->log();
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_EQ(answer.Json()["plan"]["kv_levels"].size(), 1u) << "all of it from the start";
}

// KV that has left its device's memory, and a device that is killed then.
class AwayKv : public FaultTest, public ::testing::WithParamInterface<KvFrom> {};

TEST_P(AwayKv, IsMadeAgainAfterALoss) {
  dir_.Write("plan.json", ToJsonText(SpillingPlan(GetParam())));
  const std::unique_ptr<Lime> run = Begin();
  ASSERT_TRUE(limed_[1]->AwaitLog("is to have 28 KV pages of each layer")) << limed_[1]->log();
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  Restart(1);
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
  const nlohmann::json root = answer.Json();  // the loop walks in it
  for (const auto& device : root["devices"]) {
    const bool on_disk = GetParam() == KvFrom::kDisks || device["name"] == "c";
    EXPECT_EQ(device["kv_read_bytes"] > 0, on_disk) << device;
    EXPECT_EQ(device["kv_fetched_bytes"] > 0, !on_disk && GetParam() == KvFrom::kHostsThatSendBack) << device;
  }
}

INSTANTIATE_TEST_SUITE_P(FromAnywhere, AwayKv, ::testing::Values(KvFrom::kDisks, KvFrom::kHostsThatAttend, KvFrom::kHostsThatSendBack));

TEST_F(FaultTest, ADeviceThatStandsStillForAMomentIsWaitedFor) {
  const std::unique_ptr<Lime> run = Begin();
  limed_[1]->Signal(SIGSTOP);
  std::this_thread::sleep_for(700ms);
  limed_[1]->Signal(SIGCONT);
  ExpectNothingLost(run->Wait());
}

TEST_F(FaultTest, ADeviceThatStandsStillForTooLongIsLostAndComesBack) {
  const std::unique_ptr<Lime> run = Begin();
  limed_[1]->Signal(SIGSTOP);
  std::this_thread::sleep_for(3500ms);
  limed_[1]->Signal(SIGCONT);
  const Answer answer = run->Wait();
  ExpectNothingLost(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

TEST_F(FaultTest, WhereThereIsNoPlanWithoutTheDeviceTheRunEndsWithItsName) {
  WriteCluster(/*profiles=*/false);
  const std::unique_ptr<Lime> run = Begin({"--patience", "0.2", "--give-up", "1"});
  const auto killed = std::chrono::steady_clock::now();
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  const Answer answer = run->Wait();
  EXPECT_EQ(answer.exit_code, 1);
  EXPECT_THAT(answer.err, HasSubstr("device \"b\" is missing"));
  EXPECT_THAT(answer.err, HasSubstr("device \"a\" was never measured"));
  EXPECT_LT(std::chrono::steady_clock::now() - killed, 15s);
  Restart(1);
  EXPECT_EQ(Call(OverCluster({"run", "--model", kModel, "--prompt", "Once", "--max-tokens", "4", "--context", "512"})).exit_code, 0);
}

TEST_F(FaultTest, DevicesThatTheirCoordinatorHasLeftAreFreeForTheNext) {
  const std::unique_ptr<Lime> run = Begin();
  const int64_t used = limed_[0]->ResidentBytes();
  kill(run->pid(), SIGKILL);
  EXPECT_NE(run->Wait().exit_code, 0);
  for (const auto& limed : limed_) EXPECT_TRUE(limed->AwaitLog("has unloaded epoch"));
  EXPECT_LT(limed_[0]->ResidentBytes(), used);
  ExpectNothingLost(Call(OverCluster(LongRun())));
}

TEST_F(ClusterRunTest, ADaemonEndsCleanly) {
  const int status = limed_[0]->End(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace lime
