// The command line as a user meets it: answers, JSON fields, exit codes, one clear sentence for
// each bad input.

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <regex>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/stores/block_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/bytes.h"
#include "tests/cases.h"
#include "tests/integration/models.h"
#include "tests/integration/programs/lime_process.h"

namespace lime {
namespace {

const std::string kFables = LIME_SOURCE_DIR "/models/lime-fables";

using nlohmann::json;
using ::testing::HasSubstr;

class CliTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MakeModel(options_, model_).ok()); }

  // Replaces one tensor's bytes, or the header, of the model's file.
  void Patch(const std::function<void(std::string& header, std::string& data)>& change) {
    const std::string path = model_ + "/model.safetensors", file = Slurp(path);
    uint64_t size = 0;
    std::memcpy(&size, file.data(), 8);
    std::string header = file.substr(8, size), data = file.substr(8 + size);
    change(header, data);
    size = header.size();
    WriteFile(path, std::string(reinterpret_cast<char*>(&size), 8) + header + data);
  }

  Answer Score() { return Call({"score", "--model", model_, "--ids", "1,2,3", "--json"}); }

  MakeModelOptions options_;
  TempDir dir_;
  const std::string model_ = dir_ / "model";
};

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

TEST_F(CliTest, FlagsThatWouldDoNothingAreRefused) {
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "0"}), 2, "--max-tokens 0 is less than 1");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--plan", "p.json"}), 2, "--plan is for --cluster");
  for (const char* flag : {"--no-kv-lending", "--no-remote-attention", "--no-memory-planner", "--no-replan"})
    ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", flag}), 2, absl::StrCat(flag, " is for --cluster"));
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--kv-tokens", "64"}), 2, "--kv-tokens is for --cluster or --kv grow");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--online", "paper"}), 2, "--online is for --cluster");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--token-times"}), 2, "--token-times is a field of the answer of --json");
  for (const char* flag : {"--patience", "--give-up"})
    ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", flag, "5"}), 2, absl::StrCat("run: ", flag, " is for --cluster, and"));
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--insecure"}), 2, "--insecure is for --cluster");
  ExpectRefused(Call({"profile", "--link-seconds", "1"}), 2, "--link-seconds is for --cluster");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--overwrite"}), 2, "--overwrite is for --trace");
  WriteFile(dir_ / "c.toml", "[[device]]\nname = \"a\"\naddress = \"127.0.0.1:1\"\n");
  for (const char* flag : {"--threads", "--chunk"}) {
    ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--cluster", dir_ / "c.toml", flag, "2"}), 2,
                  absl::StrCat(flag, " is for this machine alone, and changes nothing with --cluster"));
  }
  ExpectRefused(Call({"profile", "--cluster", dir_ / "c.toml", "--memory", "1GiB"}), 2, "--memory is for this machine alone");
  ExpectRefused(Call({"push", "--cluster", dir_ / "c.toml", "--all", "--context", "9"}), 2, "--context is for planning now");
  ExpectRefused(Call({"bench", "--model", model_, "--context", "9"}), 2, "unknown flag --context");
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

TEST_F(CliTest, AnInterruptedPrepareSaysWhetherItGoesOn) {
  MakeModelOptions large;
  large.config.hidden_size = 1024;
  large.config.intermediate_size = 4096;
  large.config.num_layers = 16;
  ASSERT_TRUE(MakeModel(large, dir_ / "large").ok());
  Lime lime({"prepare", dir_ / "large", "--out", dir_ / "store"});
  for (int i = 0; i < 30'000 && !std::filesystem::exists(dir_ / "store/layer_0000.safetensors"); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  kill(lime.pid(), SIGINT);
  const Answer answer = lime.Wait();
  if (answer.exit_code == 0) return;  // it was done
  EXPECT_EQ(answer.exit_code, 130) << answer.err;
  EXPECT_THAT(answer.err, HasSubstr("weight files written; run the same command to continue"));
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

TEST_F(CliTest, AProfileThatIsNoneIsRefusedByName) {
  ExpectRefused(Call({"run", "--model", model_, "--profile", dir_ / "none.json", "--prompt", "x"}), 2, "none.json");
  WriteFile(dir_ / "wrong.json", R"({"cpu": "x", "threads": -3})");
  ExpectRefused(Call({"run", "--model", model_, "--profile", dir_ / "wrong.json", "--prompt", "x"}), 2, "\"threads\" = -3");
  WriteFile(dir_ / "other.json", R"({"cpu": "another", "threads": 7, "read_bytes_per_second": 1e9})");
  ExpectRefused(Call({"profile", "--profile", dir_ / "other.json"}), 2, "is a profile of another with 7 threads");
  ExpectRefused(Call({"profile", "--seconds", "-1"}), 2, "--seconds -1 must be more than 0 and at most 600");
  ExpectRefused(Call({"profile", "--memory", "lots"}), 2, "--memory");
}

TEST_F(CliTest, CallsThatAreWrongExitWithTwo) {
  EXPECT_EQ(Call({}).exit_code, 2);
  EXPECT_EQ(Call({"fly"}).exit_code, 2);
  EXPECT_EQ(Call({"run"}).exit_code, 2);
  EXPECT_EQ(Call({"--help"}).exit_code, 0);
  ExpectRefused(Call({"run", "--model", model_}), 2, "no prompt; give --prompt");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--temperature", "-1"}), 2, "temperature");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--top-p", "0"}), 2, "top");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--memory", "lots"}), 2, "is not a size");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--loader", "tape"}), 2,
                "--loader tape is unknown; use auto, read or mmap");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--kv", "shrink"}), 2, "--kv shrink is unknown; use reserve or grow");
  EXPECT_TRUE(Call({"score", "--model", model_, "--ids", "5", "--json"}).Json().at("perplexity").is_null()) << "nothing was scored";
  ExpectRefused(Call({"score", "--model", model_, "--ids", "1,x"}), 2, "\"x\" is not an id below 320");
  ExpectRefused(Call({"score", "--model", model_, "--ids", "320"}), 2, "is not an id below 320");
  ExpectRefused(Call({"score", "--model", model_}), 2, "give either --ids");
  ExpectRefused(Call({"quantize", "--model", model_, "--out", dir_ / "q", "--bits", "5"}), 2, "--bits 5 is not one of");
  ExpectRefused(Call({"bench", "--model", model_, "--cluster", "c.toml"}), 2, "unknown flag --cluster");
  ExpectRefused(Call({"score", "--model", model_, "--ids", "1,2", "--plan", "p.json"}), 2, "--plan is for --cluster");
}

TEST_F(CliTest, WhatCannotFitIsRefusedBeforeItStarts) {
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "hello", "--max-tokens", "1000"}), 1,
                "5 prompt + 1000 new = 1005 positions, but the model's context is 512");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "hello", "--max-tokens", "9223372036854775807"}), 1,
                "5 prompt + 9223372036854775807 new = 9223372036854775812 positions, but the model's context is 512");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "hello", "--max-tokens", "20", "--context", "10"}), 1,
                "but the --context is 10; shorten the prompt, lower --max-tokens, or raise --context");
  for (const std::vector<std::string>& words : {std::vector<std::string>{"run", "--prompt", "x"}, {"score", "--ids", "1,2"}}) {
    std::vector<std::string> call = words;
    call.insert(call.end(), {"--model", model_, "--context", "99999999"});
    ExpectRefused(Call(call), 2, "--context 99999999 is outside 1 to the 512 positions of the model");
  }
  ExpectRefused(Call({"run", "--model", model_, "--prompt", std::string(100000, 'x')}), 1, "positions, but the model's context is 512");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--memory", "1MiB"}), 1, "--memory allows 1.00 MiB");
}

TEST_F(CliTest, AMegabyteOfPromptIsRefusedWithTheNumbers) {
  std::string line(1 << 20, 'x');
  WriteFile(dir_ / "prompts", line + "\n");
  ExpectRefused(Call({"run", "--model", model_, "--prompts-file", dir_ / "prompts"}), 1, "1048576 prompt + ");
}

TEST_F(CliTest, BrokenUtf8IsAnOrdinaryPrompt) {
  const Answer answer = Call({"run", "--model", model_, "--prompt", "a\xff\xc3(\xe2\x82", "--max-tokens", "2", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_FALSE(answer.Json().is_discarded());
}

TEST_F(CliTest, ADeepOrHugeGenerationConfigIsRefused) {
  const auto run = [&] { return Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "1"}); };
  WriteFile(model_ + "/generation_config.json", "{\"eos_token_id\": " + std::string(100000, '['));
  ExpectRefused(run(), 1, "generation_config.json: nests more than 64 levels");
  WriteFile(model_ + "/generation_config.json", std::string((16 << 20) + 1, ' '));
  ExpectRefused(run(), 1, "generation_config.json: has 16777217 bytes, more than the limit of 16777216");
}

TEST_F(CliTest, MissingFoldersAndFilesAreNamed) {
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--trace", dir_ / "none/trace.json"}), 2, "a folder that does not exist");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--trace", model_}), 2, "is a folder");
  ExpectRefused(Call({"run", "--model", dir_ / "nowhere", "--prompt", "x"}), 2, "nowhere");
  std::filesystem::remove(model_ + "/model.safetensors");
  ExpectRefused(Score(), 1, "model.safetensors");
  std::filesystem::remove(model_ + "/config.json");
  ExpectRefused(Score(), 2, "holds no config.json");
}

TEST_F(CliTest, ATruncatedFileIsNamed) {
  std::filesystem::resize_file(model_ + "/model.safetensors", std::filesystem::file_size(model_ + "/model.safetensors") - 100);
  ExpectRefused(Score(), 1, "model.safetensors");
  std::filesystem::resize_file(model_ + "/model.safetensors", 5);
  ExpectRefused(Score(), 1, "model.safetensors");
}

TEST_F(CliTest, LyingHeadersAreNamed) {
  Patch([](std::string& header, std::string&) { header.replace(header.find("BF16"), 4, "BF17"); });
  ExpectRefused(Score(), 1, "BF17");
}

TEST_F(CliTest, OverlappingTensorsAreNamed) {
  Patch([](std::string& header, std::string&) {
    json root = json::parse(header);
    root["model.norm.weight"]["data_offsets"] = root["model.layers.0.input_layernorm.weight"]["data_offsets"];
    header = root.dump();
  });
  ExpectRefused(Score(), 1, "model.safetensors");
}

TEST_F(CliTest, OverflowingShapesAreNamed) {
  Patch([](std::string& header, std::string&) {
    json root = json::parse(header);
    root["model.norm.weight"]["shape"] = {4294967296ull, 4294967296ull, 2};
    header = root.dump();
  });
  ExpectRefused(Score(), 1, "model.norm.weight");
}

TEST_F(CliTest, ConfigAndTensorsThatDisagreeAreNamed) {
  json config = ReadJson(model_ + "/config.json");
  config["intermediate_size"] = 161;
  WriteFile(model_ + "/config.json", config.dump());
  ExpectRefused(Score(), 1, "config.json implies [161, 64]");
}

TEST_F(CliTest, AnUnknownArchitectureIsNamedBesideWhatIsSupported) {
  json config = ReadJson(model_ + "/config.json");
  config["architectures"] = {"GPT5ForCausalLM"};
  WriteFile(model_ + "/config.json", config.dump());
  ExpectRefused(Score(), 1, "architecture \"GPT5ForCausalLM\" is not supported; LlamaForCausalLM, ");
}

TEST_F(CliTest, MissingShardsAreNamed) {
  options_.shards = 3;
  ASSERT_TRUE(MakeModel(options_, dir_ / "sharded").ok());
  std::string shard;
  for (const auto& entry : std::filesystem::directory_iterator(dir_ / "sharded")) {
    if (entry.path().filename().string().find("00002") != std::string::npos) shard = entry.path().filename();
  }
  ASSERT_NE(shard, "");
  EXPECT_EQ(Call({"score", "--model", dir_ / "sharded", "--ids", "1,2"}).exit_code, 0);
  std::filesystem::remove(dir_ / ("sharded/" + shard));
  ExpectRefused(Call({"score", "--model", dir_ / "sharded", "--ids", "1,2"}), 1, shard);
}

// ---- lime prepare ----

TEST_F(CliTest, APreparedStoreHasTheBitsOfTheModelWithEitherLoader) {
  for (const std::string family : {"llama", "mistral", "qwen2", "qwen3", "opt", "qwen3_5"}) {
    for (const DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
      for (const int bits : {0, 4}) {
        SCOPED_TRACE(absl::StrCat("family ", family, " dtype ", static_cast<int>(dtype), " bits ", bits));
        TempDir dir;
        MakeModelOptions options{.dtype = dtype};
        options.config.family = family;
        if (family == "qwen3_5") options.config.num_layers = 5;
        options.config.tie_embeddings = dtype != DType::kF16;
        if (bits != 0) options.config.quantization = Quantization{.bits = bits, .group_size = 32};
        ASSERT_TRUE(MakeModel(options, dir / "model").ok());
        ASSERT_TRUE(PrepareBlockStore(dir / "model", dir / "store").ok());
        const std::vector<int32_t> ids = {1, 2, 3, 250, 7};
        const uint64_t hash = LogitsHashOf(dir / "model", {}, ids);
        EXPECT_EQ(LogitsHashOf(dir / "store", {.loader = LoaderKind::kRead}, ids), hash);
        EXPECT_EQ(LogitsHashOf(dir / "store", {.loader = LoaderKind::kMmap}, ids), hash);
      }
    }
  }
}

TEST_F(CliTest, PrepareAnswersWithTheFieldsOthersRelyOnAndTheStoreRuns) {
  const std::string shipped = std::string(LIME_SOURCE_DIR) + "/models/lime-fables", store = dir_ / "store";
  const Answer answer = Call({"prepare", shipped, "--out", store, "--verify", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_EQ(answer.err, "") << "a progress line in a pipe";
  const json root = answer.Json();
  EXPECT_EQ(root["layers"], ReadJson(shipped + "/config.json")["num_hidden_layers"]);
  EXPECT_GT(root["bytes"].get<int64_t>(), std::filesystem::file_size(shipped + "/model.safetensors"));
  EXPECT_TRUE(root["verified"].get<bool>());
  EXPECT_TRUE(root.contains("files") && root.contains("seconds"));
  const auto run = [&](const std::string& model) {
    return Call({"run", "--model", model, "--prompt", "The fox", "--max-tokens", "12", "--ignore-eos", "--hash-logits", "--json"}).Json();
  };
  const json original = run(shipped), prepared = run(store);
  EXPECT_EQ(original["logits_xxh3"].get<std::string>().size(), 16u);
  EXPECT_EQ(original["logits_xxh3"], prepared["logits_xxh3"]);
  EXPECT_EQ(original["text"], prepared["text"]);
  const Answer again = Call({"prepare", shipped, "--out", store});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("already complete"));
}

TEST_F(CliTest, PrepareWritesBundlesOfAReluModelAndItsStoreRunsTheSame) {
  MakeModelOptions options;
  options.config.activation = Activation::kRelu;
  ASSERT_TRUE(MakeModel(options, dir_ / "relu").ok());
  const std::string model = dir_ / "relu", store = dir_ / "store";
  ExpectRefused(Call({"prepare", model, "--bundles", "--verify"}), 2, "--bundles needs --out STORE");
  ExpectRefused(Call({"prepare", model_, "--out", store, "--bundles"}), 2, "its MLPs use SiLU");
  EXPECT_FALSE(std::filesystem::exists(store));
  const Answer first = Call({"prepare", model, "--out", store});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.out, Not(HasSubstr("bundles")));
  const Answer answer = Call({"prepare", model, "--out", store, "--bundles", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_EQ(answer.Json()["bundle_layers"], 2);
  EXPECT_EQ(answer.Json()["without_bundles"], json::array());
  EXPECT_EQ(answer.Json()["written_bytes"], answer.Json()["bundle_bytes"]) << "dense files were there";
  const Answer verified = Call({"prepare", store, "--verify"});
  EXPECT_EQ(verified.exit_code, 0) << verified.err;
  EXPECT_THAT(verified.out, HasSubstr("bundles: 2 layers, " + FormatBytes(answer.Json()["bundle_bytes"].get<Bytes>()) + "\n"));
  EXPECT_EQ(LogitsHashOf(store, {}, {1, 2, 3}), LogitsHashOf(model, {}, {1, 2, 3}));
}

TEST_F(CliTest, PrepareRefusesInOneSentence) {
  ExpectRefused(Call({"prepare", model_}), 2, "give --out STORE");
  ExpectRefused(Call({"prepare", model_, "--out", model_}), 2, "is the folder of the model itself");
  ExpectRefused(Call({"prepare", model_, "--verify"}), 1, "is not a block store");
  const std::string store = dir_ / "store";
  ASSERT_EQ(Call({"prepare", model_, "--out", store}).exit_code, 0);
  std::string bytes = Slurp(store + "/layer_0001.safetensors");
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  WriteFile(store + "/layer_0001.safetensors", bytes);
  ExpectRefused(Call({"prepare", store, "--verify"}), 1, "layer_0001.safetensors: block mlp 1 differs from its checksum");
  std::filesystem::resize_file(store + "/layer_0001.safetensors", bytes.size() - 1);
  ExpectRefused(Call({"score", "--model", store, "--ids", "1,2"}), 1, "layer_0001.safetensors");
}

// A model of 60 MB, killed at ever later moments: what is left is never taken for a checkpoint, and
// the last call completes it.
TEST_F(CliTest, PrepareThatIsKilledOrInterruptedGoesOn) {
  MakeModelOptions large;
  large.config = {.num_layers = 24,
                  .hidden_size = 512,
                  .num_heads = 8,
                  .num_kv_heads = 2,
                  .intermediate_size = 1024,
                  .vocab_size = 1000,
                  .max_positions = 512};
  ASSERT_TRUE(MakeModel(large, dir_ / "large").ok());
  const std::string store = dir_ / "store";
  for (int i = 0; i < 12 && !std::filesystem::exists(store + "/lime_store.json"); ++i) {
    Lime lime({"prepare", dir_ / "large", "--out", store});
    std::this_thread::sleep_for(std::chrono::milliseconds(5 + 10 * i));
    kill(lime.pid(), i % 2 == 0 ? SIGKILL : SIGINT);
    const Answer answer = lime.Wait();
    if (std::filesystem::exists(store + "/lime_store.json")) break;
    EXPECT_NE(answer.exit_code, 0);
    if (std::filesystem::exists(store)) {
      EXPECT_NE(Call({"score", "--model", store, "--ids", "1,2"}).exit_code, 0);
    }
  }
  const Answer prepared = Call({"prepare", dir_ / "large", "--out", store, "--verify"});
  ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  const auto score = [&](const std::string& model) { return Call({"score", "--model", model, "--ids", "1,2,3", "--json"}).Json(); };
  EXPECT_EQ(score(store)["logits_xxh3"], score(dir_ / "large")["logits_xxh3"]);
}

TEST_F(CliTest, NanWeightsAreReportedAndNotSampledFrom) {
  Patch([](std::string& header, std::string& data) {
    const json range = json::parse(header)["model.norm.weight"]["data_offsets"];
    for (size_t i = range[0]; i < range[1]; i += 2) data[i] = '\xc0', data[i + 1] = '\x7f';
  });
  ExpectRefused(Score(), 1, "NaN");
  const Answer run = Call({"run", "--model", model_, "--prompt", "x", "--json"});
  ExpectRefused(run, 1, "NaN");
}

}  // namespace
}  // namespace lime
