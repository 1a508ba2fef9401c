// Sparse MLPs over real servers with engines that compute: one to three devices give the bits of one
// process in both orders of sums, also if reads of neurons are wrong, short, late or fail. A record that
// stays wrong, and plans that cannot be, are refused in one sentence, and cost the device nothing.

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "coordinator/rpc/cluster_client.h"
#include "coordinator/serving/cluster_run.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/rpc/device_server.h"
#include "daemon/stores/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/sparse_parts.h"
#include "proto/convert/convert.h"
#include "tests/cases.h"
#include "tests/daemon/rpc/control_stub.h"
#include "tests/daemon/rpc/keep_callback_threads.h"
#include "tests/daemon/weights/faulty_device.h"
#include "tests/integration/loopback_cluster.h"
#include "tests/integration/stage/stage_plans.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kNeurons = 173;
constexpr int32_t kSequences = 2;

// What the disks of all devices do to reads of neurons.
enum class ReadFault : uint8_t { kNone, kWrong, kShort, kFailed, kLate };

// Faults of one disk's reads, which come on its thread. Every third page of a file is bad: its first read
// into a row of memory has the fault, the next one is good, and so on.
class Faults {
 public:
  // `count`: of all faults; outlives this.
  Faults(ReadFault kind, std::atomic<int>& count) : kind_(kind), count_(count) {}

  FaultyDevice::Fault Of(const FaultyDevice::Read& read) {
    if (kind_ == ReadFault::kNone || read.offset / 4096 % 3 != 0) return {};
    if (kind_ != ReadFault::kLate && times_[{read.file, read.offset, read.memory}]++ % 2 == 1) return {};
    const int number = ++count_;
    switch (kind_) {
      case ReadFault::kWrong:
        return {.wrong = true};
      case ReadFault::kShort:
        return {.shortened_to = read.bytes / 2};
      case ReadFault::kFailed:
        return {.error = EIO};
      default:
        return {.late_turns = 1 + number % 50};
    }
  }

 private:
  const ReadFault kind_;
  std::atomic<int>& count_;
  std::map<std::tuple<int, int64_t, const std::byte*>, int> times_;
};

class SparseServersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(MakeModel(OptionsOf({.name = "opt_bf16", .family = "opt", .activation = Activation::kRelu, .head_dim = 24}), Model()).ok());
    const auto prepared = PrepareBlockStore(Model(), Store(), {.bundles = true});
    ASSERT_TRUE(prepared.ok()) << prepared.status();
    const auto checkpoint = Checkpoint::Open(Store());
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *spec;
  }
  std::string Model() const { return dir_ / "model"; }
  std::string Store() const { return dir_ / "store"; }

  void StartDevices(int count, const std::string& numerics = "auto", ReadFault fault = ReadFault::kNone) {
    client_.reset(), servers_.clear(), devices_.clear();
    faults_ = 0;
    for (int d = 0; d < count; ++d) {
      DeviceServer::Options device;
      device.health.name = std::string(1, static_cast<char>('a' + d));
      device.plans.weights = Store();
      device.plans.make_stage = [this, numerics, fault](StageSetup setup) {
        StageEngine::Options options{std::move(setup), EngineSettings{.num_threads = 1, .numerics = numerics}};
        options.wrap_device = [this, fault](std::unique_ptr<BlockDevice> disk) -> std::unique_ptr<BlockDevice> {
          if (disk->paths().front().find("bundles_") == std::string::npos) return disk;
          const std::vector<std::string> paths = disk->paths();
          return std::make_unique<FaultyDevice>(
              std::move(disk), [this, faults = std::make_shared<Faults>(fault, faults_), paths](const FaultyDevice::Read& read) {
                if (ruined_.load() && paths[static_cast<size_t>(read.file)].find("bundles_0001") != std::string::npos)
                  return FaultyDevice::Fault{.wrong = true};
                return faults->Of(read);
              });
        };
        return StageEngine::Install(std::move(options));
      };
      absl::StatusOr<std::unique_ptr<DeviceServer>> server = DeviceServer::Start(device);
      ASSERT_TRUE(server.ok()) << server.status();
      devices_.push_back({.name = device.health.name, .address = absl::StrCat("127.0.0.1:", (*server)->port())});
      servers_.push_back(*std::move(server));
    }
    auto client = ClusterClient::Connect({.devices = devices_});
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  // The layers go round the devices twice.
  Plan PlanFor(int devices, int64_t rows, int32_t masks = 4096) const {
    auto plan = SplitPlan(spec_, {.devices = devices,
                                  .rounds = devices > 1 ? 2 : 1,
                                  .sequences = kSequences,
                                  .batch = kSequences,
                                  .context = kContext,
                                  .prompt = 64,
                                  .neuron_rows = std::vector<int64_t>(static_cast<size_t>(spec_.config.num_layers()), rows)});
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    for (PlanPart& part : plan->parts) {
      if (part.sparse()) part.window_masks = masks;
    }
    EXPECT_TRUE(HasSparseParts(*plan));
    return *std::move(plan);
  }

  // Prompts in chunks of more rows than sequences, which read whole matrices; then tokens of both
  // sequences together, which read neurons.
  const std::vector<Reference>& References(const std::string& numerics) {
    std::vector<Reference>& references = references_[numerics];
    for (const int length : {41, 5}) {
      if (references.size() < kSequences)
        references.push_back(Alone(Model(), RandomIds(length, length, 200), kNewTokens, kContext, numerics));
    }
    return references;
  }

  absl::Status Run(
      const Plan& plan, const std::string& numerics, const std::function<void()>& meanwhile = [] {}) {
    LIME_RETURN_IF_ERROR(client_->Install(plan, {}));
    const std::vector<Reference>& references = References(numerics);
    std::vector<std::vector<int32_t>> tokens(references.size());
    std::vector<uint64_t> hashes(references.size());
    {
      ClusterRun run(*client_);
      for (const Reference& reference : references) {
        const auto added =
            run.Add({.prompt = reference.prompt, .max_new_tokens = kNewTokens}, {.params = {.temperature = 0}, .hash_logits = true});
        LIME_RETURN_IF_ERROR(added.status());
      }
      LIME_RETURN_IF_ERROR(run.Run(
          [&](const ClusterRun::Token& token) {
            tokens[static_cast<size_t>(token.request)].push_back(token.token);
            hashes[static_cast<size_t>(token.request)] = token.logits_hash;
            meanwhile();
            return true;
          },
          nullptr));
    }
    for (size_t r = 0; r < references.size(); ++r) {
      EXPECT_EQ(tokens[r], references[r].tokens);
      EXPECT_EQ(hashes[r], references[r].hash);
    }
    return absl::OkStatus();
  }
  DeviceStatistics Sum() const {
    DeviceStatistics sum;
    for (int32_t d = 0; d < client_->plan().NumDevices(); ++d) {
      const auto statistics = client_->Statistics(d);
      EXPECT_TRUE(statistics.ok()) << statistics.status();
      if (!statistics.ok()) continue;
      sum.neurons_computed += statistics->neurons_computed, sum.neurons_loaded += statistics->neurons_loaded;
      sum.neuron_reads += statistics->neuron_reads;
    }
    return sum;
  }
  void ExpectBits(const Plan& plan, const std::string& numerics) {
    const absl::Status status = Run(plan, numerics);
    ASSERT_TRUE(status.ok()) << status;
    const DeviceStatistics sum = Sum();
    EXPECT_GT(sum.neurons_computed, 0);
    // With a row for every neuron, prompts may leave all that their answers need.
    const auto few = [](const PlanPart& part) { return part.sparse() && part.places < kNeurons; };
    if (std::ranges::any_of(plan.parts, few)) EXPECT_GT(sum.neuron_reads, 0);
    EXPECT_LE(sum.neurons_loaded, sum.neurons_computed);
    ASSERT_TRUE(client_->Unload().ok());
  }

  // The refusal of a plan for device "a" by any program of the cluster.
  std::string Refusal(const std::string& plan_json) {
    v1::InstallRequest request;
    ToProto(InstallCall{.plan = client_->plan(), .device = 0, .addresses = {"", ""}}, request);
    request.set_plan(plan_json);
    grpc::ClientContext context;
    const auto reader = ControlOf(devices_[0])->Install(&context, request);
    v1::InstallEvent event;
    while (reader->Read(&event)) {
    }
    const grpc::Status status = reader->Finish();
    return status.ok() ? "" : status.error_message();
  }

  TempDir dir_;
  ModelSpec spec_;
  std::map<std::string, std::vector<Reference>> references_;  // by numerics
  std::atomic<int> faults_ = 0;                               // so far, of the devices that run
  std::atomic<bool> ruined_ = false;                          // every record of layer 1 is wrong, however often it is read
  std::vector<ClusterClient::Device> devices_;
  std::vector<std::unique_ptr<DeviceServer>> servers_;
  std::unique_ptr<ClusterClient> client_;
};

TEST_F(SparseServersTest, OneToThreeDevicesHaveTheBitsOfOneProcess) {
  for (const std::string numerics : {"auto", "portable"}) {
    for (int devices = 1; devices <= 3; ++devices) {
      StartDevices(devices, numerics);
      for (const int64_t rows : {int64_t{1}, int64_t{40}, kNeurons}) {
        for (const int32_t masks : {1, 3, 4096}) {
          if (!Soaking() && masks != (rows == 40 ? 3 : 4096)) continue;
          SCOPED_TRACE(absl::StrCat(numerics, ", ", devices, " devices, ", rows, " rows, ", masks, " masks"));
          ExpectBits(PlanFor(devices, rows, masks), numerics);
        }
      }
    }
  }
}

TEST_F(SparseServersTest, WrongShortFailedAndLateReadsOfNeuronsChangeNoBit) {
  for (const ReadFault fault : {ReadFault::kWrong, ReadFault::kShort, ReadFault::kFailed, ReadFault::kLate}) {
    for (int devices = Soaking() ? 1 : 3; devices <= 3; ++devices) {
      StartDevices(devices, "auto", fault);
      for (const int64_t rows : {int64_t{7}, int64_t{60}}) {
        SCOPED_TRACE(absl::StrCat("fault ", static_cast<int>(fault), ", ", devices, " devices, ", rows, " rows"));
        ExpectBits(PlanFor(devices, rows), "auto");
      }
      EXPECT_GT(faults_.load(), 10);
    }
  }
}

TEST_F(SparseServersTest, ARecordThatStaysWrongEndsTheRunByNameAndTheDevicesGoOn) {
  StartDevices(2);
  const Plan plan = PlanFor(2, 20);
  ruined_ = true;
  const absl::Status status = Run(plan, "auto");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bundles_0001.safetensors: layer 1, neuron "));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  (void)client_->Unload();
  ruined_ = false;
  ExpectBits(plan, "auto");
}

// Each of them names what is wrong in one sentence, while a plan is in use and when none is, and the
// device goes on.
TEST_F(SparseServersTest, HostilePlansAreRefusedInOneSentenceAndNothingIsLost) {
  StartDevices(2);
  const Plan good = PlanFor(2, 60);
  const int mlp = PartsOf(good, {BlockKind::kMlp, 0}).first, sparse = PartsOf(good, {BlockKind::kMlp, 0}).second - 1;
  const int attention = PartsOf(good, {BlockKind::kAttention, 0}).second - 1;
  ASSERT_TRUE(good.parts[sparse].sparse());
  struct Hostile {
    int part = 0;
    std::function<void(PlanPart&)> change;
    std::string says;
  };
  const auto on_demand = [](PlanPart& part) { part.streamed = false, part.places = part.window_masks = 1, part.unit_bytes = 4096; };
  const std::vector<Hostile> parts = {{sparse, [](PlanPart& p) { p.window_masks = kMaxWindowMasks + 1; }, "window_masks"},
                                      {sparse, [](PlanPart& p) { p.window_masks = -1; }, "window_masks"},
                                      {sparse, [](PlanPart& p) { p.window_masks = 0; }, "is on demand, but is of mlp 0"},
                                      {sparse, [](PlanPart& p) { p.places = kNeurons + 1; }, "places\" = 174 is outside 1 to 173"},
                                      {sparse, [](PlanPart& p) { p.places = int64_t{1} << 40; }, "places"},
                                      {sparse, [](PlanPart& p) { p.places = -1; }, "places"},
                                      {sparse, [](PlanPart& p) { p.places = 0; }, "window_masks"},
                                      {sparse, [](PlanPart& p) { p.places += 1; }, "devices["},
                                      {sparse, [](PlanPart& p) { p.streamed = true; }, "is on demand and streams"},
                                      {sparse, [](PlanPart& p) { p.host = 1; }, "is sparse and has a host"},
                                      {sparse, [](PlanPart& p) { p.ahead_places = 1; }, "ahead_places"},
                                      {sparse, [](PlanPart& p) { p.unit_bytes = kMaxNeuronBytes + 1; }, "unit_bytes"},
                                      {sparse, [](PlanPart& p) { p.unit_bytes = 1; }, "devices["},
                                      // Rows that overlap those of the decider, or one another, that leave a gap, or that the matrix does
                                      // not have.
                                      {sparse,
                                       [](PlanPart& p) {
                                         p.rows.insert(p.rows.begin(), {TensorRole::kUp, 0, 64});
                                       },
                                       "rows"},
                                      {sparse, [](PlanPart& p) { p.rows.push_back(p.rows.back()); }, "rows"},
                                      {sparse, [](PlanPart& p) { p.rows.back().begin += 64; }, "rows"},
                                      {sparse, [](PlanPart& p) { p.rows.back().end -= 1; }, "mlp 0"},
                                      {sparse, [](PlanPart& p) { p.rows.back().end += 64; }, "mlp 0"},
                                      {sparse, [](PlanPart& p) { p.rows.clear(); }, "rows"},
                                      // Parts that cannot be sparse.
                                      {mlp, on_demand, "no part before it decides"},
                                      {attention, on_demand, "is sparse, but is of attention 0"}};
  std::vector<std::pair<std::string, std::string>> hostile;  // JSON, and what its refusal says
  Plan plan = good;
  plan.epoch = 1'000'000;  // of each of them, a new one
  for (const Hostile& each : parts) {
    const PlanPart part = plan.parts[static_cast<size_t>(each.part)];
    ++plan.epoch;
    each.change(plan.parts[static_cast<size_t>(each.part)]);
    hostile.emplace_back(ToJsonText(plan), each.says);
    plan.parts[static_cast<size_t>(each.part)] = part;
  }
  const std::string text = ToJsonText(good);
  for (const char* wrong : {"1e999", "99999999999999999999", "\"5\"", "[]", "2.5"})
    hostile.emplace_back(absl::StrReplaceAll(text, {{"\"window_masks\":4096", absl::StrCat("\"window_masks\":", wrong)}}), "");
  hostile.emplace_back(absl::StrReplaceAll(text, {{"\"window_masks\":4096", "\"window_masks\":4096, \"window_masks\":4097"}}), "");

  int asked = 0;
  const absl::Status status = Run(good, "auto", [&] {
    if (++asked > std::ssize(hostile)) return;
    const std::string refusal = Refusal(hostile[static_cast<size_t>(asked - 1)].first);
    EXPECT_NE(refusal, "") << "beside a plan that is in use";
  });
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(client_->Unload().ok());
  for (const auto& [json, says] : hostile) {
    ASSERT_NE(json, text);
    const std::string refusal = Refusal(json);
    EXPECT_NE(refusal, "") << json;
    EXPECT_THAT(refusal, HasSubstr(says));
    EXPECT_THAT(refusal, Not(HasSubstr("\n")));
  }
  ExpectBits(good, "auto");
}

// The plan is one for the store. What the folder of a device lacks is named before the device loads
// anything, and the next plan finds it free.
TEST_F(SparseServersTest, AFolderWithoutTheBundlesOfALayerIsRefusedByName) {
  StartDevices(1);
  const Plan plan = PlanFor(1, 20);
  const std::string file = Store() + "/bundles_0001.safetensors", hidden = dir_ / "hidden";
  std::filesystem::rename(file, hidden);
  const std::string lacks(client_->Install(plan, {}).message());
  EXPECT_THAT(lacks, HasSubstr("bundles_0001.safetensors"));
  EXPECT_THAT(lacks, Not(HasSubstr("\n")));
  std::filesystem::copy_file(hidden, file);
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 4096);
  EXPECT_THAT(std::string(client_->Install(plan, {}).message()), HasSubstr("bundles_0001.safetensors"));
  std::filesystem::rename(hidden, file);
  ExpectBits(plan, "auto");

  const std::string without = dir_ / "without";
  ASSERT_TRUE(PrepareBlockStore(Model(), without, {}).ok());
  for (const std::string& folder : {without, Model()}) {
    devices_[0].weights = folder;
    auto client = ClusterClient::Connect({.devices = devices_});
    ASSERT_TRUE(client.ok()) << client.status();
    const std::string refusal((*client)->Install(plan, {}).message());
    EXPECT_THAT(refusal, HasSubstr(folder));
    EXPECT_THAT(refusal, HasSubstr("lime prepare"));
  }
}

}  // namespace
}  // namespace lime
