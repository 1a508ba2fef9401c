// `lime solve`: the fields of every kind, and one sentence for every malformed problem.
#include "planner/solve.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/planner/search/paper_problems.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

json Answer(const json& problem) {
  const absl::StatusOr<std::string> answer = Solve(problem.dump());
  EXPECT_TRUE(answer.ok()) << answer.status().message();
  return json::parse(answer.ok() ? *answer : "null");
}

std::string TextError(std::string_view text) {
  return std::string(Solve(text).status().message());
}

std::string SolveError(const json& problem) {
  return TextError(problem.dump());
}

// Step t: a computes 1 + 2, the hop takes 0.5 + 0.3, b computes 2 + 4, the token travels back in
// 0.3: 10.1 for every step. Memory of a: 100 + 300 + 5 of KV; so b's.
json TwoDevices() {
  return json::parse(R"({"kind": "eval",
    "instance": {"devices": [{"name": "a", "mem_mb": 500, "disk_mb_per_ms": 1.0, "disk_lat_ms": 0.1, "comp_ms": [1, 2, 1, 2]},
                             {"name": "b", "mem_mb": 900, "disk_mb_per_ms": 2.0, "disk_lat_ms": 0.1, "comp_ms": [2, 4, 2, 4]}],
                 "blocks": [{"kind": "A", "layer": 0, "mb": 100, "kv_mb": 5}, {"kind": "M", "layer": 0, "mb": 300, "kv_mb": 0},
                            {"kind": "A", "layer": 1, "mb": 100, "kv_mb": 5}, {"kind": "M", "layer": 1, "mb": 300, "kv_mb": 0}],
                 "embed_mb": 0, "net": {"tx_ms": 0.5, "lat_ms": 0.3}, "microbatches": 1},
    "plan": {"stages": [{"device": 0, "lo": 0, "hi": 2}, {"device": 1, "lo": 2, "hi": 4}], "streamed": []}})");
}

TEST(SolveTest, EvalAnswersTheWorkedExample) {
  const json answer = Answer(TwoDevices());
  EXPECT_EQ(answer["feasible"], true);
  EXPECT_DOUBLE_EQ(answer["ms_per_step"].get<double>(), 10.1);
  EXPECT_EQ(answer["resident_mb"], json({405, 405}));
  EXPECT_EQ(answer["pool_mb"], json({95, 495}));
  EXPECT_EQ(*Solve(TwoDevices().dump()), R"({"feasible":true,"ms_per_step":10.1,"resident_mb":[405.0,405.0],"pool_mb":[95.0,495.0]})");
}

TEST(SolveTest, WhatDoesNotFitIsAnAnswerWithAReason) {
  json problem = TwoDevices();
  problem["instance"]["devices"][0]["mem_mb"] = 404;
  json answer = Answer(problem);
  EXPECT_EQ(answer["feasible"], false);
  EXPECT_FALSE(answer.contains("ms_per_step"));
  EXPECT_EQ(answer["reason"], "device 0 (\"a\") needs 405 MB for resident weights and KV, but has 404 MB");
  problem["plan"]["streamed"] = {1};  // leaves 299 MB for a block of 300
  EXPECT_EQ(Answer(problem)["reason"],
            "device 0 (\"a\") has 299 MB free for streaming, but the largest streamed block of stage 0 needs 300 MB");
  problem["instance"]["devices"][0]["mem_mb"] = 405;
  problem["instance"]["devices"][0]["disk_mb_per_ms"] = 0;
  EXPECT_EQ(Answer(problem)["reason"], "device 0 (\"a\") streams in stage 0, but its disk reads 0 MB/ms");
  problem = TwoDevices();
  problem["instance"]["microbatches"] = 2;
  problem["instance"]["devices"][0]["mem_mb"] = 404;
  problem["plan"]["streamed"] = {0, 1};  // 399 MB for 400 together
  EXPECT_EQ(Answer(problem)["reason"], "device 0 (\"a\") has 399 MB free for streaming, but the streamed blocks of stage 0 need 400 MB");
}

// Four layers of 1 ms (computing) and 100 / 1 + 0.5 ms (loading) on a; 2 ms and 50.5 ms on b. Two
// segments, each: a runs one resident layer, b one resident and one streamed... r = [1, 0], k = [0,
// 1]: C = 1 + 2 + 2 (0.5 + 0.25) = 4.5; R = 1 (50.5 + 2) = 52.5; T = 2 R = 105.
TEST(SolveTest, Eq1IsTheClosedForm) {
  json problem = {{"kind", "eq1"}, {"order", {0, 1}}, {"S", 2}, {"r", {1, 0}}, {"k", {0, 1}}};
  json& instance = problem["instance"];
  instance["net"] = {{"tx_ms", 0.5}, {"lat_ms", 0.25}};
  instance["devices"] = {{{"mem_mb", 1000}, {"disk_mb_per_ms", 1}, {"disk_lat_ms", 0.5}, {"comp_ms", {1, 1, 1, 1}}},
                         {{"mem_mb", 1000}, {"disk_mb_per_ms", 2}, {"disk_lat_ms", 0.5}, {"comp_ms", {2, 2, 2, 2}}}};
  for (int layer = 0; layer < 4; ++layer) instance["blocks"].push_back({{"kind", "L"}, {"layer", layer}, {"mb", 100}, {"kv_mb", 1}});
  EXPECT_EQ(Answer(problem),
            json({{"total_ms", 105.0}, {"segment_critical_path_ms", 4.5}, {"segment_load_cycle_ms", 52.5}, {"uncovered_ms", 96.0}}));
  // b alone, one streamed layer in each of two segments: C = 2 + 0.75, R = 52.5; the lists may then
  // be as short as the order.
  json alone = problem;
  alone["order"] = {1};
  const json with_all = Answer(alone);
  EXPECT_EQ(with_all["segment_critical_path_ms"], 2.75);
  alone["r"] = {0};
  alone["k"] = {1};
  EXPECT_EQ(Answer(alone), with_all);
  problem["order"] = {1, 0, 1};
  EXPECT_THAT(SolveError(problem), HasSubstr("field \"order\" names device 1 twice"));
  problem["order"] = {0, 2};
  EXPECT_THAT(SolveError(problem), HasSubstr("field \"order[1]\" = 2 is outside 0 to 1"));
  problem["order"] = {0, 1};
  problem["r"] = {1};
  EXPECT_THAT(SolveError(problem), HasSubstr("field \"r\" has 1 numbers for 2 devices"));
  problem["r"] = {1, 0};
  instance["devices"][1]["comp_ms"][3] = 3;
  EXPECT_THAT(SolveError(problem), HasSubstr("layer 3 has another time than layer 0 on device 1"));
  instance["devices"][1]["comp_ms"][3] = 2;
  instance["devices"][1]["disk_mb_per_ms"] = 0;
  EXPECT_THAT(SolveError(problem), HasSubstr("streams on a device whose disk reads 0 MB/ms"));
  instance["blocks"][3]["kind"] = "H";
  EXPECT_THAT(SolveError(problem), HasSubstr("leave the head out"));
}

// Of 2 slots: both on the first 2 * 10 - (12 - 2) = 10 uncovered, one each max(10 - 11, 20 - 11) =
// 9, both on the second 30.
TEST(SolveTest, SlotsMinimisesTheMaximum) {
  json problem = {{"kind", "slots"}, {"load_ms", {10, 20}}, {"comp_ms", {1, 1}}, {"kmax", {2, 2}}, {"need", 2}, {"C_ms", 12}};
  EXPECT_EQ(Answer(problem), json({{"feasible", true}, {"uncovered_ms", 9.0}, {"k", {1, 1}}}));
  problem["kmax"] = {1, 0};
  EXPECT_EQ(Answer(problem)["feasible"], false);
  problem["kmax"] = {1};
  EXPECT_THAT(SolveError(problem), HasSubstr("have 2, 2 and 1 numbers"));
  problem["kmax"] = {1, 1.5};
  EXPECT_THAT(SolveError(problem), HasSubstr("field \"kmax[1]\" is not an integer"));
}

TEST(SolveTest, OnlineIsTheTableOfThresholds) {
  const json problem = {{"kind", "online"}, {"free_mb", 100}, {"kv_tok_mb", 1}, {"mha_mb", 50}, {"mlp_mb", 120},
                        {"visits", 2},      {"cap_mha", 1},   {"cap_mlp", 1},   {"n_max", 400}};
  // 100; then 100 + 50, 100 + 120, 100 + 170 = 270 < 400.
  const json answer = Answer(problem);
  EXPECT_EQ(answer["exhausted"], true);
  ASSERT_EQ(answer["steps"].size(), 4u);
  EXPECT_EQ(answer["steps"][2], json({{"alpha", 0}, {"beta", 1}, {"capacity_tokens", 220}, {"extra_load_mb_per_visit", 120.0}}));
}

// 50 - 20 ms idle at 0.1 MB/ms fetch 3 MB: 6 tokens of 0.5 MB; the peer stores 10 / 2 = 5.
TEST(SolveTest, KvTransferIsTheLeastOfThree) {
  json problem = {{"kind", "kvtransfer"}, {"period_ms", 50},      {"activation_busy_ms", 20}, {"bw_mb_per_ms", 0.1},
                  {"kv_visit_mb", 0.5},   {"target_free_mb", 10}, {"kv_tok_mb", 2},           {"n", 100}};
  EXPECT_EQ(Answer(problem), json({{"tokens", 5}}));
  problem["kv_tok_mb"] = 0;
  EXPECT_THAT(SolveError(problem), HasSubstr("field \"kv_tok_mb\" = 0 is outside"));
}

// a alone computes 6 ms a step and would stream 410 MB through 90; b alone 12 ms, and everything
// fits; one hop there costs 0.8 and 0.3 back. Layer 0 on a and layer 1 on b, all resident, is the
// 10.1 of the worked example, and no plan has fewer than 3 ms + 6 ms of it.
TEST(SolveTest, OptimizeFindsThePlanOfTheWorkedExample) {
  json problem = TwoDevices();
  problem["kind"] = "optimize";
  for (const char* granularity : {"block", "layer"}) {
    problem["granularity"] = granularity;
    const json answer = Answer(problem);
    EXPECT_EQ(answer["feasible"], true);
    EXPECT_EQ(answer["ms_per_step"], 10.1);
    EXPECT_EQ(answer["plan"]["stages"].size(), 2u);
  }
  problem["granularity"] = "atom";
  EXPECT_THAT(SolveError(problem), HasSubstr("field \"granularity\" is none of block, layer, model-block and whole-block"));
  problem["granularity"] = "block";
  problem["instance"]["devices"][0]["mem_mb"] = 4;
  problem["instance"]["devices"][1]["mem_mb"] = 9;
  const json answer = Answer(problem);
  EXPECT_EQ(answer["feasible"], false);
  EXPECT_FALSE(answer.contains("plan"));
  EXPECT_THAT(answer["reason"].get<std::string>(), HasSubstr("no plan fits"));
}

// One micro-batch of 2 takes 3 ms, two of 1 take 2 + 2.
TEST(SolveTest, OptimizeChoosesMicroBatchesAndTheirSize) {
  const json problem = json::parse(R"({"kind": "optimize", "instance": {
      "devices": [{"mem_mb": 10, "disk_mb_per_ms": 1, "comp_ms_by_batch": {"1": [2], "2": [3]}}],
      "blocks": [{"kind": "L", "mb": 2}], "net": {"lat_ms": 1, "tx_ms_by_batch": {"1": 1, "2": 2}}, "sequences": 2}})");
  const json answer = Answer(problem);
  EXPECT_EQ(answer["ms_per_step"], 3.0);
  EXPECT_EQ(answer["plan"]["microbatches"], 1);
  EXPECT_EQ(answer["plan"]["batch"], 2);
  json eval = problem;
  eval["kind"] = "eval";
  eval["plan"] = answer["plan"];
  EXPECT_EQ(Answer(eval)["ms_per_step"], 3.0) << "of the batch that the plan names";
  eval["plan"]["batch"] = 1;
  EXPECT_FALSE(Solve(eval.dump()).ok()) << "one micro-batch of one does not serve two";
  eval["instance"] = json::parse(R"({"devices": [{"mem_mb": 10, "disk_mb_per_ms": 1, "comp_ms": [5]}],
      "blocks": [{"kind": "L", "mb": 2}], "net": {"lat_ms": 1, "tx_ms": 1}})");
  EXPECT_EQ(Answer(eval)["ms_per_step"], 5.0) << "where there are the times of one way alone, those";
}

// b computes as fast as a now: all of it fits there, 6 ms instead of the 10.1 - 3 = 7.1 of the plan
// in force. 405 MB travel at 10 MB/ms.
TEST(SolveTest, ReplanWeighsTheSavingAgainstTheMove) {
  json problem = TwoDevices();
  problem["kind"] = "replan";
  problem["current_plan"] = problem["plan"];
  problem["new_net"] = {{"tx_ms", 0.5}, {"lat_ms", 0.3}};
  problem["new_devices"] = problem["instance"]["devices"];
  problem["new_devices"][1]["comp_ms"] = {1, 2, 1, 2};
  problem["move_mb_per_ms"] = 10;
  problem["remaining_steps"] = 37;  // 37 x 1.1 > 40.5
  json answer = Answer(problem);
  EXPECT_EQ(answer["changed"], true);
  EXPECT_EQ(answer["switch_ms"], 40.5);
  EXPECT_EQ(answer["ms_per_step"], 6.0);
  EXPECT_EQ(answer["plan"]["stages"].size(), 1u);
  problem["remaining_steps"] = 36;  // 36 x 1.1 < 40.5
  answer = Answer(problem);
  EXPECT_EQ(answer["changed"], false);
  EXPECT_EQ(answer["switch_ms"], 0.0);
  EXPECT_EQ(answer["ms_per_step"], 7.1);
  problem["remaining_steps"] = 1e9;
  problem.erase("move_mb_per_ms");
  EXPECT_EQ(Answer(problem)["changed"], false);  // nothing may travel
  problem["new_devices"][0]["mem_mb"] = 305;     // 5 of KV and a pool of 300: a must stream both of its blocks
  problem["remaining_steps"] = 0;
  answer = Answer(problem);
  EXPECT_EQ(answer["changed"], true);
  EXPECT_EQ(answer["switch_ms"], 0.0);
  EXPECT_EQ(answer["plan"]["stages"], problem["plan"]["stages"]);
  EXPECT_EQ(answer["plan"]["streamed"], json({0, 1}));
  problem["new_devices"][0]["mem_mb"] = 304;
  EXPECT_EQ(Answer(problem)["feasible"], false);
  problem["new_devices"].erase(1);
  EXPECT_THAT(SolveError(problem), HasSubstr("field \"new_devices\" has 1 devices, fewer than the 2 before"));
}

TEST(SolveTest, KindsThatAreNotKnownAreNamed) {
  EXPECT_THAT(SolveError(json{{"kind", "guess"}}), HasSubstr("field \"kind\" = \"guess\" is none of"));
  EXPECT_THAT(SolveError(json::object()), HasSubstr("field \"kind\" is missing"));
}

TEST(SolveTest, MalformedProblemsAreNamed) {
  EXPECT_THAT(TextError(""), HasSubstr("is empty"));
  EXPECT_THAT(TextError("{\"kind\": "), HasSubstr("is not valid JSON"));
  EXPECT_THAT(TextError("{\"kind\": NaN}"), HasSubstr("is not valid JSON"));
  EXPECT_THAT(TextError("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(TextError(std::string(1000, '[')), HasSubstr("nests more than 64 levels"));
  EXPECT_THAT(TextError(std::string(kMaxProblemBytes + 1, ' ')), HasSubstr("is larger than"));
  const auto with = [](const char* pointer, const json& value) {
    json problem = TwoDevices();
    problem[json::json_pointer(pointer)] = value;
    return SolveError(problem);
  };
  EXPECT_THAT(with("/instance", 3), HasSubstr("field \"instance\" is not an object"));
  EXPECT_THAT(with("/plan", nullptr), HasSubstr("field \"plan\" is missing"));
  EXPECT_THAT(with("/instance/devices", json::array()), HasSubstr("field \"devices\": 0 is outside 1 to"));
  EXPECT_THAT(with("/instance/blocks", json::array()), HasSubstr("field \"blocks\": 0 is outside 1 to"));
  EXPECT_THAT(with("/instance/devices/1", 7), HasSubstr("instance.devices[1] is not an object"));
  EXPECT_THAT(with("/instance/devices/1/mem_mb", "big"), HasSubstr("instance.devices[1]: field \"mem_mb\" is not a number"));
  EXPECT_THAT(with("/instance/devices/1/mem_mb", -1), HasSubstr("\"devices[1].mem_mb\" = -1 is outside 0 to 1e+15"));
  EXPECT_THAT(with("/instance/devices/0/comp_ms", {1, 2, 3}), HasSubstr("\"devices[0].comp_ms\" has 3 times for 4 blocks"));
  EXPECT_THAT(with("/instance/devices/0/comp_ms/2", -3), HasSubstr("\"devices[0].comp_ms[2]\" = -3 is outside"));
  EXPECT_THAT(with("/instance/devices/0/comp_ms/2", "x"), HasSubstr("field \"comp_ms[2]\" is not a number"));
  EXPECT_THAT(with("/instance/devices/0/disk_mb_per_ms", 1e-300), HasSubstr("is neither 0 (no disk) nor at least"));
  EXPECT_THAT(with("/instance/blocks/3/kind", "Z"), HasSubstr("instance.blocks[3]: field \"kind\" is none of A, M, H and L"));
  EXPECT_THAT(with("/instance/blocks/3/mb", 1e300), HasSubstr("\"blocks[3].mb\" = 1e+300 is outside"));
  EXPECT_THAT(with("/instance/net/lat_ms", nullptr), HasSubstr("instance.net: field \"lat_ms\" is missing"));
  EXPECT_THAT(with("/instance/microbatches", 0), HasSubstr("field \"microbatches\" = 0 is outside 1 to 1024"));
  EXPECT_THAT(with("/plan/stages", json::array()), HasSubstr("field \"stages\" is empty"));
  EXPECT_THAT(with("/plan/stages/1/device", 2), HasSubstr("\"stages[1].device\" = 2 is none of the 2 devices"));
  EXPECT_THAT(with("/plan/stages/1/device", 0), HasSubstr("\"stages[1].device\" = 0 is the device of the stage before"));
  EXPECT_THAT(with("/plan/stages/1/lo", 3), HasSubstr("\"stages[1].lo\" = 3 leaves a gap or overlap; block 2 is next"));
  EXPECT_THAT(with("/plan/stages/1/hi", 3), HasSubstr("\"stages\" ends at block 3 of 4"));
  EXPECT_THAT(with("/plan/stages/1/hi", 5), HasSubstr("\"stages[1].hi\" = 5 is outside 3 to 4"));
  EXPECT_THAT(with("/plan/streamed", {1, 1}), HasSubstr("\"streamed\": block 1 is listed twice"));
  EXPECT_THAT(with("/plan/streamed", {4}), HasSubstr("\"streamed\": 4 is none of the 4 blocks"));
  EXPECT_THAT(with("/plan/streamed", {0.5}), HasSubstr("\"streamed[0]\" is not an integer"));
  EXPECT_THAT(with("/plan/embedding_by_rows", true), HasSubstr("\"embedding_by_rows\" is true, but device 0 (\"a\") of the first stage"));
  EXPECT_THAT(with("/plan/embedding_by_rows", 1), HasSubstr("field \"embedding_by_rows\" is not true or false"));
  EXPECT_THAT(with("/instance/devices/0/embed_rows_ms", -1), HasSubstr("\"devices[0].embed_rows_ms\" = -1 is outside"));
}

// The embedding read by rows: 1.5 ms more in each step, and its 60 MB less on the first device.
TEST(SolveTest, AnEmbeddingMayBeReadByRows) {
  json problem = TwoDevices();
  const json without = Answer(problem);
  problem["instance"]["embed_mb"] = 60;
  problem["instance"]["devices"][0]["embed_rows_ms"] = 1.5;
  EXPECT_EQ(Answer(problem)["resident_mb"][0], without["resident_mb"][0].get<double>() + 60);
  problem["plan"]["embedding_by_rows"] = true;
  EXPECT_EQ(Answer(problem)["resident_mb"], without["resident_mb"]);
  EXPECT_NEAR(Answer(problem)["ms_per_step"].get<double>(), without["ms_per_step"].get<double>() + 1.5, 1e-9);
}

// Both blocks have two parts, and one of them streams; a stage may begin at a model block only.
TEST(SolveTest, OptimizeCutsModelBlocksNowhere) {
  json problem = {{"kind", "optimize"}, {"granularity", "model-block"}, {"instance", TwoDevices()["instance"]}};
  for (int b = 0; b < 4; ++b) {
    problem["instance"]["blocks"][b] = {{"kind", b < 2 ? "A" : "M"}, {"layer", 0}, {"mb", 200}, {"kv_mb", 0}};
    for (json& device : problem["instance"]["devices"]) device["comp_ms"][b] = 1;
  }
  const json answer = Answer(problem);
  ASSERT_EQ(answer["feasible"], true);
  for (const json& stage : answer["plan"]["stages"]) EXPECT_EQ(stage["lo"].get<int>() % 2, 0);
}

TEST(SolveTest, UnknownFieldsAreIgnoredAndStreamedBlocksMayComeInAnyOrder) {
  json problem = TwoDevices();
  problem["note"] = {1, 2, {{"deep", nullptr}}};
  problem["instance"]["devices"][0]["colour"] = "red";
  problem["plan"]["streamed"] = {3, 2};
  json sorted = TwoDevices();
  sorted["plan"]["streamed"] = {2, 3};
  EXPECT_EQ(Answer(problem), Answer(sorted));
}

json InstanceToJson(const Instance& instance) {
  json out = {{"embed_mb", instance.embed_mb}, {"net", {{"tx_ms", instance.net.tx_ms}, {"lat_ms", instance.net.lat_ms}}}};
  for (const Instance::Block& block : instance.blocks) {
    const std::string kind(1, KindLetter(block.kind));
    out["blocks"].push_back({{"kind", kind}, {"layer", block.layer}, {"mb", block.mb}, {"kv_mb", block.kv_mb}});
  }
  for (const Instance::Device& device : instance.devices) {
    out["devices"].push_back({{"name", device.name},
                              {"mem_mb", device.mem_mb},
                              {"disk_mb_per_ms", device.disk_mb_per_ms},
                              {"disk_lat_ms", device.disk_lat_ms},
                              {"comp_ms", device.comp_ms}});
  }
  return out;
}

TEST(SolveTest, ReadsTheProblemsOfRealSize) {
  json problem = {{"kind", "eval"}, {"instance", InstanceToJson(PaperProblem("S2"))}};
  problem["plan"] = {{"stages", {{{"device", 0}, {"lo", 0}, {"hi", 161}}}}, {"streamed", json::array()}};
  EXPECT_EQ(Answer(problem)["feasible"], false);
}

}  // namespace
}  // namespace lime
