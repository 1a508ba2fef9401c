#include <algorithm>
#include <array>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/output_flag.h"
#include "coordinator/commands/commands.h"
#include "coordinator/reports/text_table.h"
#include "coordinator/reports/trace_report.h"
#include "daemon/machine/files.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/evaluation/evaluator.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/device/limits.h"
#include "planner/plan/program.h"
#include "planner/sim/simulator.h"

namespace lime::cli {
namespace {

using nlohmann::ordered_json;
using Kind = TimelineSpan::Kind;

constexpr int kSettled = Evaluator::kSettledStep + 1;  // the first step that counts
constexpr int kMostSteps = 4096;
constexpr double kMostLinkSpeed = 1e6;
constexpr int64_t kMostSpans = 8'000'000;  // per simulation: half a gigabyte

struct SimulateFlags {
  std::string plan;
  OutputFlag trace{.kind = OutputKind::kTrace};
  int steps = 2;
  double link_speed = 1;
  bool from_start = false;
  bool prompt = false;
  bool json = false;
};

// The steps that are shown.
struct Window {
  double begin_ms = 0, end_ms = 0;
  int first = 0, steps = 0;
};

struct Simulation {
  Plan plan;
  SimulationResult result;
  Window window;
  double ms_per_step = 0;  // in the steady state; of a prompt, the time to its first token
};

absl::Status CheckFlags(const SimulateFlags& flags) {
  if (flags.steps < 1 || flags.steps > kMostSteps) return WrongCall(absl::StrCat("--steps ", flags.steps, " is outside 1 to ", kMostSteps));
  if (!(flags.link_speed >= 1 / kMostLinkSpeed && flags.link_speed <= kMostLinkSpeed))
    return WrongCall(absl::StrCat("--link-speed ", flags.link_speed, " is outside 1e-6 to 1e6"));
  return absl::OkStatus();
}

// A plan, or the output of `lime plan --json`, which contains one.
absl::StatusOr<Plan> ReadPlan(const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxPlanBytes));
  LIME_ASSIGN_OR_RETURN(const nlohmann::json root, ParseJsonObject(text, path, kMaxPlanBytes));
  if (root.contains("plan")) return PlanFromJson(root.at("plan"), path + ": plan");
  return PlanFromJson(root, path);
}

absl::StatusOr<Simulation> SimulatePrompt(Plan plan) {
  LIME_ASSIGN_OR_RETURN(SimulationResult result, SimulatePrefill(plan));
  const double end_ms = result.step_ends_ms.back();
  const int steps = static_cast<int>(result.step_ends_ms.size());
  return Simulation{std::move(plan), std::move(result), {.begin_ms = 0, .end_ms = end_ms, .first = 0, .steps = steps}, end_ms};
}

absl::StatusOr<Simulation> SimulateSteps(Plan plan, const SimulateFlags& flags) {
  const int steps = std::max(Evaluator::kSteps, (flags.from_start ? 0 : kSettled) + flags.steps);
  if (int64_t{3} * steps * plan.NumParts() * plan.microbatches > kMostSpans)
    return WrongCall(absl::StrCat("--steps ", flags.steps, " of this plan is more than ", kMostSpans, " spans; show fewer steps"));
  LIME_ASSIGN_OR_RETURN(SimulationResult result, SimulateDecode(plan, {.steps = steps}));
  const std::vector<double>& ends = result.step_ends_ms;
  const int first = flags.from_start ? 0 : kSettled;
  const Window window = {
      .begin_ms = first == 0 ? 0 : ends[first - 1], .end_ms = ends[first + flags.steps - 1], .first = first, .steps = flags.steps};
  const double rate = (ends[Evaluator::kSteps - 1] - ends[Evaluator::kSettledStep]) / (Evaluator::kSteps - 1 - Evaluator::kSettledStep);
  return Simulation{std::move(plan), std::move(result), window, rate};
}

// The part of the timeline in the window.
Timeline Shown(const Simulation& simulation) {
  const Timeline& all = simulation.result.timeline;
  Timeline shown = {.devices = all.devices, .parts = all.parts, .spans = {}};
  for (const TimelineSpan& span : all.spans) {
    if (span.end_ms > simulation.window.begin_ms && span.begin_ms < simulation.window.end_ms) shown.spans.push_back(span);
  }
  return shown;
}

ordered_json SimulationJson(const SimulateFlags& flags, const Simulation& simulation, const Timeline& shown) {
  const Plan& plan = simulation.plan;
  ordered_json events = ordered_json::array();
  for (const TimelineSpan& span : shown.spans) events.push_back(EventJson(shown, span));
  ordered_json devices = ordered_json::array();
  for (size_t d = 0; d < plan.devices.size(); ++d) {
    const SimulatedMemory& memory = simulation.result.devices[d];
    devices.push_back({{"name", plan.devices[d].name},
                       {"budget_bytes", plan.devices[d].budget},
                       {"most_used_bytes", memory.most_used},
                       {"most_in_ring_bytes", memory.most_in_ring}});
  }
  ordered_json out;
  if (flags.prompt) {
    out = {{"ttft_ms", simulation.ms_per_step}, {"predicted_ttft_ms", plan.predicted.ttft_ms}};
  } else {
    out = {{"ms_per_token", simulation.ms_per_step / plan.sequences},
           {"ms_per_step", simulation.ms_per_step},
           {"predicted_ms_per_token", plan.predicted.ms_per_token}};
  }
  out["begin_ms"] = simulation.window.begin_ms;
  out["end_ms"] = simulation.window.end_ms;
  out["devices"] = std::move(devices);
  out["events"] = std::move(events);
  return out;
}

// The shares of the window in which each device computes, waits, reads and sends.
std::string SharesText(const Simulation& simulation, const Timeline& shown, int columns) {
  using Align = TextTable::Align;
  const Window& window = simulation.window;
  const double whole = window.end_ms - window.begin_ms;
  std::vector<std::array<double, TimelineSpan::kKinds>> busy(shown.devices.size());
  for (const TimelineSpan& span : shown.spans)
    busy[span.device][static_cast<size_t>(span.kind)] += std::min(span.end_ms, window.end_ms) - std::max(span.begin_ms, window.begin_ms);
  TextTable table({Align::kLeft, Align::kRight, Align::kRight, Align::kRight, Align::kRight, Align::kRight});
  table.AddRow({"device", "computes", "waits for weights", "waits for input", "disk reads", "link sends"});
  for (size_t d = 0; d < busy.size(); ++d) {
    const auto share = [&](std::initializer_list<Kind> kinds) {
      double ms = 0;
      for (const Kind kind : kinds) ms += busy[d][static_cast<size_t>(kind)];
      return whole > 0 ? absl::StrFormat("%.0f %%", ms / whole * 100) : std::string();
    };
    table.AddRow({shown.devices[d], share({Kind::kCompute}), share({Kind::kWaitWeights, Kind::kWaitKv}),
                  share({Kind::kWaitInput, Kind::kWaitHost}), share({Kind::kLoad}), share({Kind::kSend})});
  }
  return table.Text(columns, -1);
}

void Print(const SimulateFlags& flags, const Simulation& simulation, const Timeline& shown) {
  const Plan& plan = simulation.plan;
  const Window& window = simulation.window;
  const int columns = OutputColumns();
  if (flags.prompt) {
    absl::PrintF("%s: first token %.2f ms after a prompt of %d tokens (the plan says %.2f)\n", plan.model_name, simulation.ms_per_step,
                 plan.prompt_tokens, plan.predicted.ttft_ms);
  } else {
    absl::PrintF("%s: %.3f ms per token, %.3f per step (the plan says %.3f)\n", plan.model_name, simulation.ms_per_step / plan.sequences,
                 simulation.ms_per_step, plan.predicted.ms_per_step);
  }
  absl::PrintF("shown: %d step%s from %.1f to %.1f ms\n\n", window.steps, window.steps == 1 ? "" : "s", window.begin_ms, window.end_ms);
  std::cout << GanttText(shown, window.begin_ms, window.end_ms, std::max(40, columns - 4)) << "\n"
            << SharesText(simulation, shown, columns) << std::flush;
}

absl::Status RunSimulate(const SimulateFlags& flags) {
  LIME_RETURN_IF_ERROR(CheckFlags(flags));
  LIME_RETURN_IF_ERROR(flags.trace.Check());
  LIME_ASSIGN_OR_RETURN(Plan plan, OfUser(ReadPlan(flags.plan)));
  plan.decode.tx_ms /= flags.link_speed, plan.prefill.tx_ms /= flags.link_speed;
  if (flags.prompt && plan.prompt_tokens == 0)
    return WrongCall("--prompt: the plan has no prompt; plan again and give the length of one with --prompt-tokens");
  absl::StatusOr<Simulation> simulation = flags.prompt ? SimulatePrompt(std::move(plan)) : SimulateSteps(std::move(plan), flags);
  if (!simulation.ok()) return simulation.status();
  const Timeline shown = Shown(*simulation);
  if (!flags.trace.path.empty()) LIME_RETURN_IF_ERROR(flags.trace.Write(TraceJson(shown)));
  if (flags.json) {
    std::cout << JsonText(SimulationJson(flags, *simulation, shown)) << std::endl;
  } else {
    Print(flags, *simulation, shown);
    if (!flags.trace.path.empty()) absl::PrintF("\ntrace in %s; open it at https://ui.perfetto.dev\n", flags.trace.path);
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("simulate: cannot write the answer to stdout");
}

}  // namespace

void AddSimulateCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<SimulateFlags>(
      "simulate", "The timeline of a plan",
      "Example: lime plan ... --out plan.json && lime simulate --plan plan.json --trace plan.trace.json", RunSimulate);
  command.Add("--plan,-p", &flags.plan, "File of `lime plan --out`, or the output of `lime plan --json`").Required();
  command.Add("--steps,-n", &flags.steps, "Decode steps to show, once the pipeline has settled").Shown();
  command.Add("--link-speed", &flags.link_speed, "Factor on the planned speed of links, such as 0.5").Shown();
  command.Add("--from-start", &flags.from_start, "Show the first steps, from an idle start with nothing read ahead");
  command.Add("--prompt", &flags.prompt, "Show the prompt that the plan is made for, up to its first token, instead of decode steps");
  flags.trace.AddTo(command, "--trace", "File for a Chrome/Perfetto trace of the steps shown");
  command.Add("--json", &flags.json, "Print one JSON object, with all events shown, and nothing else on stdout");
}

}  // namespace lime::cli
