#include "coordinator/sessions/placing_flags.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/planning/routes.h"
#include "coordinator/sessions/sparse_flags.h"
#include "daemon/weights/checkpoint.h"
#include "planner/baselines/online_memory.h"

namespace lime::cli {
namespace {

constexpr double kMaxSeconds = 86400;

absl::StatusOr<KvGrowth> RuleOf(const PlacingFlags& flags) {
  if (flags.no_memory_planner && flags.online != "lime") {
    return WrongCall(
        absl::StrCat("--no-memory-planner streams whole layers, but --online ", AsTyped(flags.online), " does not; leave one out"));
  }
  if (flags.no_memory_planner) return &WholeLayersRule;
  if (flags.online == "lime") return kLimeRule;
  if (flags.online == "paper") return &PaperRule;
  if (flags.online == "off") return std::nullopt;
  return WrongCall(absl::StrCat("--online ", AsTyped(flags.online), " is unknown; use lime, paper or off"));
}

}  // namespace

void PlacingFlags::AddTo(const CommandFlags& command) {
  model.AddTo(command);
  model.AddSparsityTo(command);
  on_cluster.AddTo(command);
  command.Add("--patience", &patience_s, "With --cluster, seconds to wait for a lost device before planning without it").Shown();
  command.Add("--give-up", &give_up_s, "With --cluster, seconds to wait for a lost device if there is no plan without it").Shown();
  command.Add("--kv-tokens", &on_cluster.kv_tokens,
              "With --cluster or --kv grow, positions for which KV is reserved at first; as KV grows, more parts stream; 0: all "
              "positions on a cluster, otherwise the prompt and a few tokens");
  on_cluster.kv.AddTo(command);
  command
      .Add("--online", &online,
           "With --cluster, how LIME chooses the parts that stream as KV grows: lime (exact evaluation), paper (Eq. 5 to 7), or off (KV "
           "does not grow)")
      .Shown();
  command.Add("--no-replan", &no_replan,
              "With --cluster, keep the plan even if rates of links and devices change; a plan given with --plan is always kept");
  command.Add("--no-memory-planner", &no_memory_planner, "With --cluster, stream whole layers as KV grows, for comparison");
}

void PlacingFlags::ShowTitles(const CommandFlags& command) {
  command.ShowUnder(
      "Memory", {"--memory", "--memory-mode", "--placement", "--pool", "--resident", "--experts", "--read-ahead", "--routes", "--sparsity",
                 "--neurons", "--decider", "--window", "--context", "--kv", "--kv-dir", "--no-kv-spill", "--chunk", "--loader"});
  command.ShowUnder("On a cluster",
                    {"--cluster", "--plan", "--patience", "--give-up", "--push", "--without", "--kv-tokens", "--no-kv-lending",
                     "--no-remote-attention", "--online", "--no-replan", "--no-memory-planner", "--insecure"});
}

absl::Status PlacingFlags::Check() {
  LIME_RETURN_IF_ERROR(UseModelOf(model.cluster, model.model));
  LIME_RETURN_IF_ERROR(model.Check());
  for (const auto& [name, seconds] : {std::pair("--patience", patience_s), std::pair("--give-up", give_up_s)}) {
    if (!(seconds >= 0 && seconds <= kMaxSeconds))
      return WrongCall(absl::StrCat(name, " ", seconds, " is outside 0 to ", kMaxSeconds, " s"));
  }
  LIME_RETURN_IF_ERROR(RuleOf(*this).status());
  if (on_cluster.kv_tokens < 0) return WrongCall(absl::StrCat("--kv-tokens ", on_cluster.kv_tokens, " is negative"));
  if (on_cluster.kv_tokens > 0 && model.cluster.empty() && model.kv != "grow")
    return WrongCall("--kv-tokens is for --cluster or --kv grow, and changes nothing without one of them; give one, or leave it out");
  return absl::OkStatus();
}

absl::StatusOr<ClusterSession::Options> PlacingFlags::ForCluster() const {
  ClusterSession::Options options = on_cluster;
  options.cluster = model.cluster;
  options.model = model.model;
  options.kv.no_spill = model.no_kv_spill;
  LIME_ASSIGN_OR_RETURN(options.unit_places, ParseExperts(model.experts));
  LIME_ASSIGN_OR_RETURN(options.ahead_places, ParseReadAhead(model.read_ahead));
  LIME_ASSIGN_OR_RETURN(options.online, RuleOf(*this));
  options.recovery = {.patience = absl::Seconds(patience_s), .give_up = absl::Seconds(give_up_s)};
  options.replan = !no_replan;
  if (!model.routes.empty()) {
    LIME_ASSIGN_OR_RETURN(const ModelSpec spec, OfUser(LoadModelSpec(model.model)));
    LIME_ASSIGN_OR_RETURN(options.routes, ReadRoutes(model.routes, spec, model.model));
  }
  if (options.plan.empty()) {
    LIME_ASSIGN_OR_RETURN(options.sparse, ReadSparseInputs(model, model.model));
  }
  options.cancel = &Interrupted();
  return options;
}

}  // namespace lime::cli
