#include "tests/planner/plan_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/plan/baselines/eviction.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

std::string StageName(const Plan& plan, const Stage& stage) {
  int first_end = stage.lo, last_begin = stage.hi;
  while (first_end < stage.hi && plan.parts[first_end].block == plan.parts[stage.lo].block) ++first_end;
  while (last_begin > stage.lo && plan.parts[last_begin - 1].block == plan.parts[stage.hi - 1].block) --last_begin;
  if (last_begin == stage.lo) return PartsName(plan, stage.lo, stage.hi);
  return absl::StrCat(PartsName(plan, stage.lo, first_end), " .. ", PartsName(plan, last_begin, stage.hi));
}

// "  streams 1.2 GiB: mlp 3, mlp 4 [1-2/4]", empty where nothing streams.
std::string StreamedText(const Plan& plan, const Stage& stage) {
  Bytes bytes = 0;
  std::vector<std::string> runs;
  for (int p = stage.lo; p < stage.hi; ++p) {
    if (!plan.parts[p].streamed) continue;
    const int begin = p;
    while (p + 1 < stage.hi && plan.parts[p + 1].streamed && plan.parts[p + 1].block == plan.parts[begin].block &&
           plan.parts[p + 1].is_kv() == plan.parts[begin].is_kv())
      ++p;
    for (int part = begin; part <= p; ++part) bytes += plan.parts[part].bytes;
    runs.push_back(PartsName(plan, begin, p + 1));
  }
  return runs.empty() ? "" : absl::StrCat("\n       streams ", FormatBytes(bytes), ": ", absl::StrJoin(runs, ", "));
}

std::string Times(int64_t count, const char* what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::string DeviceLine(const Plan& plan, int d) {
  const PlanDevice& device = plan.devices[d];
  const PlanMemory& m = device.memory;
  return absl::StrFormat("  %-12s %10s %10s %11s %10s %10s %10s %10s %10s  %s\n", device.name.substr(0, 40), FormatBytes(device.budget),
                         FormatBytes(m.runtime), FormatBytes(m.activations), FormatBytes(m.kv), FormatBytes(m.ring), FormatBytes(m.weights),
                         FormatBytes(m.embedding), FormatBytes(m.margin), device.numerics_id);
}

std::string PredictionText(const Plan& plan) {
  const Prediction& p = plan.predicted;
  std::string text = absl::StrFormat("predicted %.6g ms per step, %.6g ms per token; no plan is below %.6g ms per step\n", p.ms_per_step,
                                     p.ms_per_token, p.lower_bound_ms);
  if (plan.prompt_tokens == 0) return text;
  absl::StrAppendFormat(&text, "first token of a prompt of %d after %.6g ms: %s of %d, %d in a sweep\n", plan.prompt_tokens, p.ttft_ms,
                        Times(plan.NumPrefillChunks(), "chunk"), plan.prefill_chunk, plan.chunks_per_sweep);
  return text;
}

}  // namespace

std::string PlanText(const Plan& plan) {
  std::string text = absl::StrCat("plan ", plan.epoch, " of ", plan.model_name, "\n", Times(plan.sequences, "sequence"), " of up to ",
                                  Times(plan.context, "token"), " in ", plan.microbatches,
                                  plan.microbatches == 1 ? " micro-batch of " : " micro-batches of ", plan.batch,
                                  plan.reads_once ? "" : ", each reading what it streams", "\n", PredictionText(plan));
  absl::StrAppendFormat(&text, "\n  %-12s %10s %10s %11s %10s %10s %10s %10s %10s  %s\n", "device", "budget", "runtime", "activations",
                        "kv", "ring", "weights", "embedding", "margin", "numerics");
  for (int d = 0; d < plan.NumDevices(); ++d) absl::StrAppend(&text, DeviceLine(plan, d));
  absl::StrAppend(&text, "\n", plan.embedding == EmbeddingPlacement::kByRows ? "  embedding by rows\n" : "");
  if (EvictsKv(plan)) {
    absl::StrAppend(&text, "  KV of the newest ", plan.retained_positions, " positions of a sequence is kept; that of up to ",
                    MostEvicted(plan), " others is computed again in every step\n");
  }
  for (size_t j = 0; j < plan.stages.size(); ++j) {
    absl::StrAppendFormat(&text, "  %2d %-12s %s%s\n", j, plan.devices[plan.stages[j].device].name.substr(0, 40),
                          StageName(plan, plan.stages[j]), StreamedText(plan, plan.stages[j]));
  }
  for (const PlanDevice& device : plan.devices) {
    if (!HasKvOnHost(device)) continue;
    absl::StrAppend(&text, "  ", plan.devices[device.kv_host].name, " has room for ", Times(HostedPieces(plan, device), "piece"), " of ",
                    device.name, "'s KV\n");
  }
  return text;
}

}  // namespace lime
