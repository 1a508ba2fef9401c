#include "coordinator/sessions/cluster_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/command.h"
#include "coordinator/cluster/device_memory.h"
#include "coordinator/planning/cluster_planning.h"
#include "coordinator/planning/routes.h"
#include "coordinator/reports/progress.h"
#include "daemon/logic/hosting/units_message.h"
#include "daemon/stores/weights_digest.h"
#include "daemon/weights/checkpoint.h"
#include "planner/plan/plan_blocks.h"

namespace lime::cli {
namespace {

constexpr int64_t kPushContext = 2048;  // default context of a push

// Minimum prompt rows of a plan for a run, if its context has room. After a fault, recomputed
// requests are longer prompts.
constexpr int64_t kLeastPromptChunk = kLeastWindowRows;

// Extra memory of a longer chunk, beyond the rows that the plan has room for anyway.
Bytes More(const Plan& plan, const ModelSpec& spec, int64_t rows) {
  const Bytes more =
      AssumedActivations(spec, rows, plan.batch, plan.context) - AssumedActivations(spec, plan.batch, plan.batch, plan.context);
  if (!HasHostedUnits(plan)) return more;
  const int64_t others = plan.NumDevices() - 1;
  return more + UnitsMessageBytes(spec, rows, others, others) + AssumedForOthers(spec, rows);
}

// A plan without a prompt chunk computes prompts with the rows of a decode micro-batch. This plan
// uses the longest chunk that fits in the memory that all its devices leave free, at most the
// prompt or kLeastPromptChunk. Returns the plan unchanged if there is no room.
// REQUIRES: plan.prefill_chunk == 0
Plan WithPromptChunk(Plan plan, const ModelSpec& spec, int64_t prompt_tokens) {
  const int64_t most = std::min(plan.context, std::max(prompt_tokens, kLeastPromptChunk));
  const auto free = [](const PlanDevice& device) { return device.memory.margin - device.least_margin; };
  const auto least = std::ranges::min_element(plan.devices, {}, free);
  if (least == plan.devices.end()) return plan;
  for (int64_t rows = std::min(most, kLeastPromptChunk); rows > plan.batch; rows /= 2) {
    const Bytes more = More(plan, spec, rows);
    if (more > free(*least)) continue;
    Plan longer = plan;
    longer.prompt_tokens = most;
    longer.prefill_chunk = rows;
    longer.chunks_per_sweep = 1;
    for (PlanDevice& device : longer.devices) device.memory.margin -= more, device.memory.activations += more;
    if (longer.Validate().ok()) return longer;
  }
  return plan;
}

absl::StatusOr<Plan> ReadPlan(const ClusterSession::Options& options, const ModelWeights& weights) {
  LIME_ASSIGN_OR_RETURN(Plan plan, OfUser(ReadPlanOf(weights, options.plan)));
  if (plan.prefill_chunk > 0) return plan;
  return WithPromptChunk(std::move(plan), weights.spec, options.prompt_tokens);
}

// Identifies the model for devices that use pushed weights; 0 if all devices have weights of their
// own.
absl::StatusOr<uint64_t> PushedModel(const ClusterConfig& config, const std::string& model) {
  const bool from_store = std::ranges::any_of(config.devices, [](const ClusterConfig::Device& device) { return device.weights.empty(); });
  if (!from_store || model.empty()) return uint64_t{0};
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model));
  return ModelDigest(checkpoint);
}

// The `lime push` call for the plan of this call.
std::string PushCall(const ClusterSession::Options& options) {
  std::string call = absl::StrCat("lime push --cluster ", options.cluster, " --model ", options.model);
  if (options.plan.empty()) {
    absl::StrAppend(&call, " --context ", options.context);
    if (options.prompt_tokens > kLeastPromptChunk) absl::StrAppend(&call, " --prompt-tokens ", options.prompt_tokens);
    if (options.sequences > 1) absl::StrAppend(&call, " --sequences ", options.sequences);
  } else {
    absl::StrAppend(&call, " --plan ", options.plan);
  }
  for (const std::string& name : options.without) absl::StrAppend(&call, " --without ", name);
  if (options.insecure) absl::StrAppend(&call, " --insecure");
  return call;
}

absl::Status MayNotPush(const ClusterSession::Options& options, const std::string& lacking) {
  return absl::FailedPreconditionError(absl::StrCat(lacking, "; give --push to send them first, or type: ", PushCall(options)));
}

// A device may use more memory now than when it was measured. Growth within its margin changes no
// input, so the plan stays the same.
void ApplyRuntimes(const std::map<std::string, Bytes>& runtime, PlanInputs& inputs) {
  for (ClusterDevice& device : inputs.devices) {
    const auto now = runtime.find(device.name);
    if (now != runtime.end() && now->second > device.runtime + device.margin) device.runtime = now->second;
  }
}

// For a plan that was read: checks that its devices exist, and what can be done about missing
// blocks.
absl::Status CheckGiven(const ClusterSession::Options& options, const KnownCluster& cluster, const Plan& plan, bool may_push) {
  for (const std::string& name : DevicesUsed(plan)) {
    if (std::ranges::find(cluster.file.config.devices, name, &ClusterConfig::Device::name) != cluster.file.config.devices.end()) continue;
    const bool left_out = std::ranges::find(options.without, name) != options.without.end();
    return WrongCall(absl::StrCat(options.plan, ": uses device \"", name, "\", which ",
                                  left_out ? std::string("--without leaves out") : absl::StrCat("is not in ", options.cluster),
                                  "; plan again"));
  }
  const std::string lacking = Lacking(cluster.holdings.homes, plan);
  if (lacking.empty()) return absl::OkStatus();
  ClusterHoldings kept = cluster.holdings;
  std::erase_if(kept.homes, [&](const auto& home) { return !kept.no_push.contains(home.first); });
  if (const std::string never = Lacking(kept.homes, plan); !never.empty())
    return absl::FailedPreconditionError(absl::StrCat(never, ", and LIME cannot send them there: ", HowToAcceptPushes(cluster.file, kept)));
  return may_push ? absl::OkStatus() : MayNotPush(options, lacking);
}

}  // namespace

absl::StatusOr<KnownCluster> KnowCluster(const ClusterSession::Options& options) {
  KnownCluster cluster;
  LIME_ASSIGN_OR_RETURN(cluster.file, ClusterFile::Open(options.cluster, options.insecure));
  if (const absl::Status left = Exclude(options.without, cluster.file.config); !left.ok()) return WrongCall(std::string(left.message()));
  LIME_ASSIGN_OR_RETURN(const uint64_t model, PushedModel(cluster.file.config, options.model));
  LIME_ASSIGN_OR_RETURN(cluster.weights, LookAtWeights(options.model));
  if (!options.plan.empty()) LIME_RETURN_IF_ERROR(ReadPlan(options, cluster.weights).status());  // before devices are asked
  cluster.client.digest = cluster.weights.digest;
  cluster.client.keys = cluster.file.keys;
  for (const ClusterConfig::Device& device : cluster.file.config.devices)
    cluster.client.devices.push_back({.name = device.name,
                                      .address = device.address,
                                      .weights = device.weights,
                                      .model = model,
                                      .start = HowToStart(device, cluster.file.path)});
  const auto devices = cluster.file.Clients();
  LIME_ASSIGN_OR_RETURN(const std::vector<DeviceHealth> health, AskHealthOfAll(devices));
  LIME_ASSIGN_OR_RETURN(cluster.holdings, AskHoldings(cluster.file, devices, model));
  for (size_t i = 0; i < health.size(); ++i) {
    if (health[i].epoch < 0) cluster.holdings.runtime[devices[i]->name()] = health[i].runtime;
  }
  return cluster;
}

absl::Status CompletePush(ClusterSession::Options& options) {
  if (!options.plan.empty()) return absl::OkStatus();
  if (options.context < 0) return WrongCall(absl::StrCat("--context ", options.context, " is negative"));
  if (options.sequences < 1 || options.sequences > kMaxMicrobatches)
    return WrongCall(absl::StrCat("--sequences ", options.sequences, " is outside 1 to ", kMaxMicrobatches));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, LoadModelSpec(options.model));
  const int64_t most = spec.config.max_positions;
  if (options.context > most)
    return WrongCall(absl::StrCat("--context ", options.context, " is outside 1 to the ", most, " positions of the model"));
  if (options.context == 0) options.context = std::min(kPushContext, most);
  if (options.prompt_tokens < 0 || options.prompt_tokens > options.context)
    return WrongCall(absl::StrCat("--prompt-tokens ", options.prompt_tokens, " is outside 0 to ", options.context, " (--context)"));
  return absl::OkStatus();
}

absl::StatusOr<PlanInputs> InputsOf(const ClusterSession::Options& options, const ClusterHoldings& holdings,
                                    const std::set<std::string>& devices) {
  PlanInputFlags flags;
  flags.cluster = options.cluster;
  flags.without = options.without;
  flags.model = options.model;
  flags.tokens = options.context;
  flags.sequences = options.sequences;
  flags.prompt_tokens = std::min(options.context, std::max(options.prompt_tokens, kLeastPromptChunk));
  flags.kv = options.kv;
  if (options.kv_tokens > 0) flags.kv_tokens = std::min(options.context, std::max(options.kv_tokens, flags.prompt_tokens));
  LIME_ASSIGN_OR_RETURN(PlanInputs inputs, ReadPlanInputs(flags));
  if (!devices.empty()) std::erase_if(inputs.devices, [&](const ClusterDevice& device) { return !devices.contains(device.name); });
  inputs.unit_places = options.unit_places;
  inputs.ahead_places = options.ahead_places;
  inputs.request.state_snapshots = options.snapshots.count;
  if (!options.routes.hits.empty()) UseRoutes(options.routes, inputs.request);
  inputs.sparse = options.sparse;
  inputs.sparse.held = holdings.neurons;
  inputs.request.new_tokens = options.sparse.new_tokens;
  inputs.homes = holdings.homes;
  ApplyRuntimes(holdings.runtime, inputs);
  for (ClusterDevice& device : inputs.devices) device.runtime += options.beside;
  return inputs;
}

absl::StatusOr<Plan> SearchNow(const std::atomic<bool>* cancelled, PlanInputs inputs, std::string* sparsity_why) {
  ElapsedLine progress("Planning");
  ClusterPlanning planning({.work_ms = kRunPlanWorkMs, .cancelled = cancelled, .at = [&](const std::string& what) { progress.Say(what); }},
                           std::move(inputs));
  absl::StatusOr<Plan> plan = planning.Run();
  if (sparsity_why != nullptr) *sparsity_why = planning.sparsity_why();
  if (cancelled != nullptr && cancelled->load()) return absl::CancelledError("interrupted");
  return plan;
}

absl::StatusOr<HeldPlan> PlanForCluster(const ClusterSession::Options& options, const KnownCluster& cluster, bool may_push) {
  if (!options.plan.empty()) {
    LIME_ASSIGN_OR_RETURN(Plan plan, ReadPlan(options, cluster.weights));
    LIME_RETURN_IF_ERROR(CheckGiven(options, cluster, plan, may_push));
    return HeldPlan{.plan = std::move(plan), .source = PlanSource::kGiven};
  }
  LIME_ASSIGN_OR_RETURN(PlanInputs inputs, InputsOf(options, cluster.holdings, {}));
  inputs.homes.clear();                                // planned with them and without
  std::vector<std::pair<Plan, std::string>> searched;  // and why they are sparse or not
  absl::StatusOr<HeldPlan> chosen = ChooseSnapshots(options.snapshots, [&](int32_t snapshots) {
    inputs.request.state_snapshots = snapshots;
    return ChooseHeldPlan(inputs, cluster.holdings, may_push, [&](PlanInputs of) -> absl::StatusOr<Plan> {
      std::string why;
      LIME_ASSIGN_OR_RETURN(const Plan plan, SearchNow(options.cancel, std::move(of), &why));
      searched.emplace_back(plan, std::move(why));
      return plan;
    });
  });
  for (const auto& [plan, why] : searched) {
    if (chosen.ok() && plan == chosen->plan) chosen->sparsity_why = why;
  }
  if (absl::IsFailedPrecondition(chosen.status())) return MayNotPush(options, std::string(chosen.status().message()));
  const std::string how = absl::IsResourceExhausted(chosen.status()) ? HowToAcceptPushes(cluster.file, cluster.holdings) : "";
  return how.empty() ? chosen : absl::ResourceExhaustedError(absl::StrCat(chosen.status().message(), "; ", how));
}

std::string ChoiceSentence(const HeldPlan& chosen) {
  if (chosen.source != PlanSource::kHeld) return "";
  const double ms = chosen.plan.predicted.ms_per_token;
  if (!chosen.faster) return absl::StrFormat("plans for the blocks that the devices hold: %.2f ms a token predicted", ms);
  return absl::StrFormat(
      "plans for the blocks that the devices hold: %.2f ms a token predicted; with other blocks it would be %.2f: --push sends them first",
      ms, chosen.faster->predicted.ms_per_token);
}

}  // namespace lime::cli
