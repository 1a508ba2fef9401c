// `lime plan` and `lime simulate` as a user meets them.

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/models.h"
#include "tests/integration/programs/lime_process.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Example(const std::string& name) {
  return absl::StrCat(LIME_SOURCE_DIR "/testbed/clusters/", name, ".json");
}

// A device whose memory is all for weights and KV.
std::string Device(const std::string& name, Bytes memory, const std::string& more = "") {
  return absl::StrCat(R"({"name": ")", name, R"(", "memory_bytes": )", memory,
                      R"(, "runtime_bytes": 0, "activation_bytes": 0, "margin_bytes": 0, "read_bytes_per_second": 1e9)", more, "}");
}
constexpr char kDisk[] = R"(, "disk": {"bytes_per_second": 1e8, "latency_ms": 0.1})";

class PlanTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MakeModel(options_, model_).ok()); }

  void WriteDevices(const std::vector<std::string>& devices) {
    std::string text = R"({"link": {"bandwidth": "100Mbit/s", "latency_ms": 0.3}, "devices": [)";
    for (size_t i = 0; i < devices.size(); ++i) absl::StrAppend(&text, i > 0 ? "," : "", devices[i]);
    dir_.Write("devices.json", text + "]}");
  }

  // Small and quick unless `more` says otherwise.
  Answer Plan(const std::vector<std::string>& more) {
    std::vector<std::string> call = {"plan", "--model", model_, "--device-profiles", dir_ / "devices.json"};
    for (const auto& [flag, value] : {std::pair("--tokens", "64"), std::pair("--time-limit", "2000"), std::pair("--piece", "none")}) {
      if (std::ranges::find(more, flag) == more.end()) call.insert(call.end(), {flag, value});
    }
    call.insert(call.end(), more.begin(), more.end());
    return Call(call);
  }

  MakeModelOptions options_;
  TempDir dir_;
  const std::string model_ = dir_ / "model";
};

TEST_F(PlanTest, AModelThatFitsOnOneDeviceIsPlannedAndRunThere) {
  WriteDevices({Device("big", 1 * kGiB), Device("small", 1 * kMiB)});
  const Answer answer = Plan({});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("everything is resident"));
  EXPECT_THAT(answer.out, HasSubstr("Everything fits on big alone"));
  EXPECT_THAT(answer.out, HasSubstr(absl::StrCat("lime run --model ", model_, " --memory 1024MiB --context 64")));
  EXPECT_THAT(answer.out, HasSubstr("left out: "));
  EXPECT_THAT(answer.out, Not(HasSubstr("\x1b")));  // plain in a pipe
  const json root = Plan({"--json"}).Json();
  EXPECT_EQ(root["fits_on_one_device"], "big");
  EXPECT_EQ(root["plan"]["stages"].size(), 1u);
}

TEST_F(PlanTest, AnswersWithTheFieldsOthersRelyOn) {
  WriteDevices({Device("a", 200 * kKiB, kDisk), Device("b", 200 * kKiB, kDisk)});
  const Answer answer = Plan({"--json", "--sequences", "2", "--prompt-tokens", "16"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json root = answer.Json();
  EXPECT_EQ(root["feasible"], true);
  EXPECT_GT(root["ms_per_token"].get<double>(), 0);
  EXPECT_LE(root["lower_bound_ms_per_token"].get<double>(), root["ms_per_token"].get<double>());
  EXPECT_GT(root["ttft_ms"].get<double>(), 0);
  EXPECT_EQ(root["sequences"], 2);
  ASSERT_EQ(root["devices"].size(), 2u);
  for (const json& device : root["devices"]) {
    Bytes sum = 0;
    for (const auto& bytes : device["memory"]) sum += bytes.get<Bytes>();
    EXPECT_EQ(sum, device["budget_bytes"].get<Bytes>()) << device;
    EXPECT_FALSE(device["why"].get<std::string>().empty());
    EXPECT_TRUE(device.contains("one_more_gib_saves_ms_per_token"));
  }
}

TEST_F(PlanTest, ASeedLeadsToTheSamePlan) {
  WriteDevices({Device("a", 200 * kKiB, kDisk), Device("b", 150 * kKiB, kDisk)});
  const auto plan = [&] {
    return Call({"plan", "--model", model_, "--device-profiles", dir_ / "devices.json", "--tokens", "64", "--json", "--seed", "7"});
  };
  const json once = plan().Json()["plan"];
  EXPECT_TRUE(once.is_object());
  std::atomic<bool> over = false;
  std::vector<std::thread> others;  // by time, the second search would come to its end earlier
  for (unsigned i = 0; i < 4 * std::thread::hardware_concurrency(); ++i) {
    others.emplace_back([&over] {
      while (!over) {
      }
    });
  }
  EXPECT_EQ(once, plan().Json()["plan"]);
  over = true;
  for (std::thread& other : others) other.join();
}

// CPU time of the programs that were called, which other programs beside them do not lengthen.
double CalledSeconds() {
  struct rusage usage = {};
  getrusage(RUSAGE_CHILDREN, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec) + static_cast<double>(usage.ru_utime.tv_usec) / 1e6;
}

std::string LargeSpec(int64_t positions) {
  const json spec = {{"architectures", {"LlamaForCausalLM"}},
                     {"model_type", "llama"},
                     {"dtype", "bfloat16"},
                     {"num_hidden_layers", 80},
                     {"hidden_size", 8192},
                     {"num_attention_heads", 64},
                     {"num_key_value_heads", 8},
                     {"head_dim", 128},
                     {"intermediate_size", 28672},
                     {"vocab_size", 128256},
                     {"max_position_embeddings", positions},
                     {"rms_norm_eps", 1e-5},
                     {"tie_word_embeddings", false}};
  return spec.dump();
}

// Five devices with disks; their memory in GB.
std::string FiveDevices(const std::vector<double>& memory) {
  json devices = json::array();
  for (size_t i = 0; i < memory.size(); ++i) {
    devices.push_back({{"name", absl::StrCat("d", i)},
                       {"memory_bytes", static_cast<int64_t>(memory[i] * 1e9)},
                       {"read_bytes_per_second", 143e9 / static_cast<double>(1 + i)},
                       {"flops", 40e12 / static_cast<double>(1 + i)},
                       {"block_overhead_ms", 0.15},
                       {"disk", {{"bytes_per_second", 2.5e9 / static_cast<double>(1 + i)}, {"latency_ms", 0.3}}}});
  }
  return json{{"link", {{"bandwidth", "100Mbit/s"}, {"latency_ms", 0.3}}}, {"devices", devices}}.dump();
}

// KV of five long contexts that memory has no room for is tried on disks and on other devices,
// level by level.
TEST_F(PlanTest, ATimeLimitEndsEveryPartOfPlanning) {
  dir_.Write("spec.json", LargeSpec(131072));
  for (const std::vector<double>& memory : {std::vector<double>{56, 28, 28, 14, 14}, {300, 28, 28, 14, 14}}) {
    dir_.Write("devices.json", FiveDevices(memory));
    for (const char* strategy : {"lime", "lime-paper", "pp", "edgeshard"}) {
      const double before = CalledSeconds();
      const Answer answer = Call({"plan", "--model-spec", dir_ / "spec.json", "--device-profiles", dir_ / "devices.json", "--tokens",
                                  "131072", "--sequences", "5", "--time-limit", "1500", "--strategy", strategy});
      EXPECT_LE(answer.exit_code, 1) << answer.err;
      EXPECT_LT(CalledSeconds() - before, 8) << strategy;
    }
  }
}

TEST_F(PlanTest, APlanThatCannotFitIsRefusedAtOnce) {
  dir_.Write("spec.json", LargeSpec(131072));
  dir_.Write("devices.json", FiveDevices({4, 2, 2, 1, 1}));
  const double before = CalledSeconds();
  ExpectRefused(Call({"plan", "--model-spec", dir_ / "spec.json", "--device-profiles", dir_ / "devices.json", "--tokens", "131072",
                      "--sequences", "5", "--no-kv-spill", "--no-kv-lending"}),
                1, "no plan fits");
  EXPECT_LT(CalledSeconds() - before, 8);
}

// A longer search finds a plan whose KV goes to the disks.
TEST_F(PlanTest, ATimeLimitIsNoProofThatNoPlanFits) {
  dir_.Write("spec.json", LargeSpec(131072));
  dir_.Write("devices.json", FiveDevices({56, 28, 28, 14, 14}));
  std::vector<std::string> plan = {"plan",
                                   "--model-spec",
                                   dir_ / "spec.json",
                                   "--device-profiles",
                                   dir_ / "devices.json",
                                   "--tokens",
                                   "131072",
                                   "--sequences",
                                   "5",
                                   "--time-limit",
                                   "1"};
  ExpectRefused(Call(plan), 1, "no plan was found within the time limit of 1 ms");
  plan.insert(plan.end(), {"--no-kv-spill", "--no-kv-lending"});
  ExpectRefused(Call(plan), 1, "no plan fits");
}

TEST_F(PlanTest, AContextLongerThanTheModelsPositionsIsReported) {
  WriteDevices({Device("big", 1 * kGiB)});
  const int64_t positions = options_.config.max_positions;
  EXPECT_THAT(Plan({"--tokens", absl::StrCat(positions + 1)}).out, HasSubstr(absl::StrCat("is longer than the model's ", positions)));
  EXPECT_THAT(Plan({"--tokens", absl::StrCat(positions)}).out, Not(HasSubstr("is longer than the model's")));
}

// The figures of docs/results/experiments.md, by the commands of docs/guides/planning.md.
TEST_F(PlanTest, TheBaselinesStreamWholeBlocksUnlessTheCallSaysOtherwise) {
  const auto ms = [&](const std::string& strategy, const std::vector<std::string>& more) {
    std::vector<std::string> call = {"plan",
                                     "--model-spec",
                                     Example("llama-3.3-70b"),
                                     "--device-profiles",
                                     Example("setting-2"),
                                     "--strategy",
                                     strategy,
                                     "--bandwidth",
                                     "200Mbit/s",
                                     "--json"};
    call.insert(call.end(), more.begin(), more.end());
    return Call(call).Json()["ms_per_token"].get<double>();
  };
  EXPECT_NEAR(ms("pp-offload", {}), 7638, 0.005 * 7638);
  EXPECT_NEAR(ms("lime-paper", {}), 2451, 0.005 * 2451);
  EXPECT_LT(ms("pp-offload", {"--piece", "64MB"}), 6000);
}

TEST_F(PlanTest, AFileIsReplacedWhereLimeWroteOneOfItsKindAndElseKept) {
  WriteDevices({Device("a", 1 * kGiB)});
  const std::string plan = dir_ / "plan.json", trace = dir_ / "trace.json", letter = dir_ / "letter";
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(Plan({"--out", plan}).exit_code, 0);
    EXPECT_EQ(Call({"simulate", "--plan", plan, "--trace", trace}).exit_code, 0);
  }
  const std::string planned = Slurp(plan);
  ExpectRefused(Call({"simulate", "--plan", plan, "--trace", plan}), 2, "--trace " + plan + ": is also read by this command");
  ExpectRefused(Plan({"--out", trace}), 2, "--out " + trace + ": is there already, and LIME did not write it as a plan");
  dir_.Write("letter", "dear reader");
  ExpectRefused(Plan({"--out", letter}), 2, "or give --overwrite");
  EXPECT_EQ(Slurp(letter), "dear reader");
  EXPECT_EQ(Plan({"--out", letter, "--overwrite"}).exit_code, 0);
  EXPECT_EQ(Slurp(letter), planned);
  EXPECT_EQ(Plan({"--out", ""}).exit_code, 2);
  EXPECT_THAT(Plan({"--out", "/dev/stdout"}).out, HasSubstr(planned));
  ExpectRefused(Plan({"--out", model_ + "/model.safetensors", "--overwrite"}), 2, "holds weights of a model, which LIME never replaces");
}

TEST_F(PlanTest, TheSimulationOfAPlanLastsThePredictedTime) {
  WriteDevices({Device("a", 200 * kKiB, kDisk), Device("b", 200 * kKiB, kDisk)});
  const std::string file = dir_ / "plan.json", trace = dir_ / "trace.json";
  const json planned = Plan({"--json", "--out", file, "--prompt-tokens", "32"}).Json();
  const Answer answer = Call({"simulate", "--plan", file, "--json", "--steps", "3", "--trace", trace});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json root = answer.Json();
  EXPECT_EQ(root["ms_per_token"], planned["ms_per_token"]);
  ASSERT_FALSE(root["events"].empty());
  for (const json& event : root["events"]) {
    EXPECT_LE(event["begin_ms"].get<double>(), event["end_ms"].get<double>());
    EXPECT_GT(event["end_ms"].get<double>(), root["begin_ms"].get<double>());
  }
  for (const json& device : root["devices"]) EXPECT_LE(device["most_used_bytes"].get<Bytes>(), device["budget_bytes"].get<Bytes>());
  EXPECT_FALSE(json::parse(Slurp(trace))["traceEvents"].empty());
  const json prompt = Call({"simulate", "--plan", file, "--json", "--prompt"}).Json();
  EXPECT_EQ(prompt["ttft_ms"], planned["ttft_ms"]);
  EXPECT_THAT(Call({"simulate", "--plan", file, "--from-start"}).out, HasSubstr("ms per token"));
}

TEST_F(PlanTest, APlanIsSimulatedOverOtherLinks) {
  WriteDevices({Device("a", 400 * kKiB, kDisk), Device("b", 400 * kKiB, kDisk)});
  const std::string file = dir_ / "plan.json";
  ASSERT_EQ(Plan({"--strategy", "pp-offload", "--out", file}).exit_code, 0);
  const auto ms = [&](const std::string& speed) {
    return Call({"simulate", "--plan", file, "--json", "--link-speed", speed}).Json()["ms_per_step"].get<double>();
  };
  const json plan = json::parse(Slurp(file));
  const double tx_ms = plan["decode"]["tx_ms"].get<double>();
  ASSERT_GT(tx_ms, 0);
  ASSERT_EQ(plan["stages"].size(), 2);
  EXPECT_NEAR(ms("0.001") - ms("0.002"), 500 * tx_ms, 1e-6 * ms("0.001")) << "one hop of hidden states; a token id is no transfer";
  EXPECT_LE(ms("2"), ms("1"));
  ExpectRefused(Call({"simulate", "--plan", file, "--link-speed", "0"}), 2, "--link-speed 0 is outside 1e-6 to 1e6");
}

TEST_F(PlanTest, WhatPlanPrintsCanBeSimulated) {
  WriteDevices({Device("a", 1 * kGiB)});
  WriteFile(dir_ / "answer.json", Plan({"--json"}).out);
  const Answer answer = Call({"simulate", "--plan", dir_ / "answer.json"});
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_THAT(answer.out, HasSubstr("a "));
}

TEST_F(PlanTest, EveryStrategyAnswers) {
  WriteDevices({Device("a", 400 * kKiB, kDisk), Device("b", 400 * kKiB, kDisk)});
  for (const char* strategy : {"lime", "lime-paper", "pp", "pp-offload", "pp-offload-batched", "edgeshard"}) {
    const Answer answer = Plan({"--strategy", strategy, "--json", "--sequences", "2"});
    EXPECT_EQ(answer.exit_code, 0) << strategy << ": " << answer.err;
    EXPECT_EQ(answer.Json()["strategy"], strategy);
  }
}

TEST_F(PlanTest, WhereNothingFitsTheSentenceSaysWhatWould) {
  WriteDevices({Device("a", 40 * kKiB), Device("b", 50 * kKiB)});
  const Answer answer = Plan({});
  ExpectRefused(answer, 1, "b has 50.00 KiB and no disk to stream from; it would fit with ");
  const Answer as_json = Plan({"--json"});
  EXPECT_EQ(as_json.exit_code, 1);
  EXPECT_EQ(as_json.Json()["feasible"], false);
  EXPECT_THAT(as_json.Json()["reason"].get<std::string>(), HasSubstr("more on b"));
  ExpectRefused(Plan({"--strategy", "pp"}), 1, "--strategy lime streams weights that do not fit");
}

TEST_F(PlanTest, ABoundOnTheFirstTokenIsKeptOrRefused) {
  WriteDevices({Device("a", 200 * kKiB, kDisk), Device("b", 200 * kKiB, kDisk)});
  const json free = Plan({"--json", "--prompt-tokens", "32"}).Json();
  const double ttft = free["ttft_ms"].get<double>();
  const json kept = Plan({"--json", "--prompt-tokens", "32", "--max-ttft", absl::StrCat(ttft * 1.01)}).Json();
  EXPECT_LE(kept["ttft_ms"].get<double>(), ttft * 1.0101);
  ExpectRefused(Plan({"--prompt-tokens", "32", "--max-ttft", "0.001"}), 1, "raise --max-ttft or shorten --prompt-tokens");
}

TEST_F(PlanTest, KvThatGrowsHasLevelsUpToTheContext) {
  options_.config.num_layers = 8;  // 94 KiB of weights and 128 KiB of KV in each
  options_.config.num_kv_heads = 4;
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  WriteDevices({Device("a", 800 * kKiB, kDisk), Device("b", 800 * kKiB, kDisk)});
  const json whole = Plan({"--json", "--tokens", "512"}).Json();
  EXPECT_FALSE(whole.contains("kv_levels"));
  const json grows = Plan({"--json", "--tokens", "512", "--kv-tokens", "64"}).Json();
  const json& levels = grows["kv_levels"];
  ASSERT_GE(levels.size(), 2u) << grows;
  EXPECT_GE(levels.front()["tokens"], 64);
  EXPECT_LT(levels.front()["tokens"], 512);
  EXPECT_GE(levels.back()["tokens"], 512);
  for (size_t i = 1; i < levels.size(); ++i) {
    EXPECT_GT(levels[i]["tokens"], levels[i - 1]["tokens"]);
    EXPECT_GE(levels[i]["ms_per_token"].get<double>(), levels[i - 1]["ms_per_token"].get<double>() * (1 - 1e-12));  // sums, rounded
  }
  EXPECT_LT(levels.front()["ms_per_token"].get<double>(), whole["ms_per_token"].get<double>()) << "what growing is for";
  const Answer text = Plan({"--tokens", "512", "--kv-tokens", "64"});
  EXPECT_THAT(text.out, HasSubstr("As KV grows, more parts stream"));
  WriteDevices({Device("a", 2000 * kKiB, kDisk), Device("b", 2000 * kKiB, kDisk)});
  EXPECT_FALSE(Plan({"--json", "--tokens", "512", "--kv-tokens", "64"}).Json().contains("kv_levels")) << "all of it fits";
  ExpectRefused(Plan({"--kv-tokens", "65"}), 2, "--kv-tokens 65 is outside 0 (the prompt) to 64 (--tokens)");
}

// What the paper's baselines do where KV has no room: the strategies that stream nothing keep as
// much of it as they can.
TEST_F(PlanTest, PipelinesThatStreamNothingEvictKv) {
  options_.config.num_layers = 32;  // 94 KiB of weights and 256 KiB of KV in each
  options_.config.num_kv_heads = 4;
  ASSERT_TRUE(MakeModel(options_, model_).ok());
  WriteDevices({Device("a", 5000 * kKiB), Device("b", 5000 * kKiB)});
  for (const char* strategy : {"pp", "edgeshard"}) {
    const std::vector<std::string> call = {"--tokens",        "1024", "--strategy",   strategy,
                                           "--prompt-tokens", "32",   "--time-limit", "60000"};  // for how much to keep
    std::vector<std::string> as_json = call;
    as_json.insert(as_json.end(), {"--json", "--out", dir_ / "plan.json"});
    const Answer answer = Plan(as_json);
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    const json levels = answer.Json()["kv_levels"];
    ASSERT_EQ(levels.size(), 13u);
    EXPECT_GE(levels.front()["tokens"], 300) << strategy;
    EXPECT_LT(levels.front()["tokens"], 1024);
    EXPECT_EQ(levels.back()["tokens"], 1024);
    EXPECT_GT(levels.back()["ms_per_token"].get<double>(), 1.5 * levels.front()["ms_per_token"].get<double>());
    EXPECT_EQ(Call({"simulate", "--plan", dir_ / "plan.json"}).exit_code, 0);
    EXPECT_THAT(Plan(call).out, HasSubstr("computed again in every step"));
  }
  // Where all of it fits there is nothing of that; where not even the weights do there is no plan.
  EXPECT_FALSE(Plan({"--tokens", "64", "--strategy", "pp", "--json"}).Json().contains("kv_levels"));
  WriteDevices({Device("a", 1500 * kKiB), Device("b", 1500 * kKiB)});
  ExpectRefused(Plan({"--tokens", "1024", "--strategy", "pp"}), 1, "no plan fits");
}

TEST_F(PlanTest, WrongCallsAreRefusedWithARemedy) {
  WriteDevices({Device("a", 1 * kGiB)});
  ExpectRefused(Plan({"--strategy", "best"}), 2, "--strategy best is unknown; use lime, lime-paper, pp");
  ExpectRefused(Plan({"--tokens", "0"}), 2, "--tokens 0 is outside 1 to");
  ExpectRefused(Plan({"--prompt-tokens", "65"}), 2, "--prompt-tokens 65 is outside 0 to 64 (--tokens)");
  ExpectRefused(Plan({"--batch", "-1"}), 2, "--batch -1 is outside");
  ExpectRefused(Plan({"--sequences", "0"}), 2, "--sequences 0 is outside 1 to");
  ExpectRefused(Plan({"--batch", "3", "--sequences", "2"}), 2, "--batch 3 is more than --sequences 2");
  ExpectRefused(Plan({"--time-limit", "nan"}), 2, "--time-limit");
  ExpectRefused(Plan({"--max-ttft", "100"}), 2, "give the length of a prompt with --prompt-tokens");
  ExpectRefused(Plan({"--bandwidth", "fast"}), 2, "--bandwidth: \"fast\" is not a bandwidth");
  ExpectRefused(Plan({"--piece", "big"}), 2, "--piece: ");
  ExpectRefused(Plan({"--piece", "4KiB"}), 2, "is less than 1 MiB");
  ExpectRefused(Plan({"--cluster", "c.toml"}), 2, "--cluster and --device-profiles both name devices");
  ExpectRefused(Plan({"--model-spec", "c.json"}), 2, "--model and --model-spec both name a model");
  ExpectRefused(Call({"plan", "--model", model_}), 2, "no devices are given; use --cluster C.toml or --device-profiles F.json");
  ExpectRefused(Call({"plan", "--device-profiles", dir_ / "devices.json"}), 2, "no model is given; use --model FOLDER");
  ExpectRefused(Call({"simulate", "--plan", "x", "--steps", "0"}), 2, "--steps 0 is outside 1 to");
}

TEST_F(PlanTest, BadFilesAreOneSentence) {
  ExpectRefused(Plan({}), 2, "devices.json");  // there is none
  for (const char* text : {"", "{", "[]", "{\"devices\": 3}", "{\"devices\": [{}]}"}) {
    dir_.Write("devices.json", text);
    ExpectRefused(Plan({}), 2, "devices.json");
  }
  WriteDevices({Device("a", 1 * kGiB)});
  ExpectRefused(Call({"plan", "--model", dir_ / "nowhere", "--device-profiles", dir_ / "devices.json"}), 2, "nowhere");
  dir_.Write("config.json", R"({"architectures": ["GPT5ForCausalLM"]})");
  ExpectRefused(Call({"plan", "--model-spec", dir_ / "config.json", "--device-profiles", dir_ / "devices.json"}), 2, "GPT5ForCausalLM");
  ExpectRefused(Plan({"--out", dir_ / "no/such/folder/plan.json"}), 2, "no/such/folder");
  for (const char* text : {"", "{", "[]", "{}", "{\"plan\": 3}"}) {
    dir_.Write("plan.json", text);
    ExpectRefused(Call({"simulate", "--plan", dir_ / "plan.json"}), 2, "plan.json");
  }
  ExpectRefused(Call({"simulate", "--plan", dir_ / "none.json"}), 2, "none.json");
  dir_.Write("devices.json", absl::StrCat("{\"devices\": [", Device("a", 1 * kGiB), ",", Device("b", 1 * kGiB), "]}"));
  ExpectRefused(Plan({}), 2, "there is no description of the link between \"a\" and \"b\"; add \"link\"");
}

class ClusterFileTest : public PlanTest {
 protected:
  void SetUp() override {
    PlanTest::SetUp();
    DeviceProfile profile;
    profile.cpu = "some cpu";
    profile.threads = 4;
    profile.read_bytes_per_second = 1e9;
    profile.SetDisk({{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e8, .latency_ms = 1}});
    dir_.Write("measured.json", ToJsonText(profile));
  }
  Answer PlanCluster(const std::string& text) {
    dir_.Write("c.toml", text);
    return Call({"plan", "--cluster", dir_ / "c.toml", "--tokens", "64", "--time-limit", "2000", "--json"});
  }
  static std::string Device(const std::string& name, const std::string& more) {
    return absl::StrCat("[[device]]\nname = \"", name, "\"\n", more, "\n");
  }
  std::string Cluster() const { return absl::StrCat("[cluster]\nmodel = \"", model_, "\"\n"); }
};

TEST_F(ClusterFileTest, ProfilesAreReadFromBesideTheFile) {
  const std::string device = "memory = \"1GiB\"\nprofile = \"measured.json\"";
  const Answer answer = PlanCluster(Cluster() + Device("a", device) + Device("b", device) + "[[link]]\nbandwidth = \"1Gbit/s\"\n");
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json root = answer.Json();
  EXPECT_EQ(root["devices"].size(), 2u);
  EXPECT_EQ(root["devices"][0]["memory"]["runtime_bytes"], 192 * kMiB);  // assumed, and said so
  EXPECT_THAT(root["notes"].dump(), HasSubstr("memory of the runtime is assumed; `lime profile --cluster` measures it"));
}

TEST_F(ClusterFileTest, WhatIsMissingIsNamedWithItsRemedy) {
  ExpectRefused(PlanCluster(Cluster() + Device("a", "memory = \"1GiB\"")), 1,
                "line 3: device \"a\" was never measured; run `lime profile --cluster");
  ExpectRefused(PlanCluster(Cluster() + Device("a", "profile = \"measured.json\"")), 2, "states no memory; add");
  ExpectRefused(PlanCluster(Cluster() + Device("a", "memory = \"1GiB\"\nprofile = \"none.json\"")), 2, "none.json");
  const std::string device = "memory = \"1GiB\"\nprofile = \"measured.json\"";
  ExpectRefused(PlanCluster(Cluster() + Device("a", device) + Device("b", device)), 2, "add [[link]] with bandwidth = \"100Mbit/s\"");
  ExpectRefused(PlanCluster(Device("a", device)), 2, "no model is given; use --model FOLDER");
  ExpectRefused(PlanCluster("[cluster"), 2, "c.toml line 1: is not valid TOML");
}

// algorithms.md, section 4: 201, 466 and 1,002 ms for whole blocks and a resident embedding.
TEST(PlanExamplesTest, ThePaperSettingsArePlannedFromTheirDescriptions) {
  const auto ms = [](const char* model, const char* devices, const char* bandwidth) {
    const Answer answer = Call({"plan", "--model-spec", Example(model), "--device-profiles", Example(devices), "--bandwidth", bandwidth,
                                "--piece", "none", "--time-limit", "1000", "--json"});
    EXPECT_EQ(answer.exit_code, 0) << answer.err;
    return answer.exit_code == 0 ? answer.Json()["ms_per_token"].get<double>() : 0.0;
  };
  EXPECT_NEAR(ms("llama-2-13b", "e1", "100Mbit/s"), 201, 1);
  EXPECT_NEAR(ms("qwen3-32b", "e2", "200Mbit/s"), 466, 1);
  EXPECT_NEAR(ms("llama-3.3-70b", "e3", "100Mbit/s"), 1000, 10);
}

}  // namespace
}  // namespace lime
