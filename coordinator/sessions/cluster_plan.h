// The start of a run over a cluster: all its devices answer, report the blocks that they hold, and
// get a plan that fits these blocks.
#pragma once

#include <atomic>
#include <set>
#include <string>

#include "coordinator/cli/model_weights.h"
#include "coordinator/devices/cluster_devices.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/planning/held_plan.h"
#include "coordinator/planning/plan_inputs.h"
#include "coordinator/rpc/cluster_client.h"
#include "coordinator/sessions/cluster_session.h"

namespace lime::cli {

struct KnownCluster {
  ClusterFile file;  // without the excluded devices
  ClusterClient::Options client;
  ClusterHoldings holdings;
  ModelWeights weights;  // of the model, on this machine
};
// Reads the file, and asks every device for its health and its blocks.
absl::StatusOr<KnownCluster> KnowCluster(const ClusterSession::Options& options);

// Reads the plan or makes one now. With `may_push` the plan may need blocks that devices lack.
// Without it, FailedPrecondition names the missing blocks, the reason, and the command to send
// them.
absl::StatusOr<HeldPlan> PlanForCluster(const ClusterSession::Options& options, const KnownCluster& cluster, bool may_push);

// The inputs of `lime plan` without further flags, with the blocks that devices hold and the memory
// that limed uses there now. `devices`: only these, if any are named.
absl::StatusOr<PlanInputs> InputsOf(const ClusterSession::Options& options, const ClusterHoldings& holdings,
                                    const std::set<std::string>& devices);

// For a push that plans now: refuses values out of range, and chooses the context if the call gives
// none.
absl::Status CompletePush(ClusterSession::Options& options);

// Searches for the plan of these inputs, under a progress line. Cancelled soon after `cancelled` is
// set, if it is not null. `sparsity_why`: ClusterPlanning::sparsity_why; may be null.
absl::StatusOr<Plan> SearchNow(const std::atomic<bool>* cancelled, PlanInputs inputs, std::string* sparsity_why = nullptr);

// Tells users which plan is used and why. Empty for the best plan, or a plan that was given.
std::string ChoiceSentence(const HeldPlan& chosen);

}  // namespace lime::cli
