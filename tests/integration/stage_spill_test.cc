// KV that goes to disks and to other devices while a model generates over several engines leaves every bit as one engine with memory for it
// makes it: random plans, pages that each device keeps, and moments at which they change, by seed.

#include "daemon/engine/stage_engine.h"
#include "daemon/weights/checkpoint.h"
#include "gtest/gtest.h"
#include "planner/kv_parts.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "tests/integration/stage_cluster.h"
#include "tests/integration/stage_plans.h"

namespace lime {
namespace {

constexpr int64_t kLongContext = 1400;
constexpr int kTokens = 40;
constexpr int64_t kAhead = 2 * kResidencyLead;  // positions that there are pages for beyond those ordered

// With rings for whatever streams, and `more`.
Plan Elastic(Plan plan, Bytes more = 0) {
  Plan all = plan;
  for (PlanPart& part : all.parts) part.streamed = true;
  const std::vector<PlanNeed> needs = NeedsOf(all);
  for (int d = 0; d < plan.NumDevices(); ++d) {
    PlanMemory& memory = plan.devices[d].memory;
    memory.margin -= needs[d].ring + more - memory.ring;
    memory.ring = needs[d].ring + more;
  }
  return plan;
}

class Draws {
 public:
  Draws(const Plan& plan, uint64_t seed) : plan_(plan), random_(seed) {}

  int64_t Below(int64_t n) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(n)); }

  // KV parts as the pages make them, others at random.
  Residency Draw(int64_t layer_pages) {
    Residency residency{.layer_pages = layer_pages};
    const int64_t percent = Below(101);
    for (int p = 0; p < plan_.NumParts(); ++p) {
      const PlanPart& part = plan_.parts[p];
      const PlanDevice& device = plan_.devices[plan_.stages[StageOf(plan_, p)].device];
      const bool on_disk = HasKvOnDisk(device) && part.kv_begin < PositionsAway(plan_, device, layer_pages);
      if (part.is_kv() ? on_disk : Below(100) < percent) residency.streamed.push_back(p);
    }
    return residency;
  }

 private:
  const Plan& plan_;
  std::mt19937_64 random_;
};

// What comes back from the host: nothing, where there is room for some of it, or everything, since the host is not asked.
void DrawFetching(Plan& plan, int device, Draws& draws) {
  PlanDevice& of = plan.devices[device];
  const int64_t pieces = HostedPieces(plan, of);
  of.asks_kv = draws.Below(3) > 0;
  if (!of.asks_kv) {
    of.kv_fetch_pieces = pieces + kKvFetchesUnderWay + draws.Below(4), of.kv_fetch_mb_per_ms = 0.1;
  } else if (draws.Below(3) > 0) {
    of.kv_fetch_pieces = 1 + draws.Below(3 * pieces + 4);
  }
  of.memory.fetched = FetchedBytes(plan, of);
  of.budget += of.memory.fetched;
}

// Another device, with a stage or without, has what this one has no room for, and room for that.
void DrawHost(Plan& plan, int device, Draws& draws) {
  constexpr Bytes kMore = 64 * kMiB;
  const int32_t host = static_cast<int32_t>(draws.Below(plan.NumDevices()));
  const bool has_stage = std::ranges::find(plan.stages, device, &Stage::device) != plan.stages.end();
  if (host == device || !has_stage) return;
  plan.devices[device].kv_host = host;
  for (const int32_t d : {device, host}) plan.devices[d].budget += kMore, plan.devices[d].memory.margin += kMore;
  DrawFetching(plan, device, draws);
}

// Every device keeps any number of pages from the least on; some keep all. The others are on its disk, or with another device.
Plan Spilling(const ModelSpec& spec, uint64_t seed) {
  constexpr Bytes kCuts = kMiB;  // parts that are cut take a little more
  Plan plan = Elastic(RandomPlan(spec, seed, {.context = kLongContext, .prompt = 200, .most_chunk = 90}).Draw(), kCuts);
  absl::StatusOr<Plan> cut = CutForKv(plan, spec);
  EXPECT_TRUE(cut.ok()) << cut.status();
  if (!cut.ok()) return plan;
  cut = Elastic(*std::move(cut));
  Draws draws(*cut, seed);
  for (int d = 0; d < cut->NumDevices(); ++d) {
    PlanDevice& device = cut->devices[d];
    if (draws.Below(4) > 0) device.max_layer_pages = WorkingPages(*cut) + draws.Below(draws.Below(2) == 0 ? 4 : 150);
    if (device.max_layer_pages > 0 && draws.Below(4) > 0) DrawHost(*cut, d, draws);
  }
  return *std::move(cut);
}

void OrderPrompt(StageCluster& cluster, const Plan& plan, int32_t s, const Reference& request) {
  cluster.Give(AdmitOrder{.sequence = s, .request = s, .positions = kLongContext, .prompt = request.prompt});
  for (size_t at = 0; at < request.prompt.size();) {
    MicroBatch batch;
    for (int64_t i = 0; i < plan.prefill_chunk && at < request.prompt.size(); ++i, ++at) {
      batch.rows.push_back({.sequence = s,
                            .token = request.prompt[at],
                            .position = static_cast<int32_t>(at),
                            .wants_logits = at + 1 == request.prompt.size()});
    }
    cluster.Give(StepOrder{{std::move(batch)}});
  }
}

void OrderToken(StageCluster& cluster, const Plan& plan, const std::vector<Reference>& requests, int token) {
  StepOrder step;
  for (int32_t s = 0; s < static_cast<int32_t>(requests.size()); ++s) {
    if (s % plan.batch == 0) step.microbatches.emplace_back();
    step.microbatches.back().rows.push_back(
        {.sequence = s, .token = kSampledToken, .position = static_cast<int32_t>(requests[s].prompt.size()) + token, .wants_logits = true});
  }
  cluster.Give(std::move(step));
}

// Pages of a layer that the requests have before they have generated `tokens`.
int64_t PagesAt(const std::vector<Reference>& requests, int64_t tokens) {
  int64_t pages = 0;
  for (const Reference& request : requests) pages += (std::ssize(request.prompt) + tokens + kPageTokens - 1) / kPageTokens;
  return pages;
}

struct Totals {
  Bytes written = 0, read = 0, lent = 0, fetched = 0;
  int64_t changes = 0;
};

// A slot whose request has ended serves another one: what others have of the first one's KV is free.
void GenerateAgain(StageCluster& cluster, const Plan& plan, const std::vector<Reference>& requests) {
  for (int32_t s = 0; s < std::ssize(requests); ++s) cluster.Give(RetireOrder{s});
  const Reference& again = requests.back();
  OrderPrompt(cluster, plan, 0, again);
  OrderToken(cluster, plan, {again}, 0);
  const std::vector<int32_t> tokens = cluster.Await(0, kTokens + 2);
  ASSERT_EQ(std::vector(tokens.end() - 2, tokens.end()), std::vector(again.tokens.begin(), again.tokens.begin() + 2));
}

void Generate(const std::string& dir, const Plan& plan, const std::vector<Reference>& requests, uint64_t seed, Totals& totals) {
  Draws draws(plan, seed);
  const int64_t full = FullLayerPages(plan);
  // All pages from the start, or more as they are needed.
  const bool grows = seed % 3 != 0;
  const int64_t most = grows ? full - 1 : full;
  const auto draw = [&](int64_t tokens) {
    const int64_t least = std::min(most, PagesAt(requests, std::min<int64_t>(kTokens, tokens + kAhead)));
    return draws.Draw(grows ? least + draws.Below(most - least + 1) : full);
  };
  absl::StatusOr<Plan> first = WithResidency(plan, draw(0));
  ASSERT_TRUE(first.ok()) << first.status();
  SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", first->DebugString()));
  StageCluster cluster(dir, *first, seed, 1 + static_cast<int>(seed % 2));
  ASSERT_TRUE(cluster.ok());
  for (int32_t s = 0; s < std::ssize(requests); ++s) OrderPrompt(cluster, *first, s, requests[s]);
  for (int token = 0; token + 1 < kTokens; ++token) {
    if (grows && draws.Below(6) == 0) cluster.Give(ResidencyOrder{draw(token)});
    OrderToken(cluster, *first, requests, token);
    if (seed % 2 == 0) cluster.Await(0, static_cast<size_t>(token));
  }
  for (int32_t s = 0; s < std::ssize(requests); ++s) {
    ASSERT_EQ(cluster.Await(s, kTokens), requests[s].tokens);
    ASSERT_EQ(cluster.sampler().hash(s), requests[s].hash);
  }
  GenerateAgain(cluster, *first, requests);
  ASSERT_TRUE(cluster.status().ok()) << cluster.status();
  for (int d = 0; d < plan.NumDevices(); ++d) {
    const StageEngine::Stats stats = cluster.engine(d).stats();
    (HasKvOnHost(plan.devices[d]) ? totals.lent : totals.written) += stats.kv_written;
    totals.fetched += stats.kv_fetched;
    totals.read += stats.kv_read, totals.changes += stats.residency_changes;
    if (plan.devices[d].max_layer_pages == 0) {
      ASSERT_EQ(stats.kv_written, 0);
    }
  }
}

void ExpectBitsOfOne(const std::string& dir, int seeds, int64_t vocab) {
  const auto checkpoint = Checkpoint::Open(dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto spec = checkpoint->BuildModelSpec();
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<Reference> references;
  for (const int length : {1250, 530, 40})
    references.push_back(Alone(dir, RandomIds(70 + length, length, static_cast<int32_t>(vocab)), kTokens, kLongContext));
  Totals totals;
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(seeds); ++seed) {
    const Plan plan = Spilling(*spec, seed);
    Generate(dir, plan, {references.begin(), references.begin() + plan.sequences}, seed, totals);
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(totals.written, 0);
  EXPECT_GT(totals.lent, 0);
  // Nothing comes back that no window reaches.
  if (spec->config.sliding_window == 0 || spec->config.sliding_window > kKvPiece) {
    EXPECT_GT(totals.fetched, totals.lent / 10);
  } else {
    EXPECT_EQ(totals.fetched, 0);
  }
  EXPECT_GT(totals.read, 5 * totals.written);  // in every step again
  EXPECT_GT(totals.changes, seeds / 4);
}

// Families, dtypes, attention to all positions and to a window that begins within a piece or behind what is away.
std::vector<Variant> SpillVariants() {
  std::vector<Variant> variants = {
      {.name = "llama_bf16", .quantization = std::nullopt},
      {.name = "mistral_bf16", .family = ModelFamily::kMistral, .quantization = std::nullopt, .window = 700},
      {.name = "mistral_f16_short", .family = ModelFamily::kMistral, .dtype = DType::kF16, .quantization = std::nullopt, .window = 50},
      {.name = "qwen3_f32", .family = ModelFamily::kQwen3, .dtype = DType::kF32, .quantization = std::nullopt},
      {.name = "opt_bf16", .family = ModelFamily::kOpt, .quantization = std::nullopt, .head_dim = 24},
      {.name = "llama_q4", .quantization = Quantization{4, 64}}};
  for (Variant& variant : variants) {
    if (variant.family == ModelFamily::kOpt) variant.rope = RopeType::kNone, variant.activation = Activation::kRelu;
  }
  return variants;
}

class StageSpillFamilies : public ::testing::TestWithParam<Variant> {};

TEST_P(StageSpillFamilies, KvOnDisksLeavesTheBitsOfOneEngine) {
  MakeModelOptions options = OptionsOf(GetParam());
  options.config.max_positions = 2 * kLongContext;
  TempDir dir;
  ASSERT_TRUE(MakeModel(options, dir / "model").ok());
  ExpectBitsOfOne(dir / "model", 24, std::min<int64_t>(200, options.config.vocab_size));
}

INSTANTIATE_TEST_SUITE_P(All, StageSpillFamilies, ::testing::ValuesIn(SpillVariants()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace lime
