#include "planner/baselines/online_memory.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>
#include <utility>

#include "planner/base/check.h"
#include "planner/plan/plan_blocks.h"

namespace lime {
namespace {

double ExtraLoadMb(const OnlineProblem& problem, int64_t alpha, int64_t beta) {
  return static_cast<double>(alpha) * problem.mha_mb + static_cast<double>(beta) * problem.mlp_mb;
}

}  // namespace

int64_t OnlineCapacity(const OnlineProblem& problem, int64_t alpha, int64_t beta) {
  constexpr double kMostTokens = 1e15;
  const double room_mb = problem.free_mb + static_cast<double>(problem.visits - 1) * ExtraLoadMb(problem, alpha, beta);
  return static_cast<int64_t>(std::min(kMostTokens, std::floor(room_mb / problem.kv_tok_mb + 1e-9)));
}

// Capacity never falls as the extra load grows, so one pass in order of preference finds all
// thresholds.
OffloadTable MakeOffloadTable(const OnlineProblem& problem) {
  LIME_CHECK_LE((problem.cap_mha + 1) * (problem.cap_mlp + 1), kMaxOffloadChoices);
  std::vector<OffloadThreshold> choices;
  for (int64_t alpha = 0; alpha <= problem.cap_mha; ++alpha) {
    for (int64_t beta = 0; beta <= problem.cap_mlp; ++beta) {
      choices.push_back({alpha, beta, OnlineCapacity(problem, alpha, beta), ExtraLoadMb(problem, alpha, beta)});
    }
  }
  std::sort(choices.begin(), choices.end(), [](const OffloadThreshold& a, const OffloadThreshold& b) {
    return std::tuple(a.extra_load_mb_per_visit, a.alpha + a.beta, a.alpha) <
           std::tuple(b.extra_load_mb_per_visit, b.alpha + b.beta, b.alpha);
  });
  OffloadTable table{.steps = {choices.front()}};  // (0, 0)
  for (const OffloadThreshold& choice : choices) {
    if (table.steps.back().capacity_tokens >= problem.n_max) break;
    if (choice.capacity_tokens > table.steps.back().capacity_tokens) table.steps.push_back(choice);
  }
  table.exhausted = table.steps.back().capacity_tokens < problem.n_max;
  return table;
}

namespace {

// A block that is resident under the plan.
struct PaperBlock {
  int stage = 0;
  BlockId id;
  Bytes bytes = 0;
};

class PaperDevice {
 public:
  PaperDevice(const Plan& plan, int device, Bytes room, bool whole_layers) : plan_(plan), whole_(whole_layers) {
    for (int j = 0; j < static_cast<int>(plan.stages.size()); ++j) {
      if (plan.stages[j].device != device) continue;
      ++visits_;
      AddBlocks(j);
    }
    page_mb_ = Mb(layers_ * plan.page_bytes);
    Bytes resident = 0;
    for (const int p : PartsOn(plan, device)) {
      resident += MemoryOf(plan.parts[p]);
    }
    free_mb_ = std::max(0.0, Mb(room - resident));
  }

  // The additional streamed parts if a layer has `layer_pages` pages.
  std::vector<int32_t> More(int64_t layer_pages) const {
    if (visits_ == 0 || page_mb_ <= 0) return {};
    const auto [alpha, beta] = Choose(layer_pages);
    std::map<std::pair<int, bool>, int64_t> chosen;  // by stage and half
    std::vector<int32_t> parts;
    for (const PaperBlock& block : blocks_) {
      const bool attention = IsAttentionHalf(block.id.kind);
      int64_t& count = chosen[{block.stage, attention}];
      if (count >= (attention ? alpha : beta)) continue;
      ++count;
      const auto [begin, end] = PartsOf(plan_, block.id);
      for (int p = begin; p < end; ++p) {
        if (!plan_.parts[p].is_kv()) parts.push_back(p);
      }
    }
    return parts;
  }

 private:
  void AddBlocks(int stage) {
    for (int p = plan_.stages[stage].lo; p < plan_.stages[stage].hi; ++p) {
      const BlockId id = plan_.parts[p].block;
      const auto [begin, end] = PartsOf(plan_, id);
      if (p != begin || id.kind == BlockKind::kHead) continue;
      if (HasKv(id.kind)) ++layers_;
      PaperBlock block{.stage = stage, .id = id};
      bool resident = true;
      for (int part = begin; part < end; ++part) {
        const PlanPart& what = plan_.parts[part];
        if (!what.is_kv()) resident = resident && !what.streamed && !what.on_demand(), block.bytes += what.bytes;
      }
      if (resident) blocks_.push_back(block);
    }
  }

  // The number of halves of layers that every visit can still stream, and the size of one.
  std::pair<int64_t, double> Cap(LayerHalf half) const {
    std::map<int, int64_t> by_stage;
    double mb = 0;
    for (const PaperBlock& block : blocks_) {
      if (InfoOf(block.id.kind).half == half) ++by_stage[block.stage], mb = std::max(mb, Mb(block.bytes));
    }
    int64_t least = static_cast<int64_t>(by_stage.size()) < visits_ ? 0 : INT64_MAX;
    for (const auto& [stage, count] : by_stage) least = std::min(least, count);
    return {by_stage.empty() ? 0 : least, mb};
  }

  // The paper's tokens are pages of all layers here. Whole layers use a table with one kind of
  // block.
  std::pair<int64_t, int64_t> Choose(int64_t layer_pages) const {
    const auto [cap_mha, mha_mb] = Cap(LayerHalf::kAttention);
    const auto [cap_mlp, mlp_mb] = Cap(LayerHalf::kMlp);
    const OffloadTable table = MakeOffloadTable({.free_mb = free_mb_,
                                                 .kv_tok_mb = page_mb_,
                                                 .mha_mb = whole_ ? mha_mb + mlp_mb : mha_mb,
                                                 .mlp_mb = mlp_mb,
                                                 .visits = visits_,
                                                 .cap_mha = whole_ ? std::min(cap_mha, cap_mlp) : cap_mha,
                                                 .cap_mlp = whole_ ? 0 : cap_mlp,
                                                 .n_max = layer_pages});
    const OffloadThreshold& last = table.steps.back();
    return {last.alpha, whole_ ? last.alpha : last.beta};
  }

  const Plan& plan_;
  const bool whole_;  // layers
  int64_t visits_ = 0;
  double free_mb_ = 0, page_mb_ = 0;
  std::vector<PaperBlock> blocks_;
  int64_t layers_ = 0;  // with KV
};

}  // namespace

std::vector<int32_t> PaperRule(const Plan& plan, int device, Bytes room, int64_t layer_pages) {
  return PaperDevice(plan, device, room, /*whole_layers=*/false).More(layer_pages);
}

std::vector<int32_t> WholeLayersRule(const Plan& plan, int device, Bytes room, int64_t layer_pages) {
  return PaperDevice(plan, device, room, /*whole_layers=*/true).More(layer_pages);
}

}  // namespace lime
