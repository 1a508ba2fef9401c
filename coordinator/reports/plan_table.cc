#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "coordinator/reports/plan_report.h"
#include "coordinator/reports/text_table.h"
#include "planner/base/bytes.h"
#include "planner/plan/plan_residency.h"

namespace lime::cli {
namespace {

constexpr auto kLeft = TextTable::Align::kLeft;
constexpr auto kRight = TextTable::Align::kRight;

std::string Ms(double ms) {
  return absl::StrFormat("%.*f", ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0, ms);
}

std::string Plural(int64_t n, const char* thing) {
  return absl::StrCat(n, " ", thing, n == 1 ? "" : "s");
}

std::string Blocks(double blocks) {
  return absl::StrFormat("%.*f", std::abs(blocks - std::round(blocks)) < 0.05 ? 0 : 1, blocks);
}

std::string Headline(const PlanReport& report) {
  const Plan& plan = report.plan;
  std::string text =
      absl::StrCat(plan.model_name, ", ", plan.context, " tokens of context, ", Plural(plan.sequences, "request"), " at a time");
  if (plan.sequences > 1)
    absl::StrAppend(&text, " in ", plan.microbatches, plan.microbatches == 1 ? " micro-batch of " : " micro-batches of ", plan.batch);
  return text + "; strategy " + report.strategy + "\n\n";
}

std::string Predicted(const PlanReport& report) {
  const Plan& plan = report.plan;
  const double ms = plan.predicted.ms_per_token, bound = plan.predicted.lower_bound_ms / report.TokensPerStep();
  std::string text = absl::StrFormat("predicted    %s ms per token (%.3g tokens/s", Ms(ms), ms > 0 ? 1000 / ms : 0.0);
  absl::StrAppend(&text, plan.sequences > 1 ? " over all requests)" : ")");
  if (bound > 0) absl::StrAppend(&text, absl::StrFormat("; no plan can beat %s, gap %.1f %%", Ms(bound), (ms / bound - 1) * 100));
  absl::StrAppend(&text, "\n");
  if (plan.prompt_tokens > 0) {
    absl::StrAppend(&text, absl::StrFormat("first token  %.2f s after a prompt of %d tokens, in chunks of %d",
                                           plan.predicted.ttft_ms / 1000, plan.prompt_tokens, plan.prefill_chunk));
    if (report.max_ttft_ms > 0) absl::StrAppend(&text, absl::StrFormat(" (the bound is %.2f s)", report.max_ttft_ms / 1000));
    absl::StrAppend(&text, "\n");
  }
  return text;
}

std::string Pipeline(const PlanReport& report) {
  const Plan& plan = report.plan;
  Bytes streamed = 0;
  for (const DeviceUse& use : report.uses) streamed += use.streamed_bytes;
  const UnitUse units = UnitUseOf(plan);
  const NeuronUse neurons = NeuronUseOf(plan);
  const std::string reads = streamed > 0         ? absl::StrCat(FormatBytes(streamed), " read from disks in every step")
                            : units.units > 0    ? "all but experts is resident"
                            : neurons.layers > 0 ? "all but neurons is resident"
                                                 : "everything is resident";
  const std::string experts = units.units > 0 ? absl::StrCat("             ", units.Text(report.TokensPerStep()), "\n") : "";
  const std::string sparse = neurons.layers > 0 ? absl::StrCat("             ", neurons.Text(report.TokensPerStep()), "\n") : "";
  const std::string why =
      report.sparsity_why.empty() ? "" : absl::StrCat("sparsity     ", NameOfSparsity(plan), ": ", report.sparsity_why, "\n");
  return absl::StrCat("pipeline     ", Plural(static_cast<int64_t>(plan.stages.size()), "stage"), " in ", Plural(NumRounds(plan), "round"),
                      ", ", reads, "; the embedding is ", plan.embedding == EmbeddingPlacement::kByRows ? "read by rows" : "resident",
                      " on ", plan.devices[plan.stages.front().device].name, "\n", experts, sparse, why);
}

// A table of the parts that each device holds and reads, and of its work per token.
std::string DeviceTable(const PlanReport& report, int columns) {
  TextTable table({kLeft, kRight, kRight, kRight, kRight, kRight, kRight, kRight, kRight});
  table.AddRow({"", "resident", "", "streamed", "", "compute", "load", "send", "uncovered"});
  table.AddRow({"device", "blocks", "", "blocks", "", "ms/token", "ms/token", "ms/token", "ms/token"});
  const double tokens = report.TokensPerStep();
  for (size_t d = 0; d < report.uses.size(); ++d) {
    const DeviceUse& use = report.uses[d];
    const std::string& name = report.plan.devices[d].name;
    if (use.stages.empty()) {
      table.AddRow({name, "-", "", "-", "", "-", "-", "-", "-"});
      continue;
    }
    table.AddRow({name, Blocks(use.resident_blocks), FormatBytes(use.resident_bytes), Blocks(use.streamed_blocks),
                  FormatBytes(use.streamed_bytes), Ms(use.compute_ms / tokens), Ms(use.load_ms / tokens), Ms(use.communication_ms / tokens),
                  use.uncovered_ms ? Ms(*use.uncovered_ms / tokens) : "-"});
  }
  return table.Text(columns, -1);
}

size_t LongestName(const Plan& plan) {
  size_t longest = 0;
  for (const PlanDevice& device : plan.devices) longest = std::max(longest, device.name.size());
  return longest;
}

std::string Bars(const PlanReport& report, int columns) {
  const Plan& plan = report.plan;
  const int longest = static_cast<int>(LongestName(plan));
  const int width = std::clamp(columns - longest - 36, 20, 120);
  const bool hosts = std::ranges::any_of(plan.devices, [](const PlanDevice& device) { return device.memory.hosted > 0; });
  const bool fetches = std::ranges::any_of(plan.devices, [](const PlanDevice& device) { return device.memory.fetched > 0; });
  const bool states = std::ranges::any_of(plan.devices, [](const PlanDevice& device) { return device.memory.state > 0; });
  std::string text = absl::StrCat("memory: R runtime, A activations, K KV cache, ", states ? "T state of the sequences, " : "",
                                  hosts ? "H KV of other devices, " : "", fetches ? "F fetched KV, " : "",
                                  "E embedding, W resident weights, S ring for streamed parts, . free\n");
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    const PlanDevice& device = plan.devices[d];
    absl::StrAppendFormat(&text, "%-*s  [%s]  %s of %s\n", longest, device.name, MemoryBar(device.memory, device.budget, width),
                          FormatBytes(device.memory.total() - device.memory.margin), FormatBytes(device.budget));
  }
  return text;
}

// One line per device, broken if it is too long; none for an empty text.
std::string Lines(const Plan& plan, const std::vector<std::string>& texts, int columns) {
  const int longest = static_cast<int>(LongestName(plan));
  std::string out;
  for (size_t d = 0; d < texts.size(); ++d) {
    if (texts[d].empty()) continue;
    const std::vector<std::string> lines = Wrap(texts[d], std::max(40, columns - longest - 2));
    for (size_t i = 0; i < lines.size(); ++i)
      absl::StrAppendFormat(&out, "%-*s  %s\n", longest, i == 0 ? plan.devices[d].name : "", lines[i]);
  }
  return out;
}

std::string Layers(const PlanReport& report, int columns) {
  std::vector<std::string> texts;
  bool halves = false;
  for (const DeviceUse& use : report.uses) {
    std::vector<std::string> stages;
    for (const int stage : use.stages) stages.push_back(StageText(report.plan, stage));
    texts.push_back(absl::StrJoin(stages, ", "));
    for (const std::string& stage : stages) halves = halves || stage.find_first_of("am") < stage.find('h');
  }
  return absl::StrCat("layers in order of use", halves ? " (a: up to the attention half, m: from the MLP half)" : "", "\n",
                      Lines(report.plan, texts, columns));
}

std::string Gain(const DeviceExplanation& device, double tokens) {
  if (!device.one_more_gib_ms) return "";
  const double gain = *device.one_more_gib_ms / tokens;
  if (std::abs(gain) < 0.005) return "; one more GiB would change nothing";
  return absl::StrCat("; one more GiB would ", gain > 0 ? "save " : "cost ", Ms(std::abs(gain)), " ms per token");
}

std::string Reasons(const PlanReport& report, int columns) {
  std::vector<std::string> texts;
  for (size_t d = 0; d < report.explanations.size(); ++d) {
    const DeviceExplanation& device = report.explanations[d];
    const char* const hosts = report.plan.devices[d].memory.hosted > 0 ? "keeps KV of other devices, has no stage: " : "left out: ";
    texts.push_back(absl::StrCat(device.used ? "used: " : hosts, device.why, Gain(device, report.TokensPerStep())));
  }
  return Lines(report.plan, texts, columns);
}

// Says that the model fits on one device. Not if KV grows, because then only the first level was
// checked.
std::string Alone(const PlanReport& report) {
  const int d = FastestAlone(report);
  if (d < 0 || GrowsKv(report.plan)) return "";
  const PlanDevice& device = report.plan.devices[d];
  const double ms = *report.explanations[d].alone_ms / report.TokensPerStep();
  const std::string model = report.model_argument.empty() ? absl::StrCat("FOLDER-OF-", report.plan.model_name) : report.model_argument;
  return absl::StrCat("\nEverything fits on ", device.name, " alone: ", Ms(ms),
                      " ms per token with nothing streamed. Run it there:\n  lime run --model ", model, " --memory ", device.budget / kMiB,
                      "MiB --context ", report.plan.context, "\n");
}

}  // namespace

std::string MemoryBar(const PlanMemory& memory, Bytes budget, int width) {
  const std::pair<char, Bytes> kinds[] = {{'R', memory.runtime},   {'A', memory.activations}, {'K', memory.kv},
                                          {'T', memory.state},     {'H', memory.hosted},      {'F', memory.fetched},
                                          {'E', memory.embedding}, {'W', memory.weights},     {'S', memory.ring}};
  std::string bar;
  Bytes before = 0;
  for (const auto& [letter, bytes] : kinds) {
    before += bytes;
    const double share = budget > 0 ? static_cast<double>(before) / static_cast<double>(budget) : 0;
    const size_t end = static_cast<size_t>(std::clamp<double>(std::round(share * width), 0, width));
    if (end > bar.size()) bar.append(end - bar.size(), letter);
  }
  bar.append(static_cast<size_t>(width) - bar.size(), '.');
  return bar;
}

std::string PlanText(const PlanReport& report, int columns) {
  std::string text = absl::StrCat(Headline(report), Predicted(report), Pipeline(report), "\n", DeviceTable(report, columns), "\n",
                                  Layers(report, columns), "\n", Bars(report, columns), "\n", Reasons(report, columns), Alone(report));
  for (const std::string& note : report.notes) absl::StrAppend(&text, "\nnote: ", note);
  if (!report.notes.empty()) absl::StrAppend(&text, "\n");
  return text;
}

}  // namespace lime::cli
