#include "tests/sim/sim_plans.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "planner/kv/kv_growth.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/model/described_model.h"
#include "planner/plan/plan_residency.h"
#include "planner/problem/plan_problem.h"
#include "tests/planner/random_unit_shares.h"

namespace lime {
namespace {

StagePlan DrawStages(Random& random, const Instance& instance) {
  StagePlan plan;
  const int devices = instance.NumDevices(), percent = random.Below(101), cut = 5 + random.Below(60);
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    if (b == 0) {
      plan.stages.push_back({random.Below(devices), 0, 1});
    } else if (!instance.ContinuesBlock(b) && devices > 1 && random.Below(100) < cut) {
      plan.stages.push_back({(plan.stages.back().device + 1 + random.Below(devices - 1)) % devices, b, b + 1});
    } else {
      plan.stages.back().hi = b + 1;
    }
    if (random.Below(100) < percent) plan.streamed.push_back(b);
  }
  plan.embedding_by_rows = random.Below(2) == 0;
  return plan;
}

// Memory for what the plan needs and its margin, but for rings that are now and then larger.
void Tighten(Random& random, Plan& plan) {
  const std::vector<PlanNeed> needs = NeedsOf(plan);
  for (size_t d = 0; d < needs.size(); ++d) {
    PlanMemory& memory = plan.devices[d].memory;
    memory.ring = needs[d].streams ? needs[d].ring + (random.Below(2) == 0 ? 0 : random.Below(200'000)) : 0;
    memory.margin = plan.devices[d].least_margin;
    plan.devices[d].budget = memory.total();
  }
}

// Rings for whatever streams, until it is tightened.
void MakeElastic(Plan& plan) {
  Plan all = plan;
  for (PlanPart& part : all.parts) part.streamed = true;
  const std::vector<PlanNeed> needs = NeedsOf(all);
  for (size_t d = 0; d < needs.size(); ++d) {
    PlanDevice& device = plan.devices[d];
    device.memory.ring = needs[d].ring;
    device.memory.margin = kGiB;
    device.budget = device.memory.total();
  }
}

// KV parts as the pages make them; of the others at least `streamed`, and some more.
Residency DrawResidency(Random& random, const Plan& plan, int64_t layer_pages, const std::vector<int32_t>& streamed) {
  Residency residency{.layer_pages = layer_pages};
  const int percent = random.Below(60);
  for (int p = 0; p < plan.NumParts(); ++p) {
    const PlanPart& part = plan.parts[static_cast<size_t>(p)];
    const PlanDevice& device = plan.devices[static_cast<size_t>(plan.stages[static_cast<size_t>(StageOf(plan, p))].device)];
    const bool on_disk = HasKvOnDisk(device) && part.kv_begin < PositionsAway(plan, device, layer_pages);
    const bool streams = std::ranges::binary_search(streamed, p) || random.Below(100) < percent;
    if (part.is_kv() ? on_disk : streams && !part.on_demand()) residency.streamed.push_back(p);
  }
  return residency;
}

// Of every device so much that each level fits, and no more.
absl::StatusOr<SimPlan> WithLevels(Random& random, const Plan& plan, const std::vector<int32_t>& streamed, bool grows) {
  const int64_t full = FullLayerPages(plan);
  std::vector<int64_t> pages = {full};
  while (grows && pages.front() > 1 && random.Below(4) > 0)
    pages.insert(pages.begin(), 1 + random.Below(static_cast<int>(pages.front() - 1)));
  SimPlan made;
  std::vector<Bytes> budgets(plan.devices.size());
  for (const int64_t layer_pages : pages) {
    made.levels.push_back(DrawResidency(random, plan, layer_pages, streamed));
    LIME_ASSIGN_OR_RETURN(const Plan level, WithResidency(plan, made.levels.back()));
    for (size_t d = 0; d < budgets.size(); ++d) {
      const PlanDevice& device = level.devices[d];
      budgets[d] = std::max(budgets[d], device.memory.total() - device.memory.margin + device.least_margin);
    }
  }
  LIME_ASSIGN_OR_RETURN(made.plan, WithResidency(plan, made.levels.front()));
  for (size_t d = 0; d < budgets.size(); ++d) {
    PlanDevice& device = made.plan.devices[d];
    device.memory.margin -= device.budget - budgets[d];
    device.budget = budgets[d];
  }
  if (made.levels.size() == 1) made.levels.clear();
  return made;
}

// Another device, with a stage or without, has what this one has no room for: some of it comes back
// for a while, or all, or none.
void DrawHost(Random& random, Plan& plan, int d) {
  PlanDevice& device = plan.devices[static_cast<size_t>(d)];
  const int32_t host = random.Below(plan.NumDevices());
  if (host == d || std::ranges::find(plan.stages, d, &Stage::device) == plan.stages.end()) return;
  device.kv_host = host;
  const int pieces = static_cast<int>(HostedPieces(plan, device));
  device.asks_kv = random.Below(3) > 0;
  device.ask_kv_ms = 0.1;
  if (!device.asks_kv) {
    device.kv_fetch_pieces = pieces + kKvFetchesUnderWay + random.Below(4), device.kv_fetch_mb_per_ms = 0.1;
  } else if (random.Below(3) > 0) {
    device.kv_fetch_pieces = 1 + random.Below(3 * pieces + 4);
  }
}

// Of most layers of a model with ReLU, a few rows of neurons, or all of them.
void DrawNeuronRows(Random& random, const ModelSpec& spec, PlanRequest& request) {
  if (!MakesZeros(spec.config.activation)) return;
  for (const LayerConfig& layer : spec.config.layers)
    request.neuron_rows.push_back(random.Below(4) == 0 ? 0 : 1 + random.Below(static_cast<int>(layer.intermediate_size)));
  request.window_masks = 1 + random.Below(8);
}

bool KeepsState(const ModelSpec& spec) {
  return spec.NumKvLayers() < spec.config.num_layers();
}

// Some devices keep few pages; the others are on their disks, or with another device.
absl::StatusOr<Plan> CutForSpilling(Random& random, const ModelSpec& spec, const Plan& plan) {
  LIME_ASSIGN_OR_RETURN(Plan cut, CutForKv(plan, spec));
  for (int d = 0; d < cut.NumDevices(); ++d) {
    PlanDevice& device = cut.devices[static_cast<size_t>(d)];
    if (random.Below(4) > 0) device.max_layer_pages = WorkingPages(cut) + random.Below(random.Below(2) == 0 ? 4 : 60);
    if (device.max_layer_pages > 0 && random.Below(2) == 0) DrawHost(random, cut, d);
  }
  return cut;
}

}  // namespace

ModelSpec SimModel(int layers) {
  return *DescribeModel(
      absl::StrCat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": )", layers,
                   R"(, "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 256, "vocab_size": 900,
                     "max_position_embeddings": 8192, "tie_word_embeddings": false})"),
      "sim");
}

ModelSpec SimHybridModel(Random& random, int layers) {
  std::vector<std::string> types(static_cast<size_t>(layers), R"("linear_attention")");
  for (int full = 0; full < (layers > 2 ? 2 : 1); ++full) types[static_cast<size_t>(random.Below(layers))] = R"("full_attention")";
  return *DescribeModel(
      absl::StrCat(R"({"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "dtype": "bfloat16", "num_hidden_layers": )",
                   layers, R"(, "layer_types": [)", absl::StrJoin(types, ", "), R"(], "hidden_size": 16, "num_attention_heads": 4,
                     "num_key_value_heads": 1, "head_dim": 8, "intermediate_size": 256, "vocab_size": 900, "linear_num_key_heads": 1,
                     "linear_num_value_heads": 2, "linear_key_head_dim": 4, "linear_value_head_dim": 4, "linear_conv_kernel_dim": 4,
                     "rope_parameters": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.5},
                     "max_position_embeddings": 8192, "tie_word_embeddings": false})"),
      "sim");
}

ModelSpec SimExpertsModel(Random& random, int layers) {
  const int experts = 3 + random.Below(6);
  return *DescribeModel(
      absl::StrCat(R"({"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "dtype": "bfloat16", "num_hidden_layers": )",
                   layers, R"(, "mlp_only_layers": [)", layers > 1 ? absl::StrCat(random.Below(layers)) : "", R"(], "num_experts": )",
                   experts, R"(, "num_experts_per_tok": )", 1 + random.Below(3), R"(, "hidden_size": 16, "num_attention_heads": 4,
                     "num_key_value_heads": 1, "head_dim": 4, "intermediate_size": 256, "moe_intermediate_size": 64, "vocab_size": 900,
                     "norm_topk_prob": true, "max_position_embeddings": 8192, "tie_word_embeddings": false})"),
      "sim");
}

ModelSpec SimSparseModel(Random& random, int layers) {
  const int neurons = 40 + random.Below(200);
  if (random.Below(2) == 0) {
    return *DescribeModel(
        absl::StrCat(R"({"architectures": ["OPTForCausalLM"], "model_type": "opt", "dtype": "bfloat16", "num_hidden_layers": )", layers,
                     R"(, "hidden_size": 16, "word_embed_proj_dim": 16, "num_attention_heads": 4, "ffn_dim": )", neurons,
                     R"(, "activation_function": "relu", "do_layer_norm_before": true, "vocab_size": 900,
                       "max_position_embeddings": 8192, "tie_word_embeddings": false})"),
        "sim");
  }
  return *DescribeModel(
      absl::StrCat(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": )", layers,
                   R"(, "hidden_act": "relu", "hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 1,
                     "intermediate_size": )",
                   neurons, R"(, "vocab_size": 900, "max_position_embeddings": 8192, "tie_word_embeddings": false})"),
      "sim");
}

absl::StatusOr<SimPlan> DrawSimPlan(Random& random, const ModelSpec& spec, const std::vector<std::string>& devices,
                                    const SimPlanShape& shape) {
  std::vector<ClusterDevice> cluster;
  for (const std::string& name : devices) {
    ClusterDevice device{.name = name, .numerics_id = "hash", .budget = 64 * kGiB, .margin = random.Below(64 * kKiB)};
    device.profile.read_bytes_per_second = 10e9;
    device.profile.flops = 1e11;
    device.profile.disk = {{.read_bytes = kMiB, .depth = 8, .bytes_per_second = 1e9, .latency_ms = 0.1}};
    cluster.push_back(std::move(device));
  }
  PlanRequest request{.model_name = "sim", .context = shape.context, .sequences = shape.sequences, .prompt_tokens = shape.prompt};
  request.part_bytes = random.Below(3) == 0 ? 0 : Bytes{2 * kKiB} << random.Below(4);
  if (spec.config.experts && !shape.spills && !shape.grows && random.Below(4) > 0)
    request.unit_places = 1 + random.Below(static_cast<int>(spec.config.experts->count));
  DrawNeuronRows(random, spec, request);
  if (KeepsState(spec)) request.state_snapshots = random.Below(4);
  if (request.unit_places > 0) request.ahead_places = random.Below(4);
  request.chunks = {1 + random.Below(shape.most_chunk)};
  for (int32_t batch = 1; batch <= request.sequences; ++batch) request.batches.push_back(batch);
  LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(spec, cluster, request));
  PlanChoice choice{.stages = DrawStages(random, problem.instance)};
  choice.batch = 1 + random.Below(request.sequences);
  choice.microbatches = (request.sequences + choice.batch - 1) / choice.batch;
  choice.first_token = {.feasible = true,
                        .ms = 1,
                        .chunk_rows = static_cast<int32_t>(request.chunks[0]),
                        .chunks = static_cast<int32_t>((shape.prompt + request.chunks[0] - 1) / request.chunks[0]),
                        .chunks_per_sweep = 1};
  choice.first_token.chunks_per_sweep = shape.spills ? 1 : std::min<int32_t>(choice.first_token.chunks, 1 + random.Below(3));
  LIME_ASSIGN_OR_RETURN(Plan plan, MakePlan(problem, choice));
  if (request.unit_places > 0 && random.Below(2) == 0)
    DivideUnitsAtRandom(
        spec, [&random](int n) { return random.Below(n); }, plan);
  SimPlan made{.plan = plan};
  if (shape.spills || shape.grows) {
    const std::vector<int32_t> streamed = ResidencyOf(plan).streamed;
    if (shape.spills) {
      LIME_ASSIGN_OR_RETURN(plan, CutForSpilling(random, spec, plan));
    }
    MakeElastic(plan);
    LIME_ASSIGN_OR_RETURN(made, WithLevels(random, plan, shape.spills ? std::vector<int32_t>() : streamed, shape.grows));
  } else {
    Tighten(random, made.plan);
  }
  LIME_RETURN_IF_ERROR(made.plan.Validate(spec));
  return made;
}

}  // namespace lime
