#include <iostream>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/input/command_line.h"
#include "coordinator/cli/model_weights.h"
#include "coordinator/cli/output_flag.h"
#include "coordinator/commands/commands.h"
#include "coordinator/planning/cluster_planning.h"
#include "coordinator/planning/plan_inputs.h"
#include "coordinator/planning/routes.h"
#include "coordinator/reports/kv_levels_report.h"
#include "coordinator/reports/plan_report.h"
#include "coordinator/reports/progress.h"
#include "coordinator/reports/text_table.h"
#include "coordinator/sessions/sparse_flags.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/plan/cluster_plan_json.h"
#include "planner/plan/plan_rows.h"
#include "planner/search/plan_search.h"

namespace lime::cli {
namespace {

using nlohmann::ordered_json;

struct PlanFlags {
  PlanInputFlags inputs;
  std::string strategy = "lime";
  std::string experts = "auto";
  std::string read_ahead = "auto";
  std::string routes;
  ModelFlags sparse;  // --sparsity and the flags beside it alone
  OutputFlag out{.kind = OutputKind::kPlan};
  double max_ttft_ms = 0;
  std::optional<double> time_limit_ms;
  uint64_t seed = 1;
  bool json = false;
};

absl::StatusOr<Strategy> CheckFlags(const PlanFlags& flags) {
  const std::optional<Strategy> strategy = kStrategyNames.Find(flags.strategy);
  if (!strategy) {
    return WrongCall(absl::StrCat("--strategy ", AsTyped(flags.strategy),
                                  " is unknown; use lime, lime-paper, pp, pp-offload, pp-offload-batched or edgeshard"));
  }
  LIME_RETURN_IF_ERROR(ParseExperts(flags.experts).status());
  LIME_RETURN_IF_ERROR(ParseReadAhead(flags.read_ahead).status());
  if (flags.time_limit_ms && !(*flags.time_limit_ms >= 1 && *flags.time_limit_ms <= kMaxTimeLimitMs))
    return WrongCall(absl::StrCat("--time-limit ", *flags.time_limit_ms, " is outside 1 to ", kMaxTimeLimitMs, " ms"));
  if (!(flags.max_ttft_ms >= 0 && flags.max_ttft_ms <= kMaxPlanNumber))
    return WrongCall(absl::StrCat("--max-ttft ", flags.max_ttft_ms, " is outside 0 to ", kMaxPlanNumber, " ms"));
  if (flags.max_ttft_ms > 0 && flags.inputs.prompt_tokens == 0)
    return WrongCall("--max-ttft bounds the time to the first token after a prompt; give the length of a prompt with --prompt-tokens");
  return *strategy;
}

// Finds the plan and explains it.  ResourceExhausted, in one sentence, if no plan fits.
absl::StatusOr<PlanReport> PlanAndExplain(const PlanFlags& flags, Strategy strategy, PlanInputs inputs) {
  ElapsedLine progress("Planning");
  LIME_ASSIGN_OR_RETURN(inputs.unit_places, ParseExperts(flags.experts));
  LIME_ASSIGN_OR_RETURN(inputs.ahead_places, ParseReadAhead(flags.read_ahead));
  ClusterPlanning planning({.strategy = strategy,
                            .seed = flags.seed,
                            .work_ms = flags.time_limit_ms.value_or(kPlanWorkMs),
                            .time_limit_ms = flags.time_limit_ms,
                            .max_ttft_ms = flags.max_ttft_ms,
                            .at = [&](const std::string& what) { progress.Say(what); }},
                           std::move(inputs));
  LIME_ASSIGN_OR_RETURN(Plan plan, planning.Run());
  PlanReport report = {.strategy = flags.strategy, .model_argument = planning.inputs().model_argument, .plan = std::move(plan)};
  LIME_ASSIGN_OR_RETURN(report.uses, UsesOf(report.plan));
  report.explanations = planning.Explain(report.plan);
  report.max_ttft_ms = flags.max_ttft_ms;
  const SparseModel& of_model = planning.inputs().sparse.model;
  report.sparsity_why = planning.sparsity_why();
  if (report.sparsity_why.empty() && of_model.bundles) report.sparsity_why = of_model.lacks;
  report.notes = planning.inputs().notes;
  if (std::string note = NoReadAheadText(report.plan, planning.inputs().ahead_places.value_or(0)); !note.empty())
    report.notes.push_back(std::move(note));
  return report;
}

// Adds the digest of the weights, so that the plan is installed for no other model.
absl::Status WritePlan(const PlanReport& report, const OutputFlag& out) {
  ordered_json file = ToJson(report.plan);
  if (!report.model_argument.empty()) {
    LIME_ASSIGN_OR_RETURN(const ModelWeights weights, LookAtWeights(report.model_argument));
    SayWhatItBelongsTo(weights, file);
  }
  return out.Write(JsonText(file) + "\n");
}

absl::Status RunPlan(PlanFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const Strategy strategy, CheckFlags(flags));
  flags.inputs.whole_blocks = strategy != Strategy::kLime;  // only LIME streams parts
  LIME_RETURN_IF_ERROR(flags.out.Check());
  LIME_ASSIGN_OR_RETURN(PlanInputs inputs, ReadPlanInputs(flags.inputs));
  if (!flags.routes.empty()) {
    LIME_ASSIGN_OR_RETURN(const RouteCurve routes, ReadRoutes(flags.routes, inputs.spec, inputs.request.model_name));
    UseRoutes(routes, inputs.request);
  }
  LIME_ASSIGN_OR_RETURN(SparseInputs sparse, ReadSparseInputs(flags.sparse, inputs.model_argument));
  sparse.held = std::move(inputs.sparse.held);
  inputs.sparse = std::move(sparse);
  const absl::StatusOr<PlanReport> report = PlanAndExplain(flags, strategy, std::move(inputs));
  if (!report.ok()) {
    if (!absl::IsResourceExhausted(report.status())) return report.status();
    return WithAnswer(report.status(), {{"feasible", false}, {"reason", std::string(report.status().message())}});
  }
  if (!flags.out.path.empty()) LIME_RETURN_IF_ERROR(WritePlan(*report, flags.out));
  const bool grows = GrowsKv(report->plan) || !RetainsAllKv(report->plan);
  const KvLevels levels = grows ? MakeKvLevels(report->plan) : KvLevels{};
  if (flags.json) {
    ordered_json answer = ToJson(*report);
    if (grows) answer["kv_levels"] = ToJson(report->plan, levels);
    std::cout << JsonText(answer) << std::endl;
  } else {
    std::cout << PlanText(*report, OutputColumns()) << KvLevelsText(report->plan, levels);
    const std::string& out = flags.out.path;
    if (!out.empty()) std::cout << "\nwritten to " << out << "; `lime simulate --plan " << out << "` shows its timeline\n";
    std::cout << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("plan: cannot write the answer to stdout");
}

}  // namespace

void AddPlanCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<PlanFlags>(
      "plan", "Plan a model over devices without running it",
      "Examples:\n"
      "  lime plan --model Llama-3.1-8B --cluster shelf.toml --sequences 4 --prompt-tokens 512 --max-ttft 3000\n"
      "  lime plan --model-spec testbed/clusters/llama-3.3-70b.json --device-profiles testbed/clusters/setting-2.json --bandwidth "
      "200Mbit/s\n"
      "Exit code 1 if no plan fits; the error says what would make one fit.",
      RunPlan);
  flags.inputs.AddTo(command);
  command.Add("--strategy,-s", &flags.strategy, "lime, lime-paper, pp, pp-offload, pp-offload-batched or edgeshard").Shown();
  AddExpertsFlags(command, flags.experts, flags.read_ahead);
  AddRoutesFlag(command, flags.routes);
  flags.sparse.AddSparsityTo(command);
  command.Add("--max-ttft", &flags.max_ttft_ms, "Bound on the time to the first token, in milliseconds; 0: no bound");
  command.Add("--time-limit", &flags.time_limit_ms,
              "Milliseconds that planning may take; without it the amount of work is the bound, so that a seed always gives the same plan");
  command.Add("--split-head", &flags.inputs.split_head, "Let devices share the head by ranges of the vocabulary");
  command.Add("--seed", &flags.seed, "Same seed, same plan").Shown();
  flags.out.AddTo(command, "--out,-o", "File to write the plan to, for `lime simulate`");
  command.Add("--json", &flags.json, "Print one JSON object and nothing else on stdout");
  command.ShowUnder("What to plan", {"--model", "--model-spec", "--cluster", "--device-profiles", "--bandwidth"});
  command.ShowUnder("Request", {"--tokens", "--sequences", "--batch", "--state-snapshots", "--kv-tokens", "--no-kv-spill",
                                "--no-kv-lending", "--no-remote-attention", "--prompt-tokens", "--max-ttft"});
  command.ShowUnder("Search", {"--piece", "--strategy", "--experts", "--read-ahead", "--routes", "--sparsity", "--neurons", "--decider",
                               "--window", "--time-limit", "--split-head", "--seed"});
  command.ShowUnder("Output", {"--out", "--overwrite", "--json"});
}

}  // namespace lime::cli
