// KV that follows its layers from one plan to another leaves every bit as one engine makes it:
// random plans, moments at which the next one takes over, and slots, by seed.

#include <fstream>

#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "tests/cases.h"
#include "tests/integration/stage/spilling_plans.h"

namespace lime {
namespace {

constexpr int kTokens = 24;

// A sequence as far as it has come.
struct Sequence {
  const Reference* request = nullptr;
  std::vector<int32_t> known;  // prompt, and tokens so far
  int64_t computed = 0;        // of them
  std::string hash;            // of the logits so far

  int64_t made() const { return std::ssize(known) - std::ssize(request->prompt); }
};

// Orders the rows of what is known and not computed, up to `end` positions.
void OrderKnown(StageCluster& cluster, const Plan& plan, int32_t slot, Sequence& sequence, int64_t end) {
  while (sequence.computed < end) {
    MicroBatch batch;
    for (int64_t i = 0; i < plan.prefill_chunk && sequence.computed < end; ++i, ++sequence.computed) {
      batch.rows.push_back({.sequence = slot,
                            .token = sequence.known[static_cast<size_t>(sequence.computed)],
                            .position = static_cast<int32_t>(sequence.computed),
                            .wants_logits = sequence.computed + 1 == std::ssize(sequence.known)});
    }
    cluster.SendOrder(StepOrder{{std::move(batch)}});
  }
}

// All sequences go on under a plan, until each has `tokens` tokens; `mid_prompt`: the last one
// stops there, within its prompt.
void GoOn(StageCluster& cluster, const Plan& plan, std::vector<Sequence>& sequences, int64_t tokens, std::optional<int64_t> mid_prompt) {
  std::vector<int64_t> before;
  for (int32_t slot = 0; slot < std::ssize(sequences); ++slot) {
    Sequence& sequence = sequences[static_cast<size_t>(slot)];
    if (sequence.computed > 0) cluster.sampler().Continue(slot, sequence.hash);
    before.push_back(sequence.made());
    cluster.SendOrder(
        AdmitOrder{.sequence = slot, .request = slot, .positions = kLongContext, .prompt = sequence.known, .computed = sequence.computed});
  }
  for (int32_t slot = 0; slot < std::ssize(sequences); ++slot) {
    Sequence& sequence = sequences[static_cast<size_t>(slot)];
    const bool stops = mid_prompt && slot + 1 == std::ssize(sequences);
    OrderKnown(cluster, plan, slot, sequence, stops ? *mid_prompt : std::ssize(sequence.known));
    for (int64_t made = sequence.made() + 1; !stops && made < tokens; ++made) {
      const int32_t position = static_cast<int32_t>(sequence.computed++);
      cluster.SendOrder(StepOrder{{{{{.sequence = slot, .token = kSampledToken, .position = position, .wants_logits = true}}}}});
    }
  }
  cluster.AwaitSteps();
  for (int32_t slot = 0; slot < std::ssize(sequences); ++slot) {
    Sequence& sequence = sequences[static_cast<size_t>(slot)];
    sequence.hash = cluster.sampler().HashState(slot);
    if (sequence.computed < std::ssize(sequence.request->prompt)) continue;
    const std::vector<int32_t> made = cluster.Await(slot, static_cast<size_t>(tokens - before[static_cast<size_t>(slot)]));
    sequence.known.insert(sequence.known.end(), made.begin(), made.end());
    ASSERT_EQ(std::vector(sequence.known.begin() + std::ssize(sequence.request->prompt), sequence.known.end()),
              std::vector(sequence.request->tokens.begin(), sequence.request->tokens.begin() + tokens));
  }
}

// What every device leaves.
std::vector<PlanHandover> HandOverAll(StageCluster& cluster, const Plan& plan) {
  cluster.EndDelivery();
  std::vector<PlanHandover> handover;
  for (int d = 0; d < plan.NumDevices(); ++d) {
    absl::StatusOr<PlanHandover> of_device = cluster.engine(d).HandOver();
    EXPECT_TRUE(of_device.ok()) << of_device.status();
    if (of_device.ok()) handover.push_back(*std::move(of_device));
  }
  return handover;
}

// What travelled, and from where.
struct Travelled {
  std::vector<int> fetched;  // layers, from other devices
  int64_t from_hosts = 0;    // runs of pages
};

// A device of the next plan has what the one with its number had before, where there was one.
StageCluster::Takeover TakeoverFrom(const Plan& next, const Plan& before, const std::vector<PlanHandover>& handover,
                                    const std::vector<KvSequence>& sequences, Travelled& travelled) {
  const auto named = [](Plan plan) {
    for (int32_t d = 0; d < plan.NumDevices(); ++d) plan.devices[d].name = absl::StrCat(d);
    return plan;
  };
  KvLentBy lent;
  for (size_t d = 0; d < handover.size(); ++d) lent[absl::StrCat(d)] = handover[d].kv->lent();
  return [&, lent, next = named(next), before = named(before)](int32_t device) {
    const KvTakeoverPlan kv = MakeKvTakeoverPlan(next, device, before, sequences, lent, {});
    auto takeover = std::make_shared<KvTakeover>();
    takeover->sequences = sequences;
    if (device < std::ssize(handover)) {
      takeover->here = handover[static_cast<size_t>(device)].kv;
      takeover->weights = handover[static_cast<size_t>(device)].weights;
    }
    takeover->read = [&, kv, device](int32_t layer, const std::string& numerics_id, std::span<const KvExtent> wanted,
                                     const KvTakeover::PageSink& hand) {
      for (const bool hosts : {true, false}) {
        for (const KvHolder& holder : kv.holders) {
          if (holder.hosts != hosts || !std::ranges::binary_search(holder.layers, layer)) continue;
          const KvHandover& from = *handover[static_cast<size_t>(std::stoi(holder.name))].kv;
          EXPECT_EQ(from.numerics_id(), numerics_id);
          if (holder.name != absl::StrCat(device)) travelled.fetched.push_back(layer);
          for (const KvExtent& extent : HeldBy(holder, wanted)) {
            LIME_RETURN_IF_ERROR(from.ReadAll(layer, hosts, extent, [&](int64_t first, std::span<const std::byte> pages) {
              travelled.from_hosts += hosts;
              return hand(extent.sequence, first, pages);
            }));
          }
        }
      }
      return absl::OkStatus();
    };
    return takeover;
  };
}

struct Totals {
  int taken_over = 0, from_disk = 0, to_disk = 0, to_hosts = 0;
  Travelled travelled;
};

// Devices that begin without some of the KV in memory, on their disk or with a host.
int BeginWithout(const Plan& plan, const std::vector<KvSequence>& sequences, bool (*has)(const PlanDevice&)) {
  int devices = 0;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const auto away = AwayAtFirst(plan, d, sequences);
    EXPECT_TRUE(away.ok()) << away.status();
    devices += away.ok() && has(plan.devices[d]) && std::ranges::any_of(*away, [](int64_t pieces) { return pieces > 0; });
  }
  return devices;
}

// Under the first plan, then under the next one, which takes its KV over.
void Generate(const std::string& dir, const Plan& first, const Plan& next, const std::vector<Reference>& references, uint64_t seed,
              Totals& totals) {
  std::mt19937_64 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random() % static_cast<uint64_t>(n)); };
  SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(first), "\n", ToJsonText(next)));
  std::vector<Sequence> sequences;
  for (int64_t s = 0; s < std::min(first.sequences, next.sequences); ++s)
    sequences.push_back({.request = &references[static_cast<size_t>(s)], .known = references[static_cast<size_t>(s)].prompt, .hash = {}});
  std::optional<int64_t> mid_prompt;
  if (below(3) == 0) mid_prompt = 1 + below(std::ssize(sequences.back().known) - 1);
  std::vector<PlanHandover> handover;
  {
    StageCluster cluster(dir, first, seed);
    ASSERT_TRUE(cluster.ok());
    GoOn(cluster, first, sequences, 1 + below(kTokens - 1), mid_prompt);
    if (testing::Test::HasFatalFailure()) return;
    Bytes written = 0;
    for (int d = 0; d < first.NumDevices(); ++d) written += cluster.engine(d).stats().kv_written;
    handover = HandOverAll(cluster, first);
    if (std::ssize(handover) != first.NumDevices()) return;
    totals.from_disk += written > 0;
  }
  // In any slots.
  std::vector<int32_t> order(sequences.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int32_t>(i);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<KvSequence> continued;
  std::vector<Sequence> after;
  for (size_t to = 0; to < order.size(); ++to) {
    const Sequence& sequence = sequences[static_cast<size_t>(order[to])];
    continued.push_back({.from = order[to], .to = static_cast<int32_t>(to), .positions = sequence.computed});
    if (HasState(first)) continued.back().states = {sequence.computed};
    after.push_back(sequence);
  }
  totals.to_disk += BeginWithout(next, continued, HasKvOnDisk), totals.to_hosts += BeginWithout(next, continued, HasKvOnHost);
  StageCluster cluster(
      dir, next, seed, 1, Delivery::kInOrder, [] { return std::make_unique<GreedySampler>(); },
      TakeoverFrom(next, first, handover, continued, totals.travelled));
  handover.clear();
  ASSERT_TRUE(cluster.ok());
  GoOn(cluster, next, after, kTokens, std::nullopt);
  if (testing::Test::HasFatalFailure()) return;
  for (int32_t slot = 0; slot < std::ssize(after); ++slot)
    ASSERT_EQ(cluster.sampler().hash(slot), after[static_cast<size_t>(slot)].request->hash);
  ++totals.taken_over;
}

std::vector<Variant> TakeoverVariants() {
  return {{.name = "llama_bf16", .quantization = std::nullopt},
          {.name = "mistral_f16", .family = "mistral", .dtype = DType::kF16, .quantization = std::nullopt, .window = 700},
          {.name = "qwen3_f32", .family = "qwen3", .dtype = DType::kF32, .quantization = std::nullopt},
          {.name = "qwen3_5_bf16", .family = "qwen3_5", .quantization = std::nullopt}};
}

class StageTakeover : public ::testing::TestWithParam<Variant> {};

TEST_P(StageTakeover, LeavesTheBitsOfOneEngine) {
  const int seeds = Cases(20, 60);
  MakeModelOptions options = OptionsOf(GetParam());
  options.config.max_positions = 2 * kLongContext;
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  const auto checkpoint = Checkpoint::Open(dir / "model");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<Reference> references;
  for (const int length : {1250, 530, 40})
    references.push_back(Alone(dir / "model",
                               RandomIds(70 + length, length, static_cast<int32_t>(std::min<int64_t>(200, options.config.vocab_size))),
                               kTokens, kLongContext));
  const auto draw = [&](uint64_t seed, int64_t pages) {
    Plan plan = DrawLongPlan(*spec, seed, pages);
    // States are taken over only from and to plans that lend no KV.
    while (HasState(plan) && std::ranges::any_of(plan.devices, HasKvOnHost)) plan = DrawLongPlan(*spec, seed += 10'000, pages);
    return plan;
  };
  Totals totals;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(seeds); ++seed) {
    Generate(dir / "model", draw(seed, 0), draw(seed + 1000, PagesAt(references, kTokens)), references, seed, totals);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(totals.taken_over, seeds);
  if (!ManyCases()) return;
  EXPECT_GT(totals.from_disk, 0);
  EXPECT_FALSE(totals.travelled.fetched.empty());
  if (HasState(GetParam())) return;  // its plans lend nothing
  EXPECT_GT(totals.from_disk, seeds / 4);
  EXPECT_GT(totals.travelled.from_hosts, seeds / 4);
  EXPECT_GT(totals.to_disk, seeds / 8);
  EXPECT_GT(totals.to_hosts, seeds / 8);
  EXPECT_GT(std::ssize(totals.travelled.fetched), seeds / 4);
}

// Layers with a window give pages back: of those, the next plan takes over only what rows still
// attend to. A plan with KV on a disk keeps all pages, and never reads the ones that it has not
// got.
TEST(StageTakeoverWindow, WhatAWindowHasGivenBackIsNotMissed) {
  for (const std::string family : {"gemma3", "gpt_oss"}) {
    SCOPED_TRACE(family);
    MakeModelOptions options = OptionsOf({.name = family, .family = family, .quantization = std::nullopt, .window = 50});
    options.config.max_positions = 2 * kLongContext;
    TempDir dir;
    ASSERT_TRUE(MakeModel(options, dir / "model").ok());
    const auto spec = LoadModelSpec(dir / "model");
    ASSERT_TRUE(spec.ok()) << spec.status();
    std::vector<Reference> references;
    for (const int length : {1250, 530, 40}) references.push_back(Alone(dir / "model", RandomIds(70, length, 200), kTokens, kLongContext));
    const auto in_memory = [&](uint64_t seed) {
      return RandomPlan(*spec, seed, {.context = kLongContext, .prompt = 200, .most_chunk = 90}).Draw();
    };
    const int64_t pages = PagesAt(references, kTokens);
    Totals totals;
    int plans = 0;
    for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(4, 40)); ++seed, plans += 3) {
      ASSERT_GT(WindowOf(in_memory(seed)).positions, 0);
      Generate(dir / "model", in_memory(seed), in_memory(seed + 1000), references, seed, totals);
      Generate(dir / "model", in_memory(seed), DrawLongPlan(*spec, 3 * seed + 1, pages), references, seed, totals);
      Generate(dir / "model", DrawLongPlan(*spec, 3 * seed + 2), in_memory(seed), references, seed, totals);
      if (HasFatalFailure()) return;
    }
    EXPECT_EQ(totals.taken_over, plans);
  }
}

// Under the first plan a message is lost, and the devices stop at different steps. Under the next one
// the sequence continues behind the positions that its tokens came from; if the model has a state, at
// the newest snapshot of no more positions.
void Interrupt(const std::string& dir, const Plan& first, const Plan& next, const Reference& request, uint64_t seed) {
  const int64_t known = std::ssize(request.prompt) + 1 + static_cast<int64_t>(seed % 8);
  std::vector<PlanHandover> handover;
  {
    StageCluster cluster(dir, first, seed);
    ASSERT_TRUE(cluster.ok());
    OrderPrompt(cluster, first, 0, request, kContext);
    for (int token = 0; token + 1 < kNewTokens; ++token) OrderToken(cluster, first, {request}, token);
    (void)cluster.Await(0, static_cast<size_t>(known - std::ssize(request.prompt)));
    handover = HandOverAll(cluster, first);
    ASSERT_EQ(std::ssize(handover), first.NumDevices());
  }
  const int64_t there = HasState(first) ? (known - 1) / kPageTokens * kPageTokens : known - 1;
  KvSequence sequence{.from = 0, .to = 0, .positions = there};
  if (HasState(first)) {
    sequence.states.assign(1 + static_cast<size_t>(first.state_snapshots), 0);
    for (int64_t at = kPageTokens; at <= there; at += kPageTokens) sequence.states[1 + static_cast<size_t>(SnapshotFor(first, at))] = at;
  }
  Travelled travelled;
  StageCluster cluster(
      dir, next, seed, 1, Delivery::kInOrder, [] { return std::make_unique<GreedySampler>(); },
      TakeoverFrom(next, first, handover, {sequence}, travelled));
  handover.clear();
  ASSERT_TRUE(cluster.ok());
  Reference rest = request;
  rest.prompt.insert(rest.prompt.end(), request.tokens.begin(), request.tokens.begin() + (known - std::ssize(request.prompt)));
  rest.tokens.erase(rest.tokens.begin(), rest.tokens.begin() + (known - std::ssize(request.prompt)));
  OrderPrompt(cluster, next, 0, rest, kContext, {.computed = there});
  for (int token = 0; token + 1 < std::ssize(rest.tokens); ++token) OrderToken(cluster, next, {rest}, token);
  EXPECT_EQ(cluster.Await(0, rest.tokens.size()), rest.tokens);
}

TEST(StageTakeoverInterrupted, KvOfDevicesThatStoppedInTheMiddleOfAStepIsWhole) {
  for (const size_t of : {size_t{0}, size_t{3}}) {
    SCOPED_TRACE(TakeoverVariants()[of].name);
    TempDir dir;
    ASSERT_TRUE(MakeModel(OptionsOf(TakeoverVariants()[of]), dir / "model").ok());
    const auto spec = LoadModelSpec(dir / "model");
    ASSERT_TRUE(spec.ok()) << spec.status();
    const Reference request = Alone(dir / "model", RandomIds(7, 39, 100));
    const auto draw = [&](uint64_t seed) { return RandomPlan(*spec, seed, {.state_snapshots = 1 + kContext / kPageTokens}).Draw(); };
    for (uint64_t seed = 1; seed <= static_cast<uint64_t>(Cases(12, 100)); ++seed) {
      const Plan first = draw(seed), next = seed % 3 == 0 ? draw(seed + 1000) : first;
      SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", ToJsonText(first), "\n", ToJsonText(next)));
      ASSERT_NO_FATAL_FAILURE(Interrupt(dir / "model", first, next, request, seed));
      if (HasFailure()) return;
    }
  }
}

// One on several devices, of which nothing streams.
Plan AllResident(const ModelSpec& spec) {
  for (uint64_t seed = 1; seed < 1000; ++seed) {
    Plan plan = RandomPlan(spec, seed, {.context = kLongContext, .prompt = 200, .most_chunk = 90}).Draw();
    if (plan.stages.size() < 2 || plan.embedding != EmbeddingPlacement::kResident) continue;
    const absl::StatusOr<Plan> resident = WithResidency(plan, {.layer_pages = ResidencyOf(plan).layer_pages});
    if (resident.ok()) return *resident;
  }
  ADD_FAILURE() << "no plan has room for all";
  return DrawLongPlan(spec, 1);
}

// Whoever reads a matrix from now on finds zeros.
void ZeroMatrices(const Checkpoint& checkpoint) {
  for (const auto& [name, info] : checkpoint.index()) {
    if (info.shape.size() < 2) continue;
    const TensorLocation& at = checkpoint.location(name);
    std::fstream file(checkpoint.files()[static_cast<size_t>(at.file)].path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(at.offset);
    file << std::string(static_cast<size_t>(at.bytes), '\0');
    ASSERT_TRUE(file.flush().good());
  }
}

TEST(StageTakeoverWeights, WhatStaysInMemoryIsNotReadAgain) {
  TempDir dir;
  MakeModelOptions options = OptionsOf(TakeoverVariants().front());
  options.config.max_positions = 2 * kLongContext;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  const auto checkpoint = Checkpoint::Open(dir / "model");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::vector<Reference> references = {Alone(
      dir / "model", RandomIds(7, 40, static_cast<int32_t>(std::min<int64_t>(200, options.config.vocab_size))), kTokens, kLongContext)};
  const Plan plan = AllResident(*spec);
  std::vector<Sequence> sequences = {{.request = &references[0], .known = references[0].prompt, .hash = {}}};
  std::vector<PlanHandover> handover;
  {
    StageCluster cluster(dir / "model", plan, 1);
    ASSERT_TRUE(cluster.ok());
    ASSERT_NO_FATAL_FAILURE(GoOn(cluster, plan, sequences, kTokens / 2, std::nullopt));
    handover = HandOverAll(cluster, plan);
    ASSERT_EQ(std::ssize(handover), plan.NumDevices());
  }
  ASSERT_NO_FATAL_FAILURE(ZeroMatrices(*checkpoint));
  EXPECT_NE(Alone(dir / "model", references[0].prompt, kTokens, kLongContext).hash, references[0].hash) << "or this test tells nothing";
  Travelled travelled;
  const std::vector<KvSequence> continued = {{.from = 0, .to = 0, .positions = sequences[0].computed}};
  StageCluster cluster(
      dir / "model", plan, 1, 1, Delivery::kInOrder, [] { return std::make_unique<GreedySampler>(); },
      TakeoverFrom(plan, plan, handover, continued, travelled));
  handover.clear();
  ASSERT_TRUE(cluster.ok());
  ASSERT_NO_FATAL_FAILURE(GoOn(cluster, plan, sequences, kTokens, std::nullopt));
  EXPECT_EQ(cluster.sampler().hash(0), references[0].hash);
  EXPECT_TRUE(travelled.fetched.empty()) << "nor did KV travel";
}

INSTANTIATE_TEST_SUITE_P(All, StageTakeover, ::testing::ValuesIn(TakeoverVariants()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
