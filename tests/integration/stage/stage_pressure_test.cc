// Weights that are evicted while other programs need the memory, and loaded again afterwards, leave
// every bit as the model by itself makes it: random plans and moments, by seed.

#include <chrono>
#include <thread>

#include "daemon/engine/process_memory.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/logic/places_to_shed.h"
#include "daemon/stores/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/sparse_parts.h"
#include "tests/cases.h"
#include "tests/integration/fake_machine.h"
#include "tests/integration/made_copies.h"
#include "tests/integration/stage/stage_orders.h"

namespace lime {
namespace {

constexpr int kTokens = 48;
constexpr Bytes kPlenty = 8 * kGiB, kNothing = 0;

void AwaitThat(const std::function<bool()>& done, const char* what) {
  for (int i = 0; i < 20'000 && !done(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_TRUE(done()) << what;
}

StageCluster::Adjust Watching(const FakeMachine& machine) {
  return [&machine](int32_t, StageEngine::Options& options) {
    options.follow_memory = true;
    options.pressure = machine.Watch();
    options.pressure_hold = absl::Milliseconds(40);
  };
}

std::unique_ptr<TokenSampler> Greedy() {
  return std::make_unique<GreedySampler>();
}

class StagePressure : public ::testing::Test {
 protected:
  void Open(const std::string& dir, int64_t vocab) {
    dir_ = dir;
    const auto checkpoint = Checkpoint::Open(dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    auto spec = checkpoint->BuildModelSpec();
    ASSERT_TRUE(spec.ok()) << spec.status();
    spec_ = *std::move(spec);
    for (int s = 0; s < 3; ++s) references_.push_back(Alone(dir, RandomIds(40 + s, 5 + 13 * s, static_cast<int32_t>(vocab)), kTokens));
  }

  std::vector<Reference> Requests(const Plan& plan) const { return {references_.begin(), references_.begin() + plan.sequences}; }

  void ExpectBits(StageCluster& cluster, const Plan& plan) {
    for (int32_t s = 0; s < plan.sequences; ++s) {
      ASSERT_EQ(cluster.Await(s, kTokens), references_[static_cast<size_t>(s)].tokens);
      ASSERT_EQ(cluster.sampler().hash(s), references_[static_cast<size_t>(s)].hash);
    }
  }

  void ExpectBitsOfRandomPlans(const std::string& model, int64_t vocab);

  // On one device, a token at a time, and all in memory.
  Plan OnOneDevice() const {
    for (uint64_t seed = 1;; ++seed) {
      Plan plan = KeepingAll(RandomPlan(spec_, seed).Draw());
      Bytes all = 0, largest = 0;
      for (const PlanPart& part : plan.parts) all += part.bytes, largest = std::max(largest, part.bytes);
      if (plan.NumDevices() == 1 && plan.microbatches == 1 && plan.chunks_per_sweep == 1 && 8 * largest < all) return plan;
    }
  }

  // On one device, two sequences; all in memory, except experts: each layer has these places. Or MLPs are
  // sparse, with these rows of neurons in each layer, and with these copies of deciders.
  Plan WithPlaces(int64_t places, int64_t neuron_rows = 0, const std::vector<DeciderForm>& deciders = {}) const {
    ClusterDevice device{.name = "a", .budget = 64 * kGiB};
    device.profile.read_bytes_per_second = 10e9;
    device.profile.flops = 1e11;
    device.profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
    PlanRequest request{
        .context = kContext, .sequences = 2, .batches = {2}, .prompt_tokens = 32, .chunks = {12}, .ahead_places = 2, .unit_places = places};
    if (neuron_rows > 0) request.ahead_places = 0, request.window_masks = kUsualWindowMasks;
    if (neuron_rows > 0) request.neuron_rows.assign(static_cast<size_t>(spec_.config.num_layers()), neuron_rows);
    request.deciders = deciders;
    const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec_, {&device, 1}, request);
    EXPECT_TRUE(problem.ok()) << problem.status();
    PlanChoice choice{.stages = {.stages = {{0, 0, problem->instance.NumBlocks()}}}, .batch = 2};
    choice.first_token = {.feasible = true, .ms = 1, .chunk_rows = 12, .chunks = 3, .chunks_per_sweep = 1};
    absl::StatusOr<Plan> plan = MakePlan(*problem, choice);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : Plan{};
  }
  // Bytes of the places that may go.
  Bytes PlacesOf(const Plan& plan) const {
    return PlacesToShed(plan, 0, spec_.config.experts ? spec_.config.experts->per_token : 0).most();
  }

  // A store with bundles of a ReLU model. `copies`: null, or gets the copies of deciders in them.
  void OpenSparse(const TempDir& dir, MakeModelOptions options, std::vector<DeciderForm>* copies = nullptr) {
    options.config.activation = Activation::kRelu;
    ASSERT_TRUE(MakeModel(options, dir / "model").ok());
    if (copies != nullptr) {
      absl::StatusOr<std::vector<DeciderForm>> made = PrepareWithCopies(dir / "model", dir / "store");
      ASSERT_TRUE(made.ok()) << made.status();
      *copies = *std::move(made);
    } else {
      const auto prepared = PrepareBlockStore(dir / "model", dir / "store", {.bundles = true});
      ASSERT_TRUE(prepared.ok()) << prepared.status();
    }
    ASSERT_NO_FATAL_FAILURE(Open(dir / "store", 200));
  }

  std::string dir_;
  ModelSpec spec_;
  std::vector<Reference> references_;
};

// Random plans: those that keep all, those that stream, and those whose KV grows and whose
// residency changes by order too; of the folder and of a store prepared from it, by either loader.
void StagePressure::ExpectBitsOfRandomPlans(const std::string& model, int64_t vocab) {
  ASSERT_NO_FATAL_FAILURE(Open(model, vocab));
  TempDir dir;
  const std::string store = dir / "store";
  ASSERT_TRUE(PrepareBlockStore(model, store).ok());
  int64_t changes = 0;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(4, 12)); ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    Plan plan = RandomPlan(spec_, seed).Draw();
    const bool grows = seed % 3 == 2;
    if (seed % 3 == 0) plan = KeepingAll(std::move(plan));
    if (grows) {
      plan = Elastic(std::move(plan));
      const absl::StatusOr<Plan> first = WithResidency(plan, {.layer_pages = FullLayerPages(plan) - 1, .streamed = {}});
      ASSERT_TRUE(first.ok()) << first.status();
      plan = *first;
    }
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(plan)));
    FakeMachine machine;
    const auto adjust = [&](int32_t device, StageEngine::Options& options) {
      Watching(machine)(device, options);
      options.loader = seed / 3 % 2 == 0 ? LoaderKind::kRead : LoaderKind::kMmap;
    };
    StageCluster cluster(seed % 2 == 0 ? dir_ : store, plan, seed, 1, Delivery::kInOrder, Greedy, {}, adjust);
    ASSERT_TRUE(cluster.ok());
    const std::vector<Reference> requests = Requests(plan);
    for (int32_t s = 0; s < plan.sequences; ++s) OrderPrompt(cluster, plan, s, requests[static_cast<size_t>(s)], kContext);
    for (int token = 0; token + 1 < kTokens; ++token) {
      if (below(4) == 0) machine.SetAvailable(below(3) == 0 ? kPlenty : static_cast<Bytes>(below(12)) * kMiB);
      if (grows && below(8) == 0) {
        Residency to{.layer_pages = FullLayerPages(plan) - 1, .streamed = {}};
        for (int p = 0; p < plan.NumParts(); ++p) {
          if (below(3) == 0) to.streamed.push_back(p);
        }
        cluster.SendOrder(ResidencyOrder{to});
      }
      OrderToken(cluster, plan, requests, token);
      if (seed % 2 == 0) cluster.Await(0, static_cast<size_t>(token));
      if (below(3) == 0) std::this_thread::sleep_for(std::chrono::milliseconds(below(12)));  // moments differ: nothing waits for it
    }
    ASSERT_NO_FATAL_FAILURE(ExpectBits(cluster, plan));
    for (int d = 0; d < plan.NumDevices(); ++d) changes += cluster.engine(d).stats().residency_changes;
  }
  if (ManyCases()) {
    EXPECT_GT(changes, 2);
  }
}

class StagePressureFamilies : public StagePressure, public ::testing::WithParamInterface<Variant> {};

TEST_P(StagePressureFamilies, LeavesTheBitsOfTheModelByItself) {
  const MakeModelOptions options = OptionsOf(GetParam());
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectBitsOfRandomPlans(dir / "model", std::min<int64_t>(200, options.config.vocab_size));
}

constexpr auto kNameOf = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(All, StagePressureFamilies, ::testing::ValuesIn(SpreadVariants()), kNameOf);
INSTANTIATE_TEST_SUITE_P(Packed, StagePressureFamilies, ::testing::ValuesIn(SpreadPackedVariants()), kNameOf);

class StagePressureShipped : public StagePressure, public ::testing::WithParamInterface<std::string> {};

TEST_P(StagePressureShipped, LeavesTheBitsOfTheModelByItself) {
  ExpectBitsOfRandomPlans(ShippedModel(GetParam()), 512);
}

INSTANTIATE_TEST_SUITE_P(All, StagePressureShipped, ::testing::Values("lime-fables", "lime-fables-relu"),
                         [](const auto& info) { return info.param == "lime-fables" ? "Silu" : "Relu"; });

TEST_F(StagePressure, AllWeightsThatMayGoAreShedWithoutFreeMemoryAndAllComeBack) {
  ASSERT_NO_FATAL_FAILURE(Open(ShippedModel("lime-fables"), 512));
  const Plan plan = OnOneDevice();
  SCOPED_TRACE(ToJsonText(plan));
  FakeMachine machine;
  StageCluster cluster(dir_, plan, 1, 1, Delivery::kInOrder, Greedy, {}, Watching(machine));
  ASSERT_TRUE(cluster.ok());
  StageEngine& engine = cluster.engine(0);
  const std::vector<Reference> requests = Requests(plan);
  for (int32_t s = 0; s < plan.sequences; ++s) OrderPrompt(cluster, plan, s, requests[static_cast<size_t>(s)], kContext);
  for (int token = 0; token + 1 < kTokens; ++token) {
    OrderToken(cluster, plan, requests, token);
    cluster.AwaitSteps();
    if (token == 8) {
      EXPECT_EQ(engine.stats().shed, 0);
      EXPECT_EQ(engine.stats().bytes_read, 0) << "nothing of streaming while there is no pressure";
      machine.SetAvailable(kNothing);
      AwaitThat([&] { return engine.stats().shed > 0; }, "an idle stage gives");
    }
    if (token == 20) {
      Bytes matrices = 0;
      for (const PlanPart& part : plan.parts) matrices += part.bytes;
      EXPECT_GT(engine.stats().shed, matrices / 2);
      EXPECT_GT(engine.stats().bytes_read, 8 * matrices) << "every step reads all";
      EXPECT_GT(engine.stats().pressure_events, 0);
      EXPECT_LT(engine.stats().kv_pages_free, engine.stats().kv_pages) << "the requests go on";
      machine.SetAvailable(kPlenty);
      machine.AwaitSamples(40);  // the pressure has to have passed for at most a third of them
      EXPECT_GT(engine.stats().shed, matrices / 2) << "nothing comes back while nobody computes";
    }
  }
  ASSERT_NO_FATAL_FAILURE(ExpectBits(cluster, plan));
  EXPECT_EQ(engine.stats().shed, 0);
  EXPECT_GT(engine.stats().residency_changes, 1);
}

TEST_F(StagePressure, TheSystemHasTheMemoryOfShedWeights) {
  TempDir dir;
  MakeModelOptions options;
  options.config.num_layers = 8;
  options.config.hidden_size = 512;
  options.config.num_heads = 8;
  options.config.intermediate_size = 1536;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ASSERT_NO_FATAL_FAILURE(Open(dir / "model", 200));
  const Plan plan = OnOneDevice();
  for (const LoaderKind loader : {LoaderKind::kRead, LoaderKind::kMmap}) {
    FakeMachine machine;
    const auto adjust = [&](int32_t device, StageEngine::Options& engine) {
      Watching(machine)(device, engine);
      engine.loader = loader;
    };
    StageCluster cluster(dir_, plan, 1, 1, Delivery::kInOrder, Greedy, {}, adjust);
    ASSERT_TRUE(cluster.ok());
    const Bytes before = ProcessResidentBytes();
    machine.SetAvailable(kNothing);
    AwaitThat([&] { return cluster.engine(0).stats().shed > 20 * kMiB; }, "an idle stage gives");
    AwaitThat([&] { return ProcessResidentBytes() < before - 3 * cluster.engine(0).stats().shed / 4; }, "the system has it");
  }
}

TEST_F(StagePressure, PlacesOfExpertsGoAndComeBackAndLeaveTheBitsOfTheModelByItself) {
  TempDir dir;
  MakeModelOptions options;
  options.config.family = "qwen3_moe";
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ASSERT_NO_FATAL_FAILURE(Open(dir / "model", 200));
  const Plan plan = WithPlaces(6);
  const Bytes places = PlacesOf(plan);
  ASSERT_GT(places, 0);
  FakeMachine machine;
  StageCluster cluster(dir_, plan, 1, 1, Delivery::kInOrder, Greedy, {}, Watching(machine));
  ASSERT_TRUE(cluster.ok());
  StageEngine& engine = cluster.engine(0);
  const std::vector<Reference> requests = Requests(plan);
  for (int32_t s = 0; s < plan.sequences; ++s) OrderPrompt(cluster, plan, s, requests[static_cast<size_t>(s)], kContext);
  for (int token = 0; token + 1 < kTokens; ++token) {
    const Bytes before = engine.stats().shed;
    OrderToken(cluster, plan, requests, token);
    if (token == 4 || token == 20) machine.SetAvailable(kNothing);  // in the middle of a step
    if (token == 16 || token == 32) machine.SetAvailable(kPlenty);
    if (token % 4 == 0) cluster.AwaitSteps();
    if (token == 4 || token == 20) AwaitThat([&] { return engine.stats().shed >= places; }, "all places that may go are gone");
    if (token == 16 || token == 32)
      AwaitThat([&] { return engine.stats().shed <= before - places; }, "places come back while nobody computes");
  }
  ASSERT_NO_FATAL_FAILURE(ExpectBits(cluster, plan));
  EXPECT_GT(engine.stats().pressure_events, 0);
}

TEST_F(StagePressure, TheSystemHasTheMemoryOfPlacesUntilTheyComeBack) {
  TempDir dir;
  MakeModelOptions options;
  options.config.family = "qwen3_moe";
  options.config.num_layers = 2;
  options.config.hidden_size = 512;
  options.config.expert_intermediate_size = 1024;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ASSERT_NO_FATAL_FAILURE(Open(dir / "model", 200));
  const Plan plan = WithPlaces(8);
  const Bytes places = PlacesOf(plan);
  ASSERT_GT(places, 20 * kMiB);
  FakeMachine machine;
  StageCluster cluster(dir_, plan, 1, 1, Delivery::kInOrder, Greedy, {}, Watching(machine));
  ASSERT_TRUE(cluster.ok());
  const Bytes before = ProcessResidentBytes();
  machine.SetAvailable(kNothing);
  AwaitThat([&] { return ProcessResidentBytes() < before - 3 * places / 4; }, "the system has it");
  EXPECT_GE(cluster.engine(0).stats().shed, places);
  const Bytes low = ProcessResidentBytes();
  machine.SetAvailable(kPlenty);
  AwaitThat([&] { return ProcessResidentBytes() > low + places / 2; }, "places come back with their memory while nobody computes");
}

TEST_F(StagePressure, RowsOfNeuronsGoAndComeBackAndLeaveTheBitsOfTheModelByItself) {
  enum class Kind { kDense, kPacked, kCertified };
  for (const Kind kind : {Kind::kDense, Kind::kPacked, Kind::kCertified}) {
    const bool packed = kind == Kind::kPacked;
    TempDir dir;
    MakeModelOptions options;
    options.config.hidden_size = 128;
    options.config.intermediate_size = 512;
    if (packed) options.config.quantization = Quantization{4, 64};
    references_.clear();
    std::vector<DeciderForm> copies;
    ASSERT_NO_FATAL_FAILURE(OpenSparse(dir, options, kind == Kind::kCertified ? &copies : nullptr));
    const Plan plan = WithPlaces(0, 400, copies);
    const Bytes rows = PlacesOf(plan);
    ASSERT_GT(rows, 0);
    FakeMachine machine;
    StageCluster cluster(dir_, plan, 1, 1, Delivery::kInOrder, Greedy, {}, Watching(machine));
    ASSERT_TRUE(cluster.ok());
    StageEngine& engine = cluster.engine(0);
    const std::vector<Reference> requests = Requests(plan);
    for (int32_t s = 0; s < plan.sequences; ++s) OrderPrompt(cluster, plan, s, requests[static_cast<size_t>(s)], kContext);
    if (packed) {  // memory runs out while the prompt copies neurons
      AwaitThat([&] { return engine.stats().neurons_copied > 0; }, "the prompt copies neurons");
      machine.SetAvailable(kNothing);
    }
    for (int token = 0; token + 1 < kTokens; ++token) {
      const Bytes before = engine.stats().shed;
      OrderToken(cluster, plan, requests, token);
      if (token == 4 || token == 20) machine.SetAvailable(kNothing);  // in the middle of a step
      if (token == 16 || token == 32) machine.SetAvailable(kPlenty);
      if (token % 4 == 0) cluster.AwaitSteps();
      if (token == 4 || token == 20) AwaitThat([&] { return engine.stats().shed >= rows; }, "all rows that may go are gone");
      if (token == 16 || token == 32)
        AwaitThat([&] { return engine.stats().shed <= before - rows; }, "rows come back while nobody computes");
    }
    ASSERT_NO_FATAL_FAILURE(ExpectBits(cluster, plan));
    const DeviceStatistics stats = engine.stats();
    EXPECT_GT(stats.pressure_events, 0);
    EXPECT_GT(stats.neurons_loaded, 0);
    EXPECT_GT(stats.neurons_computed, stats.neurons_loaded) << "rows that stay are of use";
    EXPECT_GT(stats.neurons_copied, 0);
  }
}

TEST_F(StagePressure, TheSystemHasTheMemoryOfNeuronsUntilTheyComeBack) {
  TempDir dir;
  MakeModelOptions options;
  options.config.num_layers = 2;
  options.config.hidden_size = 512;
  options.config.num_heads = 8;
  options.config.intermediate_size = 4096;
  ASSERT_NO_FATAL_FAILURE(OpenSparse(dir, options));
  const Plan plan = WithPlaces(0, 4096);
  const Bytes rows = PlacesOf(plan);
  ASSERT_GT(rows, 20 * kMiB);
  FakeMachine machine;
  StageCluster cluster(dir_, plan, 1, 1, Delivery::kInOrder, Greedy, {}, Watching(machine));
  ASSERT_TRUE(cluster.ok());
  const Bytes before = ProcessResidentBytes();
  machine.SetAvailable(kNothing);
  AwaitThat([&] { return ProcessResidentBytes() < before - 3 * rows / 4; }, "the system has it");
  EXPECT_GE(cluster.engine(0).stats().shed, rows);
  const Bytes low = ProcessResidentBytes();
  machine.SetAvailable(kPlenty);
  AwaitThat([&] { return ProcessResidentBytes() > low + rows / 2; }, "rows come back with their memory while nobody computes");
  EXPECT_LE(ProcessResidentBytes(), before + rows / 8) << "no more than there was";
}

// A stage that has left gives its blocks to the next plan only where they are still whole.
TEST_F(StagePressure, APlanThatFollowsOneUnderPressureHasTheSameBits) {
  ASSERT_NO_FATAL_FAILURE(Open(ShippedModel("lime-fables"), 512));
  const Plan plan = OnOneDevice();
  FakeMachine machine;
  std::shared_ptr<WeightsHandover> weights;
  {
    StageCluster cluster(dir_, plan, 1, 1, Delivery::kInOrder, Greedy, {}, Watching(machine));
    ASSERT_TRUE(cluster.ok());
    machine.SetAvailable(3 * kMiB);
    AwaitThat([&] { return cluster.engine(0).stats().shed > 0; }, "an idle stage gives");
    cluster.EndDelivery();
    absl::StatusOr<PlanHandover> handover = cluster.engine(0).HandOver();
    ASSERT_TRUE(handover.ok()) << handover.status();
    weights = handover->weights;
  }
  machine.SetAvailable(kPlenty);
  const auto takeover = [&](int32_t) {
    auto weights_only = std::make_shared<KvTakeover>();
    weights_only->weights = weights;
    weights_only->read = [](auto&&...) { return absl::OkStatus(); };  // no sequence goes on
    return weights_only;
  };
  StageCluster cluster(dir_, plan, 1, 1, Delivery::kInOrder, Greedy, takeover, Watching(machine));
  weights.reset();
  ASSERT_TRUE(cluster.ok());
  const std::vector<Reference> requests = Requests(plan);
  for (int32_t s = 0; s < plan.sequences; ++s) OrderPrompt(cluster, plan, s, requests[static_cast<size_t>(s)], kContext);
  for (int token = 0; token + 1 < kTokens; ++token) OrderToken(cluster, plan, requests, token);
  ExpectBits(cluster, plan);
}

}  // namespace
}  // namespace lime
