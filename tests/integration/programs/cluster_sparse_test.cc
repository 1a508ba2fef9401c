// `lime run --cluster` over real daemons that read neurons of sparse MLPs: the bits of one device
// without them, also if a device is killed in the middle of it, or has a damaged file of bundles.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "planner/plan/sparse_parts.h"
#include "testbed/make_model/make_model.h"
#include "tests/integration/made_copies.h"
#include "tests/integration/made_predictor.h"
#include "tests/integration/programs/run_cluster.h"

namespace lime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class ClusterSparseTest : public ClusterRunTest {
 protected:
  void SetUp() override {
    MakeModelOptions options;
    options.config.family = "opt";
    options.config.activation = Activation::kRelu;
    options.config.num_layers = 3;
    options.config.num_kv_heads = options.config.num_heads;
    options.config.tie_embeddings = true;
    options.config.max_positions = 1024;
    ASSERT_TRUE(MakeModel(options, Dense()).ok());
    model_ = dir_ / "store";
    const Answer prepared = Call({"prepare", Dense(), "--out", model_, "--bundles"});
    ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
    for (int d = 0; d < kDevices; ++d) limed_.push_back(std::make_unique<Limed>(Name(d)));
    WriteCluster();
  }
  std::string Dense() const { return dir_ / "model"; }

  // The blocks go round the devices. Memory has room for a quarter of the neurons.
  void WritePlan() {
    const Plan plan = PlanInTurns(model_, kDevices, {.model_name = "sparse", .neuron_rows = {40, 40, 40}, .window_masks = 5});
    for (int32_t device = 0; device < kDevices; ++device) EXPECT_TRUE(HasPart(plan, device)) << device;
    EXPECT_TRUE(HasSparseParts(plan, 1)) << ToJsonText(plan);
    dir_.Write("plan.json", ToJsonText(plan));
  }

  std::vector<std::string> LongRun(const std::string& model) const {
    return {"run",
            "--model",
            model,
            "--prompt",
            "Once upon a time there was a fox",
            "--max-tokens",
            "400",
            "--context",
            "512",
            "--json",
            "--hash-logits",
            "--ignore-eos",
            "--seed",
            "11",
            "--temperature",
            "0.8"};
  }

  void Calibrate() const {
    std::string words;
    for (int i = 0; i < 200; ++i) absl::StrAppend(&words, i * i, " foxes; ");
    WriteFile(dir_ / "text", words);
    const Answer calibrated = Call({"calibrate", model_, "--text-file", dir_ / "text", "--tokens", "512"});
    ASSERT_EQ(calibrated.exit_code, 0) << calibrated.err;
  }
  // LIME plans now.
  Answer Planned(std::vector<std::string> more) const {
    std::vector<std::string> call = LongRun(model_);
    call.insert(call.end(), {"--cluster", dir_ / "cluster.toml"});
    call.insert(call.end(), more.begin(), more.end());
    return Call(call);
  }
  // Device b takes the weights of another folder, or of its store if it is empty.
  void GiveToB(const std::string& folder) {
    std::string cluster = Slurp(dir_ / "cluster.toml");
    const std::string line = absl::StrCat("weights = \"", model_, "\"\n");
    cluster.replace(cluster.find(line, cluster.find("name = \"b\"")), line.size(),
                    folder.empty() ? "" : absl::StrCat("weights = \"", folder, "\"\n"));
    dir_.Write("cluster.toml", cluster);
  }

  // The answer of one process that has no bundles.
  void ExpectTheBitsOfOne(const Answer& answer) const {
    const Answer alone = Call(LongRun(Dense()));
    ASSERT_EQ(alone.exit_code, 0) << alone.err;
    ASSERT_EQ(answer.exit_code, 0) << answer.err;
    for (const char* field : {"token_ids", "text", "logits_xxh3", "completion_tokens", "finish_reason"})
      EXPECT_EQ(answer.Json()[field], alone.Json()[field]) << field << "\n" << answer.err;
  }
};

TEST_F(ClusterSparseTest, AKilledDeviceCostsNoTokenAndNoBit) {
  WritePlan();
  Lime run(OverCluster(LongRun(model_)));
  AwaitSteps(10);
  EXPECT_TRUE(WIFSIGNALED(limed_[1]->End(SIGKILL)));
  const int port = limed_[1]->port();
  limed_[1] = std::make_unique<Limed>(Name(1), port);
  const Answer answer = run.Wait();
  ExpectTheBitsOfOne(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
}

// Copies of deciders decide on three devices, as a plan file says. Prompts are in chunks.
TEST_F(ClusterSparseTest, CopiesOfDecidersGiveTheBitsOfOne) {
  model_ = dir_ / "copies";
  const absl::StatusOr<std::vector<DeciderForm>> copies = PrepareWithCopies(Dense(), model_);
  ASSERT_TRUE(copies.ok()) << copies.status();
  WriteCluster();
  const Plan plan =
      PlanInTurns(model_, kDevices, {.model_name = "certified", .neuron_rows = {40, 40, 40}, .deciders = *copies, .window_masks = 5});
  EXPECT_TRUE(std::ranges::any_of(plan.parts, &PlanPart::certified)) << ToJsonText(plan);
  dir_.Write("plan.json", ToJsonText(plan));
  const Answer answer = Call(OverCluster(LongRun(model_)));
  ExpectTheBitsOfOne(answer);
  EXPECT_EQ(answer.Json()["certified_layers"], 2) << "the last layer has no copy";
}

// The device says which record is wrong. It is planned without, and nothing is lost.
TEST_F(ClusterSparseTest, ADeviceWithDamagedBundlesIsPlannedWithout) {
  WritePlan();
  const std::string damaged = dir_ / "damaged";
  fs::copy(model_, damaged, fs::copy_options::recursive);
  for (const char* name : {"bundles_0000.safetensors", "bundles_0001.safetensors", "bundles_0002.safetensors"}) {
    std::fstream file(damaged + "/" + name, std::ios::in | std::ios::out | std::ios::binary);
    // All of the records, and nothing of the header and the tables, which lie before and behind them.
    const auto bytes = static_cast<std::streamoff>(fs::file_size(damaged + "/" + name));
    file.seekp(bytes / 4);
    for (std::streamoff at = bytes / 4; at < bytes / 2; ++at) file.put('\x55');
  }
  GiveToB(damaged);
  std::vector<std::string> call = OverCluster(LongRun(model_));
  call.insert(call.end(), {"--patience", "0.2"});
  const Answer answer = Call(call);
  ExpectTheBitsOfOne(answer);
  EXPECT_THAT(answer.err, HasSubstr("bundles_000"));
  EXPECT_THAT(answer.err, HasSubstr(", neuron "));
  const nlohmann::json root = answer.Json();  // the loop walks in it
  for (const auto& device : root["devices"]) EXPECT_NE(device["name"], "b");
}

// Without a plan file, LIME chooses rows by what the calibration says. Nothing but time changes.
TEST_F(ClusterSparseTest, ThePlannerChoosesSparseMlpsOfTheSameBits) {
  Calibrate();
  const Answer off = Planned({"--sparsity", "off"}), exact = Planned({"--sparsity", "exact"}), by_itself = Planned({}),
               few = Planned({"--sparsity", "exact", "--neurons", "5", "--window", "3"});
  for (const Answer* answer : {&off, &exact, &by_itself, &few}) ExpectTheBitsOfOne(*answer);
  EXPECT_EQ(off.Json()["sparsity"], "off");
  EXPECT_FALSE(off.Json().contains("sparsity_why"));
  EXPECT_EQ(exact.Json()["sparsity"], "exact");
  EXPECT_GT(exact.Json()["neurons_copied"], 0) << exact.out;
  EXPECT_THAT(by_itself.Json()["sparsity_why"], HasSubstr("ms a token predicted"));
  EXPECT_EQ(few.Json()["sparsity"], "exact");
  EXPECT_GT(few.Json()["sparse_prediction"]["sparse_active_share"], 0) << "the calibration is used";
  EXPECT_GT(few.Json()["neurons_loaded_per_token"], exact.Json()["neurons_loaded_per_token"]);
  const Answer scored =
      Call({"score", "--model", model_, "--cluster", dir_ / "cluster.toml", "--ids", "1,2,3,4", "--sparsity", "exact", "--json"});
  EXPECT_EQ(scored.Json()["logits_xxh3"], Call({"score", "--model", Dense(), "--ids", "1,2,3,4", "--json"}).Json()["logits_xxh3"])
      << scored.err;
}

TEST_F(ClusterSparseTest, APlanFileHasWhatThePlannerChose) {
  Calibrate();
  const Answer planned = Call({"plan", "--model", model_, "--cluster", dir_ / "cluster.toml", "--tokens", "512", "--prompt-tokens", "16",
                               "--sparsity", "exact", "--neurons", "40", "--out", dir_ / "plan.json", "--json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_EQ(planned.Json()["sparsity"], "exact");
  const Answer answer = Call(OverCluster(LongRun(model_)));
  ExpectTheBitsOfOne(answer);
  EXPECT_EQ(answer.Json()["sparsity"], "exact");
  std::vector<std::string> both = OverCluster(LongRun(model_));
  both.insert(both.end(), {"--sparsity", "off"});
  ExpectRefused(Call(both), 2, "--sparsity is for planning now, and changes nothing with --plan");
}

TEST_F(ClusterSparseTest, ALostDeviceIsPlannedWithoutAndOtherRowsAreChosen) {
  Calibrate();
  std::vector<std::string> call = LongRun(model_);
  call.insert(call.end(), {"--cluster", dir_ / "cluster.toml", "--sparsity", "exact", "--neurons", "40", "--patience", "0.2"});
  Lime run(call);
  const int used = AwaitSteps(10, {0, 1, 2});
  ASSERT_GE(used, 0);
  EXPECT_TRUE(WIFSIGNALED(limed_[static_cast<size_t>(used)]->End(SIGKILL)));
  const Answer answer = run.Wait();
  ExpectTheBitsOfOne(answer);
  EXPECT_GE(answer.Json()["recoveries"], 1) << answer.err;
  EXPECT_EQ(answer.Json()["sparsity"], "exact");
}

// Results follow from the predictor, wherever its layers are. A device without it is named.
TEST_F(ClusterSparseTest, PredictedNeuronsAreThoseOfOneDevice) {
  Calibrate();
  const std::string calibration = Slurp(model_ + "/calibration.json");
  const absl::StatusOr<int64_t> made =
      WriteRandomPredictor(model_, 8, /*seed=*/1, nlohmann::json::parse(calibration)["model"], calibration);
  ASSERT_TRUE(made.ok()) << made.status();
  std::vector<std::string> call = LongRun(model_);
  call.insert(call.end(), {"--sparsity", "predicted"});
  const Answer alone = Call(call), whole = Planned({"--sparsity", "predicted"}),
               sparse = Planned({"--sparsity", "predicted", "--neurons", "40"}), off = Planned({"--sparsity", "off"});
  for (const Answer* answer : {&whole, &sparse}) {
    ASSERT_EQ(answer->exit_code, 0) << answer->err;
    EXPECT_EQ(answer->Json()["logits_xxh3"], alone.Json()["logits_xxh3"]) << answer->err;
    EXPECT_EQ(answer->Json()["lossless"], false);
    EXPECT_EQ(answer->Json()["predictor"], alone.Json()["predictor"]);
    EXPECT_THAT(answer->err, HasSubstr("results change"));
  }
  EXPECT_GT(sparse.Json()["neurons_loaded_per_token"], 0);
  EXPECT_NE(off.Json()["logits_xxh3"], alone.Json()["logits_xxh3"]);
  fs::copy(model_, dir_ / "without", fs::copy_options::recursive);
  fs::remove(absl::StrCat(dir_ / "without", "/predictor.safetensors"));
  GiveToB(dir_ / "without");
  const Answer refused = Planned({"--sparsity", "predicted"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.err, HasSubstr("device \"b\" has no predictor"));
}

// A device says which bundles it has. Its layers are dense if it has none.
TEST_F(ClusterSparseTest, ADeviceWithoutBundlesComputesNoNeurons) {
  GiveToB(Dense());
  const Answer some = Planned({"--sparsity", "exact", "--neurons", "40"});
  ExpectTheBitsOfOne(some);
  EXPECT_EQ(some.Json()["sparsity"], "exact");
  for (const char* device : {"a", "c"}) {
    std::string cluster = Slurp(dir_ / "cluster.toml");
    const size_t at = cluster.find(model_, cluster.find(absl::StrCat("name = \"", device, "\"")));
    dir_.Write("cluster.toml", cluster.replace(at, model_.size(), Dense()));
  }
  const Answer none = Planned({"--sparsity", "exact"});
  EXPECT_EQ(none.exit_code, 1) << none.out;
  EXPECT_THAT(none.err, HasSubstr("no device has bundles of the layers that it computes"));
  const Answer by_itself = Planned({});
  ExpectTheBitsOfOne(by_itself);
  EXPECT_EQ(by_itself.Json()["sparsity"], "off");
}

// Bundles are not pushed: what would lack them is named before anything is sent.
TEST_F(ClusterSparseTest, APushToADeviceThatNeedsBundlesIsRefusedByName) {
  WritePlan();
  limed_[1] = std::make_unique<Limed>(Name(1), Limed::Options{.more = {"--store", dir_ / "pushed"}});
  WriteCluster();
  GiveToB("");
  const Answer refused = Call(OverCluster({"push", "--model", model_}));
  EXPECT_EQ(refused.exit_code, 1) << refused.out;
  EXPECT_THAT(refused.err, HasSubstr("device \"b\" would compute the MLP of layer "));
  EXPECT_THAT(refused.err, HasSubstr("bundles, which are not pushed"));
  EXPECT_TRUE(fs::is_empty(dir_ / "pushed"));
  const Answer whole = Call({"push", "--model", model_, "--cluster", dir_ / "cluster.toml", "--all"});
  EXPECT_EQ(whole.exit_code, 0) << whole.err << "without a plan, no device needs bundles";
  const Answer run = Call(OverCluster(LongRun(model_)));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("has pushed weights, which come without bundles"));
}

}  // namespace
}  // namespace lime
