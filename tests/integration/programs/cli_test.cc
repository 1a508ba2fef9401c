// The command line as a user meets it: answers, JSON fields, exit codes.

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cases.h"
#include "tests/integration/models.h"
#include "tests/integration/programs/cli_fixture.h"

namespace lime {
namespace {

const std::string kFables = LIME_SOURCE_DIR "/models/lime-fables";

using nlohmann::json;
using ::testing::HasSubstr;

TEST_F(CliTest, RunAnswersWithTheFieldsOthersRelyOn) {
  const Answer answer =
      Call({"run", "--model", model_, "--prompt", "hello", "--max-tokens", "8", "--ignore-eos", "--hash-logits", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json root = answer.Json();
  for (const char* field : {"text", "token_ids", "prompt_tokens", "completion_tokens", "ttft_ms", "ms_per_token", "predicted_ms_per_token",
                            "peak_rss_bytes", "disk_bytes_per_token", "devices", "logits_xxh3"}) {
    EXPECT_TRUE(root.contains(field)) << field;
  }
  EXPECT_EQ(root["token_ids"].size(), 8u);
  EXPECT_EQ(root["completion_tokens"], 8);
  EXPECT_EQ(root["logits_xxh3"].get<std::string>().size(), 16u);
}

TEST_F(CliTest, RoutesOfATraceAreReadBackByARun) {
  const std::string experts = dir_ / "experts", routes = dir_ / "routes.bin";
  MakeModelOptions options;
  options.config.family = "qwen3_moe";
  ASSERT_TRUE(MakeModel(options, experts).ok());
  const auto with = [&](const std::string& command, std::vector<std::string> more) {
    std::vector<std::string> words = {command, "--model", experts, "--prompt", "hello", "--max-tokens", "24", "--ignore-eos", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return Call(words);
  };
  const Answer traced = with("trace", {"--experts", "3", "--routes", routes});
  ASSERT_EQ(traced.exit_code, 0) << traced.err;
  EXPECT_TRUE(Slurp(routes).starts_with("LIMEROUT"));
  EXPECT_EQ(with("trace", {"--experts", "3", "--routes", routes}).exit_code, 0) << "LIME wrote the file";
  const Answer ran = with("run", {"--experts", "3", "--routes", routes});
  ASSERT_EQ(ran.exit_code, 0) << ran.err;
  EXPECT_EQ(ran.Json()["token_ids"], traced.Json()["token_ids"]);
  const json shown = ran.Json()["streaming"]["experts"];
  EXPECT_EQ(shown["kept"], 3);
  EXPECT_NEAR(shown["expected_hit_share"].get<double>(), shown["measured_hit_share"].get<double>(), 0.1) << shown;
  ExpectRefused(with("run", {"--routes", model_ + "/model.safetensors"}), 2, "model.safetensors");
  ExpectRefused(with("trace", {"--routes", dir_ / "other"}), 2, "keeps all experts in memory; give --experts N");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--routes", routes}), 2, "has no experts");
  ExpectRefused(with("trace", {"--routes", routes, "--cluster", "c.toml"}), 2, "--routes records this machine alone");
}

TEST_F(CliTest, TheHashOfLogitsIsPrintedWithoutJsonToo) {
  const std::vector<std::string> run = {"run",          "--model",       model_,     "--max-tokens", "4",
                                        "--ignore-eos", "--hash-logits", "--prompt", "hello"};
  std::vector<std::string> as_json = run, two = run;
  as_json.push_back("--json");
  two.insert(two.end(), {"--prompt", "you"});
  const Answer text = Call(run), object = Call(as_json), both = Call(two);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  const std::string hash = object.Json()["logits_xxh3"];
  EXPECT_TRUE(text.out.ends_with("\nlogits_xxh3 " + hash + "\n")) << text.out;
  EXPECT_THAT(both.out, HasSubstr("[0] logits_xxh3 " + hash + "\n[1] logits_xxh3 "));
}

TEST_F(CliTest, TwoTokensAreNoGroundToJudgeAPredictionBy) {
  const std::vector<std::string> run = {"run", "--model", model_, "--max-tokens", "3", "--ignore-eos", "--prompt", "hello"};
  std::vector<std::string> as_json = run;
  as_json.push_back("--json");
  const Answer text = Call(run), object = Call(as_json);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  EXPECT_EQ(text.err.find("too low"), std::string::npos) << text.err;
  EXPECT_EQ(text.err.find("too high"), std::string::npos) << text.err;
  const json prediction = object.Json()["prediction"];
  EXPECT_TRUE(prediction["cause"] == "none" || (prediction["cause"] == "too_short" && prediction["error"].is_null())) << prediction;
}

TEST_F(CliTest, AnAnswerThatDoesNotReachStdoutIsAFailure) {
  for (const std::string command : {"run --json --prompt x --max-tokens 2", "score --json --ids 1,2"}) {
    const std::string words = absl::StrCat(LIME_BINARY, " ", command, " --model ", model_, " > /dev/full 2> ", dir_ / "full");
    EXPECT_EQ(WEXITSTATUS(std::system(words.c_str())), 1) << command;
    EXPECT_THAT(Slurp(dir_ / "full"), HasSubstr("cannot be written to stdout")) << command;
  }
}

TEST_F(CliTest, APromptsAnswerIsTheSameAloneAndInABatch) {
  std::vector<std::string> batch = {"run", "--model", model_, "--max-tokens", "12", "--ignore-eos", "--hash-logits", "--json"};
  const std::vector<std::string> prompts = {"a", "some words", "", "another, longer prompt here"};
  for (const std::string& prompt : prompts) batch.insert(batch.end(), {"--prompt", prompt});
  const Answer together = Call(batch);
  ASSERT_EQ(together.exit_code, 0) << together.err;
  const json results = together.Json()["results"];
  ASSERT_EQ(results.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    const json alone = Call({"run", "--model", model_, "--max-tokens", "12", "--ignore-eos", "--hash-logits", "--json", "--chunk", "2",
                             "--prompt", prompts[i]})
                           .Json();
    EXPECT_EQ(alone["token_ids"], results[i]["token_ids"]) << i;
    EXPECT_EQ(alone["logits_xxh3"], results[i]["logits_xxh3"]) << i;
  }
}

TEST_F(CliTest, PromptsMayHaveNumbersOfTokensOfTheirOwn) {
  std::vector<std::string> call = {"run", "--model", model_, "--ignore-eos", "--json", "--max-tokens", "7,3"};
  for (const char* prompt : {"a", "b", "c"}) call.insert(call.end(), {"--prompt", prompt});
  const Answer answer = Call(call);
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json results = answer.Json()["results"];
  ASSERT_EQ(results.size(), 3u);
  for (const auto& [prompt, tokens] : {std::pair(0, 7), std::pair(1, 3), std::pair(2, 3)})
    EXPECT_EQ(results[static_cast<size_t>(prompt)]["completion_tokens"], tokens) << prompt;
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "4,0"}), 2, "--max-tokens 0 is less than 1");
  EXPECT_EQ(Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "4", "5"}).exit_code, 2);
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "4,5"}), 2, "--max-tokens has 2 numbers for 1 prompts");
}

TEST_F(CliTest, AGrowingCacheHasTheBitsOfAReservedOne) {
  const auto hash = [&](const std::string& kv, std::vector<std::string> more = {}) {
    more.insert(more.begin(),
                {"run", "--model", model_, "--prompt", "x", "--max-tokens", "64", "--ignore-eos", "--hash-logits", "--json", "--kv", kv});
    return Call(more).Json()["logits_xxh3"];
  };
  const json reserved = hash("reserve");
  EXPECT_EQ(reserved.get<std::string>().size(), 16u);
  EXPECT_EQ(hash("grow"), reserved);
  EXPECT_EQ(hash("grow", {"--kv-tokens", "32", "--resident", "50%"}), reserved);
}

TEST_F(CliTest, AContextWithoutRoomInMemoryGoesToTheDiskWithTheSameBits) {
  if (kSanitized) GTEST_SKIP() << "from run to run, a sanitizer takes more memory than a margin has";
  options_.dtype = DType::kF32;
  options_.config.num_layers = 8;
  options_.config.num_heads = options_.config.num_kv_heads = 8;
  options_.config.head_dim = 64;  // 32 KiB of KV a token
  options_.config.max_positions = 2048;
  ASSERT_TRUE(MakeModel(options_, dir_ / "long").ok());
  std::vector<int> ids(1400);
  for (int i = 0; i < 1400; ++i) ids[i] = i * i % 199;
  const auto score = [&](int mib, std::vector<std::string> more) {
    more.insert(more.begin(), {"score", "--model", dir_ / "long", "--ids", absl::StrJoin(ids, ","), "--chunk", "64", "--json", "--memory",
                               absl::StrCat(mib, "MiB")});
    return Call(more);
  };
  const std::string refusal = score(8, {"--no-kv-spill"}).err;
  std::smatch found;
  ASSERT_TRUE(std::regex_search(refusal, found, std::regex("give --memory ([0-9]+)MiB or more"))) << refusal;
  const int enough = std::stoi(found[1]), half = enough - 1400 / 32 / 2;
  ExpectRefused(score(half, {"--no-kv-spill"}), 1, "without --no-kv-spill KV may go to the disk");
  ExpectRefused(score(half, {"--kv-dir", dir_ / "no/where"}), 2, "--kv-dir");
  const Answer all = score(enough, {}), spills = score(half, {"--kv-dir", dir_ / "kv"});
  ASSERT_EQ(all.exit_code, 0) << all.err;
  ASSERT_EQ(spills.exit_code, 0) << spills.err;
  const json before = all.Json(), after = spills.Json(), device = after["devices"][0];
  EXPECT_EQ(after["logits_xxh3"], before["logits_xxh3"]);
  EXPECT_EQ(before["devices"][0]["kv_written_bytes"], 0);
  EXPECT_GT(device["kv_written_bytes"], 0);
  EXPECT_GT(device["kv_read_bytes"], device["kv_written_bytes"]);
  EXPECT_LE(after["peak_rss_bytes"], half * kMiB);
  EXPECT_GT(after["plan"]["kv_levels"].back()["kv_on_disk_bytes"][0], 0);
  EXPECT_TRUE(std::filesystem::is_empty(dir_ / "kv"));
}

TEST_F(CliTest, ASeedLeadsToTheSameTextAgain) {
  const auto sample = [&](const std::string& seed) {
    return Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "16", "--temperature", "1.5", "--ignore-eos", "--seed", seed,
                 "--json"})
        .Json()["token_ids"];
  };
  EXPECT_EQ(sample("7"), sample("7"));
  EXPECT_NE(sample("7"), sample("8"));
}

TEST_F(CliTest, GenerationEndsBeforeAStopString) {
  const json free = Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "24", "--ignore-eos", "--json"}).Json();
  const std::string text = free["text"];
  const size_t at = text.find_first_of("abcdefghijklmnopqrstuvwxyz0123456789 ", 2);
  ASSERT_NE(at, std::string::npos) << text;
  const std::string stop = text.substr(at, 1);
  const json stopped =
      Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "24", "--ignore-eos", "--stop", stop, "--json"}).Json();
  EXPECT_EQ(stopped["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(stopped["finish_reason"], "stop");
}

TEST_F(CliTest, ScoreAnswersWithTheFieldsOthersRelyOn) {
  const Answer answer = Score();
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  const json root = answer.Json();
  ASSERT_EQ(root["positions"].size(), 3u);
  EXPECT_TRUE(root["positions"][0]["logprob"].is_null());
  EXPECT_LT(root["positions"][1]["logprob"].get<double>(), 0);
  EXPECT_EQ(root["positions"][2]["id"], 3);
  EXPECT_EQ(root["positions"][2]["top"].size(), 5u);
  EXPECT_GT(root["perplexity"].get<double>(), 1);
  const double mean = (root["positions"][1]["logprob"].get<double>() + root["positions"][2]["logprob"].get<double>()) / 2;
  EXPECT_NEAR(root["perplexity"].get<double>(), std::exp(-mean), 1e-9);
}

TEST_F(CliTest, IdsNeedNoTokenizer) {
  const json whole = Score().Json();
  std::filesystem::remove(model_ + "/tokenizer.json");
  EXPECT_EQ(Score().Json()["logits_xxh3"], whole["logits_xxh3"]);
  WriteFile(dir_ / "text", "abc");
  ExpectRefused(Call({"score", "--model", model_, "--text-file", dir_ / "text"}), 1, "tokenizer");
}

TEST_F(CliTest, WindowsOfATextLieSideBySide) {
  WriteFile(dir_ / "text", "abcdefghij");
  const json root = Call({"score", "--model", model_, "--text-file", dir_ / "text", "--context", "5", "--json"}).Json();
  std::vector<int32_t> ids;
  for (const json& position : root["positions"]) ids.push_back(position["id"]);
  EXPECT_THAT(ids, ::testing::ElementsAre(256, 'a', 'b', 'c', 'd', 256, 'e', 'f', 'g', 'h', 256, 'i', 'j'));
}

TEST_F(CliTest, SequencesOfAFileScoreAsEachAlone) {
  WriteFile(dir_ / "ids", "1,2,3\n7\n9,8,7,6,5,4\n");
  const json root = Call({"score", "--model", model_, "--ids-file", dir_ / "ids", "--json"}).Json();
  json alone = json::array();
  for (const char* ids : {"1,2,3", "7", "9,8,7,6,5,4"}) {
    const json one = Call({"score", "--model", model_, "--ids", ids, "--json"}).Json();
    for (const json& position : one.at("positions")) alone.push_back(position);
  }
  EXPECT_EQ(root.at("positions"), alone);
}

TEST_F(CliTest, CompanionsOfABatchChangeNoBit) {
  WriteFile(dir_ / "others", "5,6,7,8,9\n1\n100,101,102\n");
  const json alone = Score().Json();
  const json beside = Call({"score", "--model", model_, "--ids", "1,2,3", "--batch-with", dir_ / "others", "--chunk", "2", "--threads", "1",
                            "--loader", "mmap", "--json"})
                          .Json();
  EXPECT_EQ(alone["logits_xxh3"], beside["logits_xxh3"]);
  EXPECT_EQ(alone["positions"], beside["positions"]);
}

TEST_F(CliTest, CompanionsOfAGenerationChangeNoBitAndAreNotAnswered) {
  WriteFile(dir_ / "others", "5,6,7,8,9\n1\n100,101,102\n");
  std::vector<std::string> call = {"run",          "--model", model_,         "--prompt",      "hello",
                                   "--max-tokens", "12",      "--ignore-eos", "--hash-logits", "--json"};
  const json alone = Call(call).Json();
  call.insert(call.end(), {"--batch-with", dir_ / "others"});
  const json beside = Call(call).Json();
  for (const char* field : {"text", "token_ids", "logits_xxh3", "prompt_tokens"}) EXPECT_EQ(alone[field], beside[field]) << field;
  EXPECT_FALSE(beside.contains("results"));
  std::string lines;
  for (int i = 0; i < 16; ++i) lines += "1\n";
  WriteFile(dir_ / "others", lines);
  ExpectRefused(Call(call), 2, "has more than 15 lines");
}

TEST_F(CliTest, BenchNamesTheLimitOfEachFigure) {
  const std::vector<std::string> call = {"bench", "--model", model_, "--rounds", "8", "--prompt", "16", "--position", "8", "--json"};
  const auto limits = [&](std::vector<std::string> more) {
    std::vector<std::string> whole = call;
    whole.insert(whole.end(), more.begin(), more.end());
    const json root = Call(whole).Json();
    EXPECT_GT(root["batch_cost"].get<double>(), 0);
    std::map<std::string, std::string> by_figure;
    for (const json& row : root["rows"]) {
      EXPECT_GT(row["value"].get<double>(), 0) << row;
      EXPECT_NEAR(row["ratio"].get<double>(), row["value"].get<double>() / row["limit"].get<double>(), 1e-9) << row;
      by_figure[row["figure"]] = row["limited_by"];
    }
    return by_figure;
  };
  using ::testing::Pair;
  using ::testing::UnorderedElementsAre;
  EXPECT_THAT(limits({}), UnorderedElementsAre(Pair("load", "disk"), Pair("decode", "memory"), Pair("decode, batch of 4", "memory"),
                                               Pair("prefill of 16", "dot products")));
  EXPECT_THAT(limits({"--resident", "0%"}),
              UnorderedElementsAre(Pair("decode", "disk"), Pair("decode, batch of 4", "disk"), Pair("prefill of 16", "disk")));
  EXPECT_THAT(limits({"--cached", "40", "--resident", "0%"}),
              UnorderedElementsAre(Pair("decode", "disk"), Pair("decode, batch of 4", "disk"), Pair("prefill of 16 behind 40", "disk")));
}

TEST_F(CliTest, TokenizeNeedsOnlyTheTokenizersFiles) {
  std::filesystem::create_directory(dir_ / "tok");
  std::filesystem::copy(model_ + "/tokenizer.json", dir_ / "tok/tokenizer.json");
  EXPECT_EQ(Call({"tokenize", "--model", dir_ / "tok", "--json"}, "hi").Json()["ids"], json({'h', 'i'}));
  EXPECT_EQ(Call({"tokenize", "--model", dir_ / "tok", "--no-special", "--jsonl"}, "{\"text\": \"a\"}\n{\"text\": \"bc\"}\n").out,
            "{\"ids\":[97]}\n{\"ids\":[98,99]}\n");
}

TEST_F(CliTest, TemplateNeedsOnlyTheFileWithTheTemplate) {
  std::filesystem::create_directory(dir_ / "chat");
  WriteFile(dir_ / "chat/tokenizer_config.json", R"({"bos_token": "<s>", "chat_template": "{{ bos_token ~ x }}"})");
  EXPECT_EQ(Call({"template", "--model", dir_ / "chat", "--json"}, "{\"vars\": {\"x\": 1}}").Json(), json({{"text", "<s>1"}}));
  WriteFile(dir_ / "chat/chat_template.jinja", "{{ x }}!");
  EXPECT_EQ(Call({"template", "--model", dir_ / "chat", "--jsonl"}, "{\"vars\": {\"x\": 1}}\n{}\n").out,
            "{\"text\":\"1!\"}\n{\"text\":\"!\"}\n");
  ExpectRefused(Call({"template", "--model", dir_ / "chat", "--json"}, "{\"template\": \"{{ x.y }}\"}"), 2, "\"x\" is undefined");
}

TEST_F(CliTest, QuantizedCheckpointRunsAndStaysClose) {
  MakeModelOptions wide;
  wide.config.hidden_size = 128;
  wide.config.intermediate_size = 256;
  ASSERT_TRUE(MakeModel(wide, dir_ / "wide").ok());
  ASSERT_EQ(Call({"quantize", "--model", dir_ / "wide", "--out", dir_ / "q8", "--bits", "8"}).exit_code, 0);
  const json dense = Call({"score", "--model", dir_ / "wide", "--ids", "1,2,3,4,5,6", "--json"}).Json();
  const json packed = Call({"score", "--model", dir_ / "q8", "--ids", "1,2,3,4,5,6", "--json"}).Json();
  ASSERT_TRUE(packed.contains("perplexity"));
  EXPECT_NEAR(packed["perplexity"].get<double>() / dense["perplexity"].get<double>(), 1.0, 0.02);
  EXPECT_NE(packed["logits_xxh3"], dense["logits_xxh3"]);
}

TEST_F(CliTest, CtrlCEndsTheGenerationAndPrintsTheSummary) {
  Lime lime({"run", "--model", kFables, "--prompt", "Once upon a time", "--max-tokens", "480", "--ignore-eos", "--threads", "1"});
  ASSERT_TRUE(lime.AwaitOut("Once upon a time")) << lime.err();
  kill(lime.pid(), SIGINT);
  const Answer answer = lime.Wait();
  EXPECT_EQ(answer.exit_code, 130) << answer.err;
  EXPECT_NE(answer.out, "");
  EXPECT_THAT(answer.err, HasSubstr("(interrupted)"));
  EXPECT_THAT(answer.err, HasSubstr("memory"));
  EXPECT_THAT(answer.err, HasSubstr("lime: interrupted after "));
}

TEST_F(CliTest, AMappedFileThatIsTruncatedEndsTheRunWithItsName) {
  const std::string model = dir_ / "copy";
  std::filesystem::copy(kFables, model, std::filesystem::copy_options::recursive);
  Lime lime({"run", "--model", model, "--loader", "mmap", "--prompt", "Once upon a time", "--max-tokens", "480", "--ignore-eos",
             "--threads", "1"});
  for (int i = 0; i < 30'000 && lime.out().size() <= 20; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::filesystem::resize_file(model + "/model.safetensors", 0);
  const Answer answer = lime.Wait();
  EXPECT_EQ(answer.exit_code, 1) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("model.safetensors: cannot be read any more"));
  EXPECT_EQ(std::ranges::count(answer.err, '\n'), 1) << answer.err;
}

TEST_F(CliTest, PromptsOfAFileEndBeforeTheirCarriageReturn) {
  WriteFile(dir_ / "prompts", "hello\r\nhello\n");
  const json results =
      Call({"run", "--model", model_, "--prompts-file", dir_ / "prompts", "--max-tokens", "1", "--json"}).Json()["results"];
  ASSERT_EQ(results.size(), 2u);
  EXPECT_EQ(results[0]["prompt_tokens"], 5);
  EXPECT_EQ(results[1]["prompt_tokens"], 5);
}

TEST_F(CliTest, ADamagedProfileIsMeasuredAnew) {
  TempDir cache;
  std::filesystem::create_directory(cache / "lime");
  WriteFile(cache / "lime/profile.json", "{\"threads\": \"two\"}");
  setenv("XDG_CACHE_HOME", (cache / "").c_str(), 1);
  const Answer answer = Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "1", "--json"});
  unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(answer.exit_code, 0) << answer.err;
}

TEST_F(CliTest, AProfileIsMeasuredOnceAndPredictsFromThenOn) {
  const std::string file = dir_ / "frozen.json";
  const Answer measured = Call({"profile", "--model", model_, "--seconds", "0.2", "--out", file, "--json"});
  ASSERT_EQ(measured.exit_code, 0) << measured.err;
  EXPECT_EQ(measured.Json()["models"].size(), 1u);
  EXPECT_TRUE(measured.Json()["disk"].empty()) << "a model of a few KB says nothing of a disk";
  const Answer run =
      Call({"run", "--model", model_, "--profile", file, "--prompt", "hello", "--max-tokens", "8", "--ignore-eos", "--json"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const json prediction = run.Json()["prediction"];
  EXPECT_GT(prediction["predicted_ms"], 0);
  EXPECT_EQ(prediction["predicted_ms"], run.Json()["predicted_ms_per_token"]);
  EXPECT_EQ(prediction["why"].is_null(), prediction["cause"] == "none");
}

}  // namespace
}  // namespace lime
