// `lime prepare` as a user meets it.

#include <signal.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/stores/block_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/bytes.h"
#include "tests/integration/models.h"
#include "tests/integration/programs/cli_fixture.h"

namespace lime {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

class CliPrepareTest : public CliTest {};

TEST_F(CliPrepareTest, AnInterruptedPrepareSaysWhetherItGoesOn) {
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

TEST_F(CliPrepareTest, APreparedStoreHasTheBitsOfTheModelWithEitherLoader) {
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

TEST_F(CliPrepareTest, PrepareAnswersWithTheFieldsOthersRelyOnAndTheStoreRuns) {
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

TEST_F(CliPrepareTest, PrepareWritesBundlesOfAReluModelAndItsStoreRunsTheSame) {
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

TEST_F(CliPrepareTest, ADamagedFileOfBundlesIsWrittenAgainInTheOrderOfTheStore) {
  MakeModelOptions options;
  options.config.activation = Activation::kRelu;
  const std::string model = dir_ / "relu", store = dir_ / "store", other = dir_ / "other", text = dir_ / "text", file = dir_ / "c.json";
  ASSERT_TRUE(MakeModel(options, model).ok());
  std::string words;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&words, i * i, " foxes; ");
  WriteFile(text, words);
  const auto succeed = [](const std::vector<std::string>& call) {
    const Answer answer = Call(call);
    EXPECT_EQ(answer.exit_code, 0) << answer.err;
  };
  const std::string bundles = store + "/bundles_0000.safetensors", copy = store + "/calibration.json";
  succeed({"calibrate", model, "--text-file", text, "--out", file});
  ExpectRefused(Call({"prepare", model, "--out", store, "--calibration", file}), 2, "--calibration is for --bundles");
  succeed({"prepare", model, "--out", store, "--bundles", "--calibration", file});
  EXPECT_EQ(ReadJson(copy), ReadJson(file));
  const std::string whole = Slurp(bundles);
  succeed({"prepare", model, "--out", other, "--bundles"});
  EXPECT_FALSE(std::filesystem::exists(other + "/calibration.json"));
  EXPECT_TRUE(Slurp(other + "/bundles_0000.safetensors") != whole) << "the order of numbers";
  const auto repair = [&](bool is_there) {
    is_there ? std::filesystem::resize_file(bundles, whole.size() / 2) : static_cast<void>(std::filesystem::remove(bundles));
    succeed({"prepare", model, "--out", store});
    EXPECT_TRUE(Slurp(bundles) == whole) << is_there;
  };
  repair(/*is_there=*/true);
  repair(/*is_there=*/false);

  json reversed = ReadJson(file);
  for (json& layer : reversed["layers"]) {
    const auto places = layer["places"].get<std::vector<int>>();
    layer["places"] = std::vector<int>(places.rbegin(), places.rend());
  }
  const std::string second = dir_ / "d.json";
  WriteFile(second, reversed.dump());
  const std::vector<std::string> with_second = {"prepare", model, "--out", store, "--bundles", "--calibration", second};
  std::filesystem::remove(bundles);
  succeed(with_second);
  EXPECT_TRUE(Slurp(bundles) != whole) << "the file that is named orders what is written";
  EXPECT_EQ(ReadJson(copy), ReadJson(file)) << "the bundles of layer 1 are in its order";
  repair(/*is_there=*/true);
  std::filesystem::remove(bundles);
  std::filesystem::remove(store + "/bundles_0001.safetensors");
  succeed(with_second);
  EXPECT_EQ(ReadJson(copy), reversed) << "all bundles are in its order";
}

TEST_F(CliPrepareTest, PrepareRefusesInOneSentence) {
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
TEST_F(CliPrepareTest, PrepareThatIsKilledOrInterruptedGoesOn) {
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

}  // namespace
}  // namespace lime
