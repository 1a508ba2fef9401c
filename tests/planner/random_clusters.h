// Random planning problems with parts in bytes, and random plans for them. A seed gives the same
// ones on every machine. Memory is tight, so that loads wait for one another.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "planner/evaluation/evaluator.h"
#include "planner/problem/plan_problem.h"
#include "tests/planner/random_plans.h"

namespace lime {

class RandomClusters {
 public:
  // With `experts`, layers have experts on demand in place of an MLP.
  explicit RandomClusters(uint64_t seed, bool experts = false) : hybrid_(seed % 3 == 0), experts_(experts), random_(seed) {}

  struct Drawn {
    PlanProblem problem;
    PlanChoice choice;
    std::vector<double> step_ends_ms;  // of the decode step, by the Evaluator
  };

  // A problem and a plan that fits.
  Drawn Draw() {
    const int32_t sequences = random_.Int(1, 6);
    Drawn drawn = {.problem = MakeProblem(sequences)};
    PlanChoice& choice = drawn.choice;
    choice.batch = random_.Chance(50) ? sequences : random_.Int(1, sequences);
    if (!drawn.problem.instance.net.tx_ms_by_batch.contains(choice.batch)) choice.batch = sequences;
    choice.stages = WithoutDemand(drawn.problem, MakeStages(drawn.problem.instance));
    choice.lower_bound_ms = 1;
    choice.microbatches = (sequences + choice.batch - 1) / choice.batch;
    const bool once = VisitsADeviceAgain(choice.stages) || choice.microbatches == 1 || random_.Chance(50);
    choice.reads_once = once;
    const int per_sweep = once ? random_.Int(1, 4) : 1;
    FitMemory(choice, per_sweep, drawn.problem);
    if (drawn.problem.first_token) choice.first_token = FirstTokenOf(*drawn.problem.first_token, choice, per_sweep);
    drawn.step_ends_ms = StepEnds(drawn.problem, choice);
    return drawn;
  }

  RandomPlans& random() { return random_; }

 private:
  static double Mb(Bytes bytes) { return static_cast<double>(bytes) / 1e6; }

  Bytes RandomBytes(Bytes low, Bytes high) {
    return static_cast<Bytes>(random_.Number(static_cast<double>(low), static_cast<double>(high)));
  }

  void AddBlock(BlockId id, std::vector<PlanPart>& parts) {
    const int pieces = random_.Int(1, 3);
    const TensorRole role = id.kind == BlockKind::kHead ? TensorRole::kOutput : HasState(id.kind) ? TensorRole::kQkv : TensorRole::kQ;
    for (int i = 0; i < pieces; ++i) {
      PlanPart part = {.block = id, .rows = {{role, i * kVocabRange, (i + 1) * kVocabRange}}};
      part.bytes = random_.Chance(5) ? 0 : RandomBytes(1'000'000, random_.Chance(30) ? 60'000'000 : 20'000'000);
      part.pinned_bytes = i == 0 || id.kind == BlockKind::kHead ? random_.Int(0, 5000) : 0;
      const int kept = i == 0 && IsAttentionHalf(id.kind) ? random_.Int(0, 200) : 0;
      part.kv_pages = HasKv(id.kind) ? kept : 0;
      part.state_bytes = HasState(id.kind) ? kept * 30'000 : 0;
      parts.push_back(std::move(part));
    }
  }

  void AddExperts(int32_t layer, std::vector<PlanPart>& parts) {
    AddBlock({BlockKind::kExperts, layer}, parts);
    PlanPart part = {.block = {BlockKind::kExperts, layer}};
    const int units = random_.Int(1, 6);
    for (int32_t e = 0; e < units; ++e) {
      for (const TensorRole role : {TensorRole::kUp, TensorRole::kDown}) part.rows.push_back({role, 0, 64, e});
    }
    part.unit_bytes = RandomBytes(1'000'000, 10'000'000);
    part.bytes = units * part.unit_bytes;
    part.places = random_.Int(1, units);
    parts.push_back(std::move(part));
  }

  // Adds random reads to the times of the parts on demand.
  std::vector<PartDemand> AddDemand(const std::vector<PlanPart>& parts, std::vector<double>& comp_ms) {
    std::vector<PartDemand> demands;
    for (size_t p = 0; p < parts.size(); ++p) {
      if (!parts[p].on_demand()) continue;
      demands.push_back(
          {.part = static_cast<int32_t>(p), .compute_ms = comp_ms[p], .read_ms = random_.Chance(20) ? 0 : random_.Number(0, 9)});
      demands.back().chosen_units = 1, demands.back().hit_share = 0.5;
      comp_ms[p] += demands.back().read_ms;
    }
    return demands;
  }

  std::vector<double> Times(size_t parts) {
    std::vector<double> times;
    for (size_t p = 0; p < parts; ++p) times.push_back(random_.Chance(5) ? 0 : random_.Number(0.5, 8));
    return times;
  }

  PlanProblem MakeProblem(int32_t sequences) {
    PlanProblem problem;
    Plan& head = problem.head;
    head.model_name = "random";
    head.sequences = sequences;
    head.context = 4096;
    head.page_bytes = 1 + random_.Int(0, 40000);
    head.embedding_bytes = random_.Chance(30) ? 0 : RandomBytes(0, 20'000'000);
    head.embedding_pinned_bytes = random_.Chance(70) ? 0 : random_.Int(1, 100000);
    for (int32_t layer = 0, layers = random_.Int(1, 5); layer < layers; ++layer) {
      AddBlock({hybrid_ && layer % 4 != 0 ? BlockKind::kLinearAttention : BlockKind::kAttention, layer}, head.parts);
      if (experts_) {
        AddExperts(layer, head.parts);
      } else {
        AddBlock({BlockKind::kMlp, layer}, head.parts);
      }
    }
    AddBlock({BlockKind::kHead, 0}, head.parts);
    head.vocab_size = head.parts.back().rows.back().end;
    if (random_.Chance(50)) head.parts.back().rows.back().end = head.vocab_size -= random_.Int(1, 1000);
    const int devices = random_.Int(1, 4);
    for (int d = 0; d < devices; ++d) head.devices.push_back({.name = std::string(1, static_cast<char>('a' + d))});
    SetInstance(problem);
    if (random_.Chance(60)) AddPrompt(problem);
    return problem;
  }

  void SetInstance(PlanProblem& problem) {
    Instance& instance = problem.instance;
    const Plan& head = problem.head;
    for (const PlanPart& part : head.parts) {
      instance.blocks.push_back(
          {.kind = InstanceKind(part.block.kind),
           .layer = part.block.layer,
           .mb = Mb(MovableBytes(part)),
           .kv_mb = Mb(part.pinned_bytes + (part.on_demand() ? MemoryOf(part) : 0) + part.kv_pages * head.page_bytes + part.state_bytes),
           .state_mb = Mb(part.state_bytes)});
    }
    instance.blocks.front().kv_mb += Mb(head.embedding_pinned_bytes);
    instance.embed_mb = Mb(head.embedding_bytes);
    instance.sequences = head.sequences;
    instance.net.lat_ms = random_.Number(0, 2);
    for (const int32_t batch : {1, 2, head.sequences}) instance.net.tx_ms_by_batch[std::min(batch, head.sequences)] = random_.Number(0, 3);
    for (const PlanDevice& device : head.devices) {
      Instance::Device& added = instance.devices.emplace_back();
      added.name = device.name;
      added.disk_mb_per_ms = random_.Number(0.5, 10);
      added.disk_lat_ms = random_.Number(0, 1);
      if (experts_) problem.demand.emplace_back();
      for (const auto& [batch, tx_ms] : instance.net.tx_ms_by_batch) {
        std::vector<double>& comp_ms = added.comp_ms_by_batch[batch] = Times(head.parts.size());
        if (experts_) problem.demand.back().decode[batch] = AddDemand(head.parts, comp_ms);
      }
      added.comp_ms = added.comp_ms_by_batch.rbegin()->second;
      added.embed_rows_ms = random_.Number(0, 3);
    }
  }

  void AddPrompt(PlanProblem& problem) {
    problem.head.prompt_tokens = random_.Int(1, 3000);
    FirstTokenProblem& first = problem.first_token.emplace();
    first.prompt_tokens = static_cast<int32_t>(problem.head.prompt_tokens);
    PrefillChunk chunk = {.rows = random_.Int(1 + first.prompt_tokens / 60, first.prompt_tokens), .instance = problem.instance};
    for (size_t d = 0; d < chunk.instance.devices.size(); ++d) {
      Instance::Device& device = chunk.instance.devices[d];
      device.comp_ms = Times(problem.head.parts.size());
      if (experts_) problem.demand[d].prefill[chunk.rows] = AddDemand(problem.head.parts, device.comp_ms);
      device.embed_rows_ms = random_.Number(0, 3);
    }
    chunk.instance.net = {.tx_ms = random_.Number(0, 9), .lat_ms = problem.instance.net.lat_ms};
    first.chunks.push_back(std::move(chunk));
  }

  StagePlan MakeStages(const Instance& instance) {
    StagePlan plan;
    const int devices = instance.NumDevices(), percent = random_.Int(0, 100), cut_percent = random_.Int(10, 60);
    for (int b = 0; b < instance.NumBlocks(); ++b) {
      const bool may_begin = !instance.ContinuesBlock(b) || instance.blocks[b].kind == Instance::Kind::kHead;
      if (b == 0) {
        plan.stages.push_back({random_.Int(0, devices - 1), 0, 1});
      } else if (may_begin && devices > 1 && random_.Chance(cut_percent)) {
        const int before = plan.stages.back().device;
        plan.stages.push_back({(before + random_.Int(1, devices - 1)) % devices, b, b + 1});
      } else {
        plan.stages.back().hi = b + 1;
      }
      if (random_.Chance(percent)) plan.streamed.push_back(b);
    }
    plan.embedding_by_rows = random_.Chance(50);
    return plan;
  }

  static bool VisitsADeviceAgain(const StagePlan& plan) {
    std::vector<int32_t> devices;
    for (const Stage& stage : plan.stages) devices.push_back(stage.device);
    std::ranges::sort(devices);
    return std::ranges::adjacent_find(devices) != devices.end();
  }

  // Sets budgets that leave each device a ring as large as the plan needs, or larger.
  void FitMemory(const PlanChoice& choice, int per_sweep, PlanProblem& problem) {
    Plan plan = problem.head;
    plan.stages = choice.stages.stages;
    for (const int32_t p : choice.stages.streamed) plan.parts[p].streamed = true;
    plan.embedding = choice.stages.embedding_by_rows ? EmbeddingPlacement::kByRows : EmbeddingPlacement::kResident;
    plan.microbatches = choice.microbatches;
    plan.chunks_per_sweep = plan.prompt_tokens > 0 ? per_sweep : 0;
    plan.reads_once = choice.reads_once;
    const std::vector<PlanNeed> needs = NeedsOf(plan);
    for (int d = 0; d < plan.NumDevices(); ++d) {
      PlanDevice& device = problem.head.devices[d];
      device.memory.runtime = random_.Int(0, 1000000), device.memory.activations = random_.Int(0, 1000000);
      device.memory.margin = device.least_margin = random_.Int(0, 1000);
      const Bytes extra = random_.Chance(30) ? 0 : RandomBytes(0, random_.Chance(20) ? 400'000'000 : 40'000'000);
      const PlanNeed& need = needs[d];
      const Bytes mem = need.weights + need.embedding + need.kv_pages * plan.page_bytes + need.state + need.ring + extra;
      device.budget = mem + device.memory.total();
      const double mem_mb = (static_cast<double>(mem) - 0.5) / 1e6;
      problem.instance.devices[d].mem_mb = std::max(0.0, mem_mb);
      if (problem.first_token) problem.first_token->chunks[0].instance.devices[d].mem_mb = std::max(0.0, mem_mb);
    }
  }

  static FirstToken FirstTokenOf(const FirstTokenProblem& problem, const PlanChoice& choice, int per_sweep) {
    const PrefillChunk& chunk = problem.chunks[0];
    FirstToken first = {.chunk_rows = chunk.rows, .chunks = (problem.prompt_tokens + chunk.rows - 1) / chunk.rows};
    first.chunks_per_sweep = std::min(per_sweep, first.chunks);
    Evaluator evaluator(chunk.instance);
    first.ms = evaluator.PromptMs(choice.stages, first.chunks, first.chunks_per_sweep);
    first.feasible = std::isfinite(first.ms);
    return first;
  }

  static std::vector<double> StepEnds(const PlanProblem& problem, const PlanChoice& choice) {
    Instance instance = problem.instance;
    instance.microbatches = choice.microbatches;
    instance.net.tx_ms = instance.net.tx_ms_by_batch.at(choice.batch);
    for (Instance::Device& device : instance.devices) device.comp_ms = device.comp_ms_by_batch.at(choice.batch);
    Evaluator evaluator(instance, choice.reads_once);
    evaluator.MsPerStep(choice.stages);
    return {evaluator.step_ends_ms().begin(), evaluator.step_ends_ms().end()};
  }

  const bool hybrid_, experts_;  // hybrid: of four layers, three have a state in place of KV
  RandomPlans random_;
};

}  // namespace lime
