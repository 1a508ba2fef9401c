// Helpers of the tests of StageEngine: random plans by seed, and the answers of the reference
// model.
#pragma once

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/order.h"
#include "common/sampling/logits_hash.h"
#include "gtest/gtest.h"
#include "planner/problem/plan_problem.h"
#include "tests/integration/models.h"
#include "tests/integration/variants.h"

namespace lime {

inline constexpr int64_t kContext = 96;
inline constexpr int kNewTokens = 12;

// The prompt of one sequence, and its answer by the reference model.
struct Reference {
  std::vector<int32_t> prompt, tokens;
  uint64_t hash = 0;
};

inline Reference Alone(const std::string& dir, std::vector<int32_t> prompt, size_t new_tokens = kNewTokens, int64_t context = kContext,
                       const std::string& numerics = "auto") {
  constexpr size_t kChunk = 64;
  Reference reference{.prompt = std::move(prompt)};
  const auto model = OpenReference(dir, {.chunk = kChunk, .numerics = numerics}, context);
  EXPECT_TRUE(model.ok()) << model.status();
  if (!model.ok()) return reference;
  EXPECT_TRUE((*model)->StartSequence(0, context).ok());
  MicroBatch batch;
  for (size_t i = 0; i < reference.prompt.size(); ++i) {
    const bool last = i + 1 == reference.prompt.size();
    batch.rows.push_back({.token = reference.prompt[i], .position = static_cast<int32_t>(i), .wants_logits = last});
    if (last || batch.rows.size() < kChunk) continue;
    EXPECT_TRUE((*model)->Step(batch).ok());
    batch.rows.clear();
  }
  LogitsHash hash;
  while (reference.tokens.size() < new_tokens) {
    const auto logits = (*model)->Step(batch);
    EXPECT_TRUE(logits.ok()) << logits.status();
    if (!logits.ok()) break;
    hash.Add(*logits);
    reference.tokens.push_back(static_cast<int32_t>(std::ranges::max_element(*logits) - logits->begin()));
    const int32_t position = static_cast<int32_t>(reference.prompt.size() + reference.tokens.size() - 1);
    batch.rows = {{.token = reference.tokens.back(), .position = position, .wants_logits = true}};
  }
  reference.hash = hash.value();
  return reference;
}

class RandomPlan {
 public:
  struct Shape {
    int64_t context = kContext;
    int64_t prompt = 32;
    int most_chunk = 24;
    int32_t state_snapshots = 0;
    bool evicts = false;                     // nothing streams, and only few positions keep KV
    bool demands = false;                    // experts load on demand
    bool sparse = false;                     // MLPs of some layers are sparse; the folder has bundles of all
    std::vector<DeciderForm> deciders = {};  // by layer, copies of deciders in the bundles; some sparse MLPs use them
  };
  RandomPlan(const ModelSpec& spec, uint64_t seed) : RandomPlan(spec, seed, {}) {}
  RandomPlan(const ModelSpec& spec, uint64_t seed, const Shape& shape) : spec_(spec), shape_(shape), random_(seed) {}

  int Below(int n) { return static_cast<int>(random_() % static_cast<uint64_t>(n)); }

  Plan Draw() {
    const int devices = 1 + Below(5);
    std::vector<ClusterDevice> cluster;
    for (int d = 0; d < devices; ++d) {
      ClusterDevice device{.name = std::string(1, static_cast<char>('a' + d)), .budget = 64 * kGiB};
      device.profile.read_bytes_per_second = 10e9;
      device.profile.flops = 1e11;
      device.profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
      cluster.push_back(std::move(device));
    }
    PlanRequest request{
        .context = shape_.context, .sequences = 1 + Below(3), .state_snapshots = shape_.state_snapshots, .prompt_tokens = shape_.prompt};
    request.part_bytes = Below(3) == 0 ? 0 : Bytes{4 * kKiB} << Below(5);
    if (shape_.evicts) request.retained_positions = kPageTokens * (2 + Below(3));
    if (shape_.demands) request.unit_places = 1 + Below(static_cast<int>(spec_.config.experts->count));
    for (int64_t layer = 0; shape_.sparse && layer < spec_.config.num_layers(); ++layer)
      request.neuron_rows.push_back(Below(4) == 0 ? 0 : 1 + Below(static_cast<int>(spec_.config.layer(layer).intermediate_size)));
    if (shape_.sparse) request.window_masks = 1 + Below(8);
    for (const DeciderForm& form : shape_.deciders) request.deciders.push_back(Below(4) == 0 ? DeciderForm() : form);
    request.chunks = {1 + Below(shape_.evicts ? static_cast<int>(request.retained_positions - kPageTokens) : shape_.most_chunk)};
    for (int32_t batch = 1; batch <= request.sequences; ++batch) request.batches.push_back(batch);
    const absl::StatusOr<PlanProblem> problem = MakePlanProblem(spec_, cluster, request);
    EXPECT_TRUE(problem.ok()) << problem.status();
    PlanChoice choice{.stages = Stages(problem->instance)};
    choice.batch = 1 + Below(request.sequences);
    choice.microbatches = (request.sequences + choice.batch - 1) / choice.batch;
    choice.first_token = {.feasible = true,
                          .ms = 1,
                          .chunk_rows = static_cast<int32_t>(request.chunks[0]),
                          .chunks = static_cast<int32_t>((shape_.prompt + request.chunks[0] - 1) / request.chunks[0]),
                          .chunks_per_sweep = 1};
    choice.first_token.chunks_per_sweep = std::min<int32_t>(choice.first_token.chunks, shape_.evicts ? 1 : 1 + Below(3));
    absl::StatusOr<Plan> plan = MakePlan(*problem, choice);
    EXPECT_TRUE(plan.ok()) << plan.status();
    if (!plan.ok()) return {};
    // Rings are as small as possible, or a little larger, so that loads wait for one another.
    const std::vector<PlanNeed> needs = NeedsOf(*plan);
    for (int d = 0; d < devices; ++d) {
      PlanMemory& memory = plan->devices[d].memory;
      const Bytes ring = needs[d].streams ? needs[d].ring + (Below(2) == 0 ? 0 : Below(200'000)) : 0;
      memory.margin += memory.ring - ring;
      memory.ring = ring;
    }
    return *std::move(plan);
  }

 private:
  // Whether block b is a head, which may be split at any of its parts.
  static bool IsHead(const Instance& instance, int b) { return instance.blocks[b].kind == Instance::Kind::kHead; }

  StagePlan Stages(const Instance& instance) {
    StagePlan plan;
    const int devices = instance.NumDevices(), percent = shape_.evicts ? 0 : Below(101), cut = 5 + Below(60);
    for (int b = 0; b < instance.NumBlocks(); ++b) {
      if (b == 0) {
        plan.stages.push_back({Below(devices), 0, 1});
      } else if ((!instance.ContinuesBlock(b) || (IsHead(instance, b) && !shape_.evicts)) && devices > 1 && Below(100) < cut) {
        plan.stages.push_back({(plan.stages.back().device + 1 + Below(devices - 1)) % devices, b, b + 1});
      } else {
        plan.stages.back().hi = b + 1;
      }
      if (Below(100) < percent) plan.streamed.push_back(b);
    }
    plan.embedding_by_rows = Below(2) == 0;
    return plan;
  }

  const ModelSpec& spec_;
  const Shape shape_;
  std::mt19937_64 random_;
};

// The same plan with everything in memory.
inline Plan KeepingAll(Plan plan) {
  for (PlanPart& part : plan.parts) part.streamed = false;
  plan.embedding = EmbeddingPlacement::kResident;
  const std::vector<PlanNeed> needs = NeedsOf(plan);
  for (size_t d = 0; d < needs.size(); ++d) {
    PlanMemory& memory = plan.devices[d].memory;
    memory.margin += memory.weights + memory.embedding + memory.ring - needs[d].weights - needs[d].embedding;
    memory.weights = needs[d].weights, memory.embedding = needs[d].embedding, memory.ring = 0;
  }
  return plan;
}

}  // namespace lime
