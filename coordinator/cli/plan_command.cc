#include "coordinator/cli/plan_command.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/plan_inputs.h"
#include "coordinator/cli/plan_report.h"
#include "coordinator/cli/plan_table.h"
#include "coordinator/cli/text_table.h"
#include "daemon/weights/files.h"
#include "nlohmann/json.hpp"
#include "planner/batches.h"
#include "planner/lower_bound.h"
#include "planner/plan/cluster_plan_json.h"

namespace lime::cli {
namespace {

using nlohmann::ordered_json;

constexpr double kMaxTimeLimitMs = 3'600'000;
constexpr double kExplainShare = 0.4;  // of the time limit
constexpr double kMostExplainMs = 2000;

struct PlanFlags {
  PlanInputFlags inputs;
  std::string strategy = "lime";
  std::string out;
  double max_ttft_ms = 0;
  double time_limit_ms = 5000;
  uint64_t seed = 1;
  bool split_head = false;
  bool json = false;
};

absl::StatusOr<Strategy> CheckFlags(const PlanFlags& flags) {
  const std::optional<Strategy> strategy = ParseStrategy(flags.strategy);
  if (!strategy) {
    return WrongCall(absl::StrCat("--strategy ", flags.strategy.substr(0, 80),
                                  " is unknown; use lime, lime-paper, pp, pp-offload, pp-offload-batched or edgeshard"));
  }
  if (!(flags.time_limit_ms >= 1 && flags.time_limit_ms <= kMaxTimeLimitMs))
    return WrongCall(absl::StrCat("--time-limit ", flags.time_limit_ms, " is outside 1 to ", kMaxTimeLimitMs, " ms"));
  if (!(flags.max_ttft_ms >= 0 && flags.max_ttft_ms <= kMaxPlanNumber))
    return WrongCall(absl::StrCat("--max-ttft ", flags.max_ttft_ms, " is outside 0 to ", kMaxPlanNumber, " ms"));
  if (flags.max_ttft_ms > 0 && flags.inputs.prompt_tokens == 0)
    return WrongCall("--max-ttft bounds the time to the first token after a prompt; say how long one is with --prompt-tokens");
  return *strategy;
}

// One call of the command: a problem, the search for its plan, and what is said of it.
class Planning {
 public:
  Planning(const PlanFlags& flags, Strategy strategy, PlanInputs inputs) : flags_(flags), strategy_(strategy), inputs_(std::move(inputs)) {}

  // ResourceExhausted, in one sentence, where no plan fits.
  absl::StatusOr<PlanReport> Run() {
    LIME_ASSIGN_OR_RETURN(problem_, MakePlanProblem(inputs_.spec, inputs_.devices, inputs_.request));
    LIME_ASSIGN_OR_RETURN(Plan plan, Search());
    PlanReport report = {.strategy = flags_.strategy, .model_argument = inputs_.model_argument, .plan = std::move(plan)};
    LIME_ASSIGN_OR_RETURN(report.uses, UsesOf(report.plan));
    report.explanations = ExplainDevices(ChosenInstance(), best_.found.plan, report.plan.predicted.ms_per_step, Explain());
    report.max_ttft_ms = flags_.max_ttft_ms;
    report.notes = inputs_.notes;
    return report;
  }

 private:
  static double NowMs() { return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

  SearchOptions Options() const {
    SearchOptions options;
    options.granularity = flags_.split_head ? Granularity::kModelBlock : Granularity::kWholeBlock;
    options.seed = flags_.seed;
    options.time_limit_ms = flags_.time_limit_ms;
    options.elapsed_ms = [begin_ms = NowMs()] { return NowMs() - begin_ms; };
    if (flags_.max_ttft_ms > 0 && problem_.first_token) options.first_token = FirstTokenBound{*problem_.first_token, flags_.max_ttft_ms};
    return options;
  }

  // The problem assumes the worst link between any two devices. Where the plan's own links are better, the search goes on with those.
  absl::StatusOr<Plan> Search() {
    LIME_ASSIGN_OR_RETURN(best_, PlanBatches(strategy_, problem_.instance, Options()));
    if (!best_.found.feasible) return Infeasible();
    const Instance::Net assumed = problem_.instance.net;
    LIME_ASSIGN_OR_RETURN(Plan plan, Settle(problem_, best_));
    const bool even = problem_.instance.net.tx_ms == assumed.tx_ms && problem_.instance.net.lat_ms == assumed.lat_ms;
    if (even || plan.stages.size() == 1) return plan;
    PlanProblem again = problem_;
    SearchOptions options = Options();
    options.seeds = {best_.found.plan};
    LIME_ASSIGN_OR_RETURN(BatchedPlan found, PlanBatches(strategy_, again.instance, options));
    if (!found.found.feasible) return plan;
    LIME_ASSIGN_OR_RETURN(Plan other, Settle(again, found));
    if (other.predicted.ms_per_step >= plan.predicted.ms_per_step) return plan;
    problem_ = std::move(again);
    best_ = std::move(found);
    return other;
  }

  // The plan that was found, with the links that it uses.
  absl::StatusOr<Plan> Settle(PlanProblem& problem, BatchedPlan& best) const {
    RefineNet(inputs_.devices, inputs_.spec, inputs_.request, best.found.plan, problem);
    const bool uneven = std::ranges::any_of(inputs_.devices, [](const ClusterDevice& device) { return !device.profile.links.empty(); });
    if (uneven) {
      LIME_ASSIGN_OR_RETURN(best.lower_bound_ms, BoundMs());
    }
    return MakePlan(problem, Choice(problem, best));
  }

  // Of the fastest links between any two devices: no plan has better ones.
  absl::StatusOr<double> BoundMs() const {
    std::vector<ClusterDevice> devices = inputs_.devices;
    PlanRequest request = inputs_.request;
    for (ClusterDevice& device : devices) {
      for (const LinkPoint& link : device.profile.links) {
        const bool inside = std::ranges::any_of(inputs_.devices, [&](const ClusterDevice& other) { return other.name == link.peer; });
        if (!inside) continue;
        request.default_link.bytes_per_second = std::max(request.default_link.bytes_per_second, link.bytes_per_second);
        request.default_link.latency_ms = std::min(request.default_link.latency_ms, link.latency_ms);
      }
      device.profile.links.clear();
    }
    LIME_ASSIGN_OR_RETURN(const PlanProblem problem, MakePlanProblem(inputs_.spec, devices, request));
    LIME_ASSIGN_OR_RETURN(const std::vector<BatchedInstance> choices, BatchChoices(problem.instance));
    double bound_ms = std::numeric_limits<double>::infinity();
    for (const BatchedInstance& choice : choices) bound_ms = std::min(bound_ms, LowerBoundMs(choice.instance));
    return bound_ms;
  }

  PlanChoice Choice(const PlanProblem& problem, const BatchedPlan& best) const {
    PlanChoice choice = {.stages = best.found.plan,
                         .microbatches = std::max(1, best.microbatches),
                         .batch = best.batch,
                         .lower_bound_ms = best.lower_bound_ms};
    if (strategy_ == Strategy::kPpOffload && choice.microbatches > 1) choice.reads = ReadsPerStep::kPerMicrobatch;
    if (problem.first_token) choice.first_token = FirstTokenPredictor(*problem.first_token).Predict(best.found.plan);
    return choice;
  }

  Instance ChosenInstance() const {
    const absl::StatusOr<std::vector<BatchedInstance>> choices = BatchChoices(problem_.instance);
    if (choices.ok()) {
      for (const BatchedInstance& choice : *choices) {
        if (choice.batch == best_.batch) return choice.instance;
      }
    }
    return problem_.instance;
  }

  ExplainOptions Explain() const {
    return {.strategy = strategy_,
            .search = Options(),
            .total_ms = std::min(kMostExplainMs, flags_.time_limit_ms * kExplainShare),
            .tokens_per_step = static_cast<double>(inputs_.request.sequences),
            .context = inputs_.request.context};
  }

  // Without the bound on the first token there may be a plan.
  absl::Status Infeasible() const {
    if (flags_.max_ttft_ms > 0) {
      SearchOptions unbounded = Options();
      unbounded.first_token.reset();
      const absl::StatusOr<BatchedPlan> best = PlanBatches(strategy_, problem_.instance, unbounded);
      if (best.ok() && best->found.feasible) {
        const FirstToken first = FirstTokenPredictor(*problem_.first_token).Predict(best->found.plan);
        return absl::ResourceExhaustedError(absl::StrFormat(
            "no plan found has the first token within %.0f ms after %d tokens; the fastest per token takes %.0f ms to it; raise "
            "--max-ttft or shorten --prompt-tokens",
            flags_.max_ttft_ms, flags_.inputs.prompt_tokens, first.ms));
      }
    }
    return absl::ResourceExhaustedError(
        absl::StrCat(inputs_.request.model_name, ": ", ExplainInfeasible(problem_.instance, best_.found.reason, Explain())));
  }

  const PlanFlags& flags_;
  const Strategy strategy_;
  const PlanInputs inputs_;
  PlanProblem problem_;
  BatchedPlan best_;
};

absl::Status RunPlan(const PlanFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const Strategy strategy, CheckFlags(flags));
  LIME_ASSIGN_OR_RETURN(PlanInputs inputs, ReadPlanInputs(flags.inputs));
  const absl::StatusOr<PlanReport> report = Planning(flags, strategy, std::move(inputs)).Run();
  if (!report.ok()) {
    if (flags.json && absl::IsResourceExhausted(report.status())) {
      const ordered_json answer = {{"feasible", false}, {"reason", std::string(report.status().message())}};
      std::cout << answer.dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
    }
    return report.status();
  }
  if (!flags.out.empty()) LIME_RETURN_IF_ERROR(WriteTextFile(flags.out, ToJsonText(report->plan) + "\n"));
  if (flags.json) {
    std::cout << ToJson(*report).dump(-1, ' ', false, ordered_json::error_handler_t::replace) << std::endl;
  } else {
    std::cout << PlanText(*report, OutputColumns());
    if (!flags.out.empty()) std::cout << "\nkept in " << flags.out << "; `lime simulate --plan " << flags.out << "` shows its timeline\n";
    std::cout << std::flush;
  }
  return std::cout ? absl::OkStatus() : absl::UnavailableError("plan: cannot write the answer to stdout");
}

}  // namespace

void AddPlanCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand("plan", "Plan a model over devices without running it");
  command->footer(
      "Examples:\n"
      "  lime plan --model Llama-3.1-8B --cluster shelf.toml --sequences 4 --prompt-tokens 512 --max-ttft 3000\n"
      "  lime plan --model-spec testbed/clusters/llama-3.3-70b.json --device-profiles testbed/clusters/setting-2.json --bandwidth "
      "200Mbit/s\n"
      "Exit code 1 where no plan fits; the sentence says what would make it fit.");
  flags->inputs.AddTo(*command);
  command->add_option("--strategy,-s", flags->strategy, "lime, lime-paper, pp, pp-offload, pp-offload-batched or edgeshard")
      ->capture_default_str()
      ->group("Search");
  command->add_option("--max-ttft", flags->max_ttft_ms, "Milliseconds to the first token at most; 0: no bound")->group("Request");
  command->add_option("--time-limit", flags->time_limit_ms, "Milliseconds that the search may take")
      ->capture_default_str()
      ->group("Search");
  command->add_flag("--split-head", flags->split_head, "Let devices share the head by ranges of the vocabulary; they do not compute that yet")
      ->group("Search");
  command->add_option("--seed", flags->seed, "Same seed, same plan")->capture_default_str()->group("Search");
  command->add_option("--out,-o", flags->out, "File to write the plan to, for `lime simulate`")->group("Output");
  command->add_flag("--json", flags->json, "Print one JSON object and nothing else on stdout")->group("Output");
  command->callback([flags, &exit_code] { exit_code = Finish(RunPlan(*flags)); });
}

}  // namespace lime::cli
