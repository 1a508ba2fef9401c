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

TEST_F(CliPrepareTest, ARunSaysWhetherItsMlpsAreSparseAndWhy) {
  MakeModelOptions options;
  options.config.activation = Activation::kRelu;
  const std::string model = dir_ / "relu", store = dir_ / "store", text = dir_ / "text", file = store + "/calibration.json";
  ASSERT_TRUE(MakeModel(options, model).ok());
  std::string words;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&words, i * i, " foxes; ");
  WriteFile(text, words);
  const auto run = [&](const std::string& folder, const std::string& sparsity) {
    std::vector<std::string> call = {"run", "--model", folder, "--prompt", "1 fox", "--max-tokens", "4", "--hash-logits", "--json"};
    if (!sparsity.empty()) call.insert(call.end(), {"--sparsity", sparsity});
    return Call(call);
  };
  EXPECT_THAT(run(model_, "").Json()["sparsity_why"], HasSubstr("have no ReLU"));
  EXPECT_THAT(run(model, "").Json()["sparsity_why"], HasSubstr("`lime prepare --bundles` writes them"));
  ASSERT_EQ(Call({"prepare", model, "--out", store, "--bundles"}).exit_code, 0);
  const json none = run(store, "auto").Json(), off = run(store, "off").Json(), exact = run(store, "exact").Json();
  EXPECT_EQ(none["sparsity"], "off") << "nothing is assumed of zeros";
  EXPECT_THAT(none["sparsity_why"], HasSubstr("`lime calibrate` learns them"));
  EXPECT_FALSE(off.contains("sparsity_why"));
  EXPECT_EQ(exact["sparsity"], "exact");
  EXPECT_TRUE(exact["sparse_prediction"]["sparse_io_ms_per_token"].is_null());
  EXPECT_EQ(exact["logits_xxh3"], off["logits_xxh3"]);

  ASSERT_EQ(Call({"calibrate", store, "--text-file", text}).exit_code, 0);
  const json chosen = run(store, "").Json(), known = run(store, "exact").Json();
  EXPECT_THAT(chosen["sparsity_why"], HasSubstr("ms a token predicted"));
  EXPECT_EQ(chosen["logits_xxh3"], off["logits_xxh3"]);
  const double share = known["sparse_prediction"]["sparse_active_share"];
  EXPECT_GT(share, 0);
  EXPECT_LT(share, 1);
  EXPECT_NEAR(known["sparse_active_share"], share, 0.2) << "of another text";
  EXPECT_EQ(known["logits_xxh3"], off["logits_xxh3"]);
  EXPECT_GT(known["neurons_copied"], 0);
  const Answer few = Call({"run", "--model", store, "--prompt", "1 fox", "--max-tokens", "4", "--hash-logits", "--json", "--sparsity",
                           "exact", "--neurons", "5", "--window", "3"});
  EXPECT_EQ(few.Json()["logits_xxh3"], off["logits_xxh3"]);
  EXPECT_GT(few.Json()["neurons_loaded_per_token"], known["neurons_loaded_per_token"]);

  json other = ReadJson(file);
  other["model"] = "another";
  WriteFile(file, other.dump());
  const json wrong = run(store, "").Json();
  EXPECT_EQ(wrong["sparsity"], "off");
  EXPECT_THAT(wrong["sparsity_why"], HasSubstr("calibration.json: is of another model"));
  ExpectRefused(run(store, "exact"), 2, "calibration.json: is of another model");
  const std::string whole = other.dump();
  WriteFile(file, whole.substr(0, whole.size() / 2));
  EXPECT_THAT(run(store, "").Json()["sparsity_why"], HasSubstr("`lime calibrate` writes a new one"));
  ExpectRefused(run(store, "exact"), 2, "; `lime calibrate` writes a new one");
}

// What was learned of copies goes from the calibration into the bundles, and from there into runs.
TEST_F(CliPrepareTest, BundlesGetTheCopiesThatACalibrationLearnedAndRunsDecideWithThem) {
  MakeModelOptions options;
  options.config.activation = Activation::kRelu;
  const std::string model = dir_ / "relu", store = dir_ / "store", text = dir_ / "text";
  ASSERT_TRUE(MakeModel(options, model).ok());
  std::string words;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&words, i * i, " foxes; ");
  WriteFile(text, words);
  ExpectRefused(Call({"calibrate", model, "--text-file", text, "--decider", "7"}), 2, "--decider 7 is unknown");
  const json learned = Call({"calibrate", model, "--text-file", text, "--decider", "8", "--json"}).Json();
  const auto layers = static_cast<size_t>(options.config.num_layers);
  ASSERT_EQ(learned["layers"].size(), layers);
  for (const json& layer : learned["layers"]) {
    EXPECT_EQ(layer["copy"]["bits"], 8);
    EXPECT_GT(layer["copy"]["unproven"].get<double>(), 0.9 * layer["active"][0].get<double>());
    EXPECT_LT(layer["copy"]["unproven"], 1);
  }
  const std::string frames = model + "/calibration.frames";
  EXPECT_TRUE(std::filesystem::exists(frames));
  const json prepared = Call({"prepare", model, "--out", store, "--bundles", "--verify", "--json"}).Json();
  EXPECT_EQ(prepared["decider_copies"], layers);
  EXPECT_EQ(Slurp(store + "/calibration.frames"), Slurp(frames));
  const auto run = [&](const std::vector<std::string>& more) {
    std::vector<std::string> call = {"run", "--model", store, "--prompt", "1 fox", "--max-tokens", "12", "--hash-logits", "--json"};
    call.insert(call.end(), more.begin(), more.end());
    return Call(call);
  };
  const json off = run({"--sparsity", "off"}).Json();
  for (const std::string rows : {"auto", "7"}) {
    const json dense = run({"--sparsity", "exact", "--neurons", rows, "--decider", "dense"}).Json();
    const json certified = run({"--sparsity", "exact", "--neurons", rows, "--decider", "certified"}).Json();
    const json chosen = run({"--sparsity", "exact", "--neurons", rows}).Json();
    EXPECT_EQ(dense["certified_layers"], 0);
    EXPECT_EQ(certified["certified_layers"], layers);
    EXPECT_TRUE(certified["sparse_active_share"].is_null());
    EXPECT_GE(certified["sparse_computed_share"], dense["sparse_computed_share"]);
    if (rows == "7") EXPECT_GT(certified["sparse_prediction"]["sparse_computed_share"], 0) << "the copy was measured";
    EXPECT_EQ(certified["lossless"], true);
    for (const json* answer : {&dense, &certified, &chosen}) EXPECT_EQ((*answer)["logits_xxh3"], off["logits_xxh3"]) << rows;
  }
  ExpectRefused(run({"--sparsity", "exact", "--decider", "best"}), 2, "--decider best is unknown");

  // A file that is damaged is written again with its copy.
  const std::string bundles = store + "/bundles_0000.safetensors", whole = Slurp(bundles);
  std::filesystem::resize_file(bundles, whole.size() / 2);
  ASSERT_EQ(Call({"prepare", model, "--out", store}).exit_code, 0);
  EXPECT_TRUE(Slurp(bundles) == whole);

  // Bundles without copies get them once the store is calibrated; other frames are not used.
  const std::string second = dir_ / "second";
  std::filesystem::rename(frames, model + "/other.frames");
  const Answer without = Call({"prepare", model, "--out", second, "--bundles", "--json"});
  EXPECT_EQ(without.Json()["decider_copies"], 0);
  EXPECT_THAT(without.err, HasSubstr("no copies of deciders are written: "));
  ASSERT_EQ(Call({"calibrate", second, "--text-file", text, "--decider", "6"}).exit_code, 0);
  const json with = Call({"prepare", model, "--out", second, "--bundles", "--json"}).Json();
  EXPECT_EQ(with["decider_copies"], layers);
  EXPECT_FALSE(with["was_complete"].get<bool>());
  EXPECT_TRUE(Call({"prepare", model, "--out", second, "--bundles", "--json"}).Json()["was_complete"].get<bool>());
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
