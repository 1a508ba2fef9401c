// `lime run`, `score` and `chat` over real daemons give what one process gives, bit for bit, wherever
// KV is.

#include <string>
#include <vector>

#include "planner/plan/baselines/eviction.h"
#include "tests/integration/programs/run_cluster.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

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

// The second chat shows that the first one has freed the devices.
TEST_F(ClusterRunTest, ChatsAreThoseOfOneProcess) {
  const std::vector<std::string> call = {"chat", "--model", kModel, "--seed", "7", "--max-tokens", "12", "--context", "512", "--json"};
  const Answer alone = Call(call, "The fox\n");
  ASSERT_EQ(alone.exit_code, 0) << alone.err;
  for (int i = 0; i < 2; ++i) {
    const Answer cluster = Call(OverCluster(call), "The fox\n");
    ASSERT_EQ(cluster.exit_code, 0) << cluster.err;
    for (const char* field : {"content", "finish_reason", "prompt_tokens", "completion_tokens", "seed", "recoveries"})
      EXPECT_EQ(cluster.Json()[field], alone.Json()[field]) << field;
  }
}

TEST_F(ClusterRunTest, AHeadThatDevicesShareHasTheResultOfOneProcess) {
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

TEST_F(ClusterRunTest, KvThatGrowsReplacesPartsAndChangesNoBit) {
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

TEST_F(ClusterRunTest, ADaemonEndsCleanly) {
  const int status = limed_[0]->End(SIGTERM);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace lime
