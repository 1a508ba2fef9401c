// The command line answers each bad input with one clear sentence.

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/integration/models.h"
#include "tests/integration/programs/cli_fixture.h"

namespace lime {
namespace {

using nlohmann::json;

class CliRefusalsTest : public CliTest {};

TEST_F(CliRefusalsTest, FlagsThatWouldDoNothingAreRefused) {
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "0"}), 2, "--max-tokens 0 is less than 1");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--plan", "p.json"}), 2, "--plan is for --cluster");
  for (const char* flag : {"--no-kv-lending", "--no-remote-attention", "--no-memory-planner", "--no-replan"})
    ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", flag}), 2, absl::StrCat(flag, " is for --cluster"));
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--kv-tokens", "64"}), 2, "--kv-tokens is for --cluster or --kv grow");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--online", "paper"}), 2, "--online is for --cluster");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--token-times"}), 2, "--token-times is a field of the answer of --json");
  for (const char* flag : {"--patience", "--give-up"})
    ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", flag, "5"}), 2, absl::StrCat("run: ", flag, " is for --cluster, and"));
  for (const std::string& sparsity : {"off", "auto"}) {
    for (const char* flag : {"--neurons", "--window"})
      ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--sparsity", sparsity, flag, "5"}), 2,
                    absl::StrCat("run: ", flag, " is for --sparsity exact or --sparsity predicted, and changes nothing without it"));
  }
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--neurons", "5"}), 2, "--neurons is for --sparsity exact");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--sparsity", "exact", "--kv", "grow", "--kv-tokens", "64"}), 2,
                "--kv-tokens is for KV that grows, and changes nothing with --sparsity exact");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--sparsity", "exact", "--kv-dir", dir_ / "kv"}), 2,
                "--kv-dir is for KV on the disk, and changes nothing with --sparsity exact");
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

TEST_F(CliRefusalsTest, AProfileThatIsNoneIsRefusedByName) {
  ExpectRefused(Call({"run", "--model", model_, "--profile", dir_ / "none.json", "--prompt", "x"}), 2, "none.json");
  WriteFile(dir_ / "wrong.json", R"({"cpu": "x", "threads": -3})");
  ExpectRefused(Call({"run", "--model", model_, "--profile", dir_ / "wrong.json", "--prompt", "x"}), 2, "\"threads\" = -3");
  WriteFile(dir_ / "other.json", R"({"cpu": "another", "threads": 7, "read_bytes_per_second": 1e9})");
  ExpectRefused(Call({"profile", "--profile", dir_ / "other.json"}), 2, "is a profile of another with 7 threads");
  ExpectRefused(Call({"profile", "--seconds", "-1"}), 2, "--seconds -1 must be more than 0 and at most 600");
  ExpectRefused(Call({"profile", "--memory", "lots"}), 2, "--memory");
}

TEST_F(CliRefusalsTest, FilesOfIdsNameTheLineThatIsWrong) {
  const auto score = [this](const std::string& lines) {
    WriteFile(dir_ / "ids", lines);
    return Call({"score", "--model", model_, "--ids-file", dir_ / "ids", "--context", "3"});
  };
  ExpectRefused(score(""), 2, "ids is empty");
  ExpectRefused(score("1,2\n\n3"), 2, "ids line 2: \"\" is not an id below 320");
  ExpectRefused(score("1,2\n3,-4"), 2, "ids line 2: -4 is not an id below 320");
  ExpectRefused(score("1,2\n3,320"), 2, "ids line 2: 320 is not an id below 320");
  ExpectRefused(score(std::string("1\0", 2)), 2, "ids line 1: \"1?\" is not an id below 320; write ids like 1,2,3");
  const Answer longest = score(std::string(100'000, '7'));
  ExpectRefused(longest, 2, "is not an id below 320; write ids like 1,2,3");
  EXPECT_LT(longest.err.size(), 1000);
  ExpectRefused(score("1,2,3\n1,2,3,4"), 1, "ids line 2 holds 4 ids, but the context is 3; score fewer");
  ExpectRefused(score("1,2\n\xff"), 2, "UTF-8");
  ExpectRefused(Call({"score", "--model", model_, "--ids-file", dir_ / "none"}), 2, "cannot be read");
}

TEST_F(CliRefusalsTest, PositionsBeforeAPromptThatCannotBeMeasuredAreRefused) {
  for (const char* cached : {"-1", "503"})
    ExpectRefused(Call({"bench", "--model", model_, "--prompt", "10", "--cached", cached}), 2,
                  absl::StrCat("--cached ", cached, " is outside 0 to 502: the model has 512 positions, and --prompt takes 10"));
  options_.config.family = "qwen3_5", options_.config.full_attention_interval = 2;
  ASSERT_TRUE(MakeModel(options_, dir_ / "linear").ok());
  ExpectRefused(Call({"bench", "--model", dir_ / "linear", "--prompt", "10", "--cached", "8"}), 2,
                "--cached is not for models with linear attention");
}

TEST_F(CliRefusalsTest, CallsThatAreWrongExitWithTwo) {
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
  ExpectRefused(Call({"score", "--model", model_, "--ids", "1,x"}), 2, "--ids: x is not an id below 320");
  ExpectRefused(Call({"score", "--model", model_, "--ids", "320"}), 2, "is not an id below 320");
  ExpectRefused(Call({"score", "--model", model_}), 2, "give one of --ids");
  ExpectRefused(Call({"score", "--model", model_, "--ids", "1", "--ids-file", "f"}), 2, "give one of --ids");
  ExpectRefused(Call({"quantize", "--model", model_, "--out", dir_ / "q", "--bits", "5"}), 2, "--bits 5 is not one of");
  ExpectRefused(Call({"bench", "--model", model_, "--cluster", "c.toml"}), 2, "unknown flag --cluster");
  ExpectRefused(Call({"score", "--model", model_, "--ids", "1,2", "--plan", "p.json"}), 2, "--plan is for --cluster");
}

TEST_F(CliRefusalsTest, WhatCannotFitIsRefusedBeforeItStarts) {
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

TEST_F(CliRefusalsTest, AMegabyteOfPromptIsRefusedWithTheNumbers) {
  std::string line(1 << 20, 'x');
  WriteFile(dir_ / "prompts", line + "\n");
  ExpectRefused(Call({"run", "--model", model_, "--prompts-file", dir_ / "prompts"}), 1, "1048576 prompt + ");
}

TEST_F(CliRefusalsTest, BrokenUtf8IsAnOrdinaryPrompt) {
  const Answer answer = Call({"run", "--model", model_, "--prompt", "a\xff\xc3(\xe2\x82", "--max-tokens", "2", "--json"});
  ASSERT_EQ(answer.exit_code, 0) << answer.err;
  EXPECT_FALSE(answer.Json().is_discarded());
}

TEST_F(CliRefusalsTest, ADeepOrHugeGenerationConfigIsRefused) {
  const auto run = [&] { return Call({"run", "--model", model_, "--prompt", "x", "--max-tokens", "1"}); };
  WriteFile(model_ + "/generation_config.json", "{\"eos_token_id\": " + std::string(100000, '['));
  ExpectRefused(run(), 1, "generation_config.json: nests more than 64 levels");
  WriteFile(model_ + "/generation_config.json", std::string((16 << 20) + 1, ' '));
  ExpectRefused(run(), 1, "generation_config.json: has 16777217 bytes, more than the limit of 16777216");
}

TEST_F(CliRefusalsTest, MissingFoldersAndFilesAreNamed) {
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--trace", dir_ / "none/trace.json"}), 2, "a folder that does not exist");
  ExpectRefused(Call({"run", "--model", model_, "--prompt", "x", "--trace", model_}), 2, "is a folder");
  ExpectRefused(Call({"run", "--model", dir_ / "nowhere", "--prompt", "x"}), 2, "nowhere");
  std::filesystem::remove(model_ + "/model.safetensors");
  ExpectRefused(Score(), 1, "model.safetensors");
  std::filesystem::remove(model_ + "/config.json");
  ExpectRefused(Score(), 2, "holds no config.json");
}

TEST_F(CliRefusalsTest, ATruncatedFileIsNamed) {
  std::filesystem::resize_file(model_ + "/model.safetensors", std::filesystem::file_size(model_ + "/model.safetensors") - 100);
  ExpectRefused(Score(), 1, "model.safetensors");
  std::filesystem::resize_file(model_ + "/model.safetensors", 5);
  ExpectRefused(Score(), 1, "model.safetensors");
}

TEST_F(CliRefusalsTest, LyingHeadersAreNamed) {
  Patch([](std::string& header, std::string&) { header.replace(header.find("BF16"), 4, "BF17"); });
  ExpectRefused(Score(), 1, "BF17");
}

TEST_F(CliRefusalsTest, OverlappingTensorsAreNamed) {
  Patch([](std::string& header, std::string&) {
    json root = json::parse(header);
    root["model.norm.weight"]["data_offsets"] = root["model.layers.0.input_layernorm.weight"]["data_offsets"];
    header = root.dump();
  });
  ExpectRefused(Score(), 1, "model.safetensors");
}

TEST_F(CliRefusalsTest, OverflowingShapesAreNamed) {
  Patch([](std::string& header, std::string&) {
    json root = json::parse(header);
    root["model.norm.weight"]["shape"] = {4294967296ull, 4294967296ull, 2};
    header = root.dump();
  });
  ExpectRefused(Score(), 1, "model.norm.weight");
}

TEST_F(CliRefusalsTest, ConfigAndTensorsThatDisagreeAreNamed) {
  json config = ReadJson(model_ + "/config.json");
  config["intermediate_size"] = 161;
  WriteFile(model_ + "/config.json", config.dump());
  ExpectRefused(Score(), 1, "config.json implies [161, 64]");
}

TEST_F(CliRefusalsTest, AnUnknownArchitectureIsNamedBesideWhatIsSupported) {
  json config = ReadJson(model_ + "/config.json");
  config["architectures"] = {"GPT5ForCausalLM"};
  WriteFile(model_ + "/config.json", config.dump());
  ExpectRefused(Score(), 1, "architecture \"GPT5ForCausalLM\" is not supported; LlamaForCausalLM, ");
}

TEST_F(CliRefusalsTest, MissingShardsAreNamed) {
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

TEST_F(CliRefusalsTest, NanWeightsAreReportedAndNotSampledFrom) {
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
