#include "coordinator/sessions/opened_model.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/reports/screen.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_rows.h"
#include "planner/program/compile.h"
#include "planner/sim/simulator.h"

namespace lime::cli {
namespace {

// The work for which chunks of prompts are chosen: as many tokens read as written, many times the
// context.
constexpr int64_t kManyContexts = 16;
constexpr int64_t kFirstTokens = 512;  // --kv grow first reserves KV for so many
constexpr int64_t kScoredRows = 16;    // of a step, for prompts that are scored

// Why snapshots were left out, and what that costs. Empty if the plan has them, or needs none.
std::string AboutSnapshots(const Plan& plan) {
  if (plan.state_snapshots > 0 || !MayKeepSnapshots(plan)) return "";
  constexpr const char* kWhy = ", because memory has no room for snapshots of ";
  if (HasState(plan)) return absl::StrCat("every prompt is computed from its beginning", kWhy, "the states");
  return absl::StrCat("a prompt is computed from its beginning unless it goes on where a request has ended", kWhy, "the windows of layers");
}

// See ServedPlan::step_ms. `full_ms`: of a step with all micro-batches.
std::vector<double> StepMs(const Plan& plan, double full_ms) {
  constexpr size_t kSteps = 48;  // as SimulationResult::MsPerStep needs
  std::vector<double> ms;
  for (int32_t microbatches = 1; microbatches < plan.microbatches; ++microbatches) {
    absl::StatusOr<std::vector<Program>> programs =
        Compile(plan, {.microbatches = microbatches, .rows = plan.batch, .last_rows = plan.batch});
    if (!programs.ok()) return {full_ms};
    const auto simulated =
        Simulate(plan, {.programs = {*std::move(programs)}, .steps = std::vector<int32_t>(kSteps, 0)}, {.timeline = false});
    if (!simulated.ok()) return {full_ms};
    ms.push_back(simulated->MsPerStep());
  }
  ms.push_back(full_ms);
  return ms;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OpenedModel>> OpenedModel::Open(const Options& options) {
  LIME_ASSIGN_OR_RETURN(const int64_t most, options.flags.model.MostPositions(options.spec));
  if (most < 2) return WrongCall("--context must be at least 2: a prompt and an answer");
  const bool is_chosen = options.flags.model.context == 0;
  std::unique_ptr<OpenedModel> model(new OpenedModel());
  model->short_positions_ = options.spec.config.short_positions();
  int64_t context = is_chosen ? std::min(most, kUsualContext) : most;
  const int64_t wanted = context;
  const SnapshotUses uses{.prompts = options.keeps_prompts, .failures = !options.flags.model.cluster.empty()};
  SnapshotWish snapshots = SnapshotsFor(options.spec.config, uses);
  absl::Status opened = model->OpenWith(options, context, snapshots);
  const bool says_about = uses.prompts && snapshots.count > 0;
  // FailedPrecondition: devices of a cluster lack the weights of the only plans that have room.
  if ((absl::IsResourceExhausted(opened) || absl::IsFailedPrecondition(opened)) && snapshots.count > 0 && !Interrupted()) {
    snapshots.count = 0;
    opened = model->OpenWith(options, context, snapshots);
  }
  while (absl::IsResourceExhausted(opened) && is_chosen && context > kLeastContext && !Interrupted()) {
    context = std::max(kLeastContext, context / 2);
    opened = model->OpenWith(options, context, snapshots);
  }
  LIME_RETURN_IF_ERROR(opened);
  if (const std::string about = says_about ? AboutSnapshots(model->devices().plan()) : ""; !about.empty()) Screen::Say(about);
  if (context < wanted)
    Screen::Say(absl::StrCat("requests have ", context, " positions, because memory has no room for ", wanted, "; --parallel ",
                             options.parallel, " of them are computed at once"));
  return model;
}

absl::Status OpenedModel::OpenWith(const Options& options, int64_t context, const SnapshotWish& snapshots) {
  context_ = context;
  const PlacingFlags& flags = options.flags;
  const int64_t prompt_tokens = std::min(context - 1, kUsualChunk);
  if (!flags.model.cluster.empty()) {
    LIME_ASSIGN_OR_RETURN(ClusterSession::Options on_cluster, flags.ForCluster());
    on_cluster.context = context;
    on_cluster.sequences = options.parallel;
    on_cluster.snapshots = snapshots;
    on_cluster.prompt_tokens = prompt_tokens;
    on_cluster.sparse.all_prompt_tokens = on_cluster.sparse.new_tokens = kManyContexts * context;
    on_cluster.progress = options.progress;
    on_cluster.watched = true;
    on_cluster.beside = options.masks + options.vocabulary;
    LIME_ASSIGN_OR_RETURN(cluster_, ClusterSession::Open(on_cluster));
    return absl::OkStatus();
  }
  const int64_t kv_tokens = flags.on_cluster.kv_tokens > 0 ? flags.on_cluster.kv_tokens : kFirstTokens;
  LIME_ASSIGN_OR_RETURN(local_, LocalSession::Open(flags.model,
                                                   {.context = context,
                                                    .kv_tokens = std::min(context, kv_tokens),
                                                    .expected_positions = context / 2,
                                                    .sequences = static_cast<int32_t>(options.parallel),
                                                    .snapshots = snapshots,
                                                    .prompt_tokens = prompt_tokens,
                                                    .all_prompt_tokens = kManyContexts * context,
                                                    .new_tokens = kManyContexts * context,
                                                    .logit_rows = kScoredRows,
                                                    .beside = options.masks},
                                                   {.watched = true, .progress = options.progress}));
  return absl::OkStatus();
}

Devices& OpenedModel::devices() {
  return local_ != nullptr ? static_cast<Devices&>(local_->device()) : cluster_->devices();
}

Serving::Options OpenedModel::HowToServe(std::function<void(const Plan& plan)> in_use) {
  Serving::Options options = local_ != nullptr ? local_->HowToServe() : cluster_->HowToServe(std::move(in_use));
  options.outlives_failures = cluster_ != nullptr;
  options.short_positions = short_positions_;
  return options;
}

absl::Status OpenedModel::Close() {
  return cluster_ != nullptr ? cluster_->Close() : local_->device().Unload();
}

ServedPlan OpenedModel::Served(const Plan& plan) {
  const double full_ms = local_ != nullptr ? local_->predicted_ms_per_token() : plan.predicted.ms_per_step;
  return {.plan = plan, .numerics_id = absl::StrJoin(numerics_ids(), "+"), .step_ms = StepMs(plan, full_ms)};
}

std::vector<std::string> OpenedModel::numerics_ids() {
  std::vector<std::string> ids;
  for (const InstalledPlan& installed : devices().installed()) {
    if (!installed.numerics_id.empty() && std::ranges::find(ids, installed.numerics_id) == ids.end()) ids.push_back(installed.numerics_id);
  }
  return ids;
}

}  // namespace lime::cli
