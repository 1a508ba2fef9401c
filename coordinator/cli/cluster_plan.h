// What a run over a cluster begins with: its devices, all of which answer, what they hold, and the plan for that.
#pragma once

#include <set>
#include <string>

#include "coordinator/cli/cluster_devices.h"
#include "coordinator/cli/cluster_file.h"
#include "coordinator/cli/cluster_session.h"
#include "coordinator/cli/held_plan.h"
#include "coordinator/cli/model_weights.h"
#include "coordinator/cli/plan_inputs.h"
#include "coordinator/rpc/cluster_client.h"

namespace lime::cli {

struct KnownCluster {
  ClusterFile file;  // without the devices that are left out
  ClusterClient::Options client;
  ClusterHoldings holdings;
  ModelWeights weights;  // of the model, as they are here
};
// Reads the file, and asks every device whether it is there and what it holds.
absl::StatusOr<KnownCluster> KnowCluster(const ClusterSession::Options& options);

// Read or made now. With `may_push` it may need blocks that are not there; without, FailedPrecondition says which are missing, why that is
// so, and what to type.
absl::StatusOr<HeldPlan> PlanForCluster(const ClusterSession::Options& options, const KnownCluster& cluster, bool may_push);

// Of what `lime plan` is without further flags, with the blocks that devices hold and the memory that limed takes there now; for these
// devices alone, where any are named.
absl::StatusOr<PlanInputs> InputsOf(const ClusterSession::Options& options, const ClusterHoldings& holdings,
                                    const std::set<std::string>& devices);

// Of a push that plans now: refuses what is out of range, and says for how many positions where the call does not.
absl::Status CompletePush(ClusterSession::Options& options);

// The plan for those inputs, with a line of progress.
absl::StatusOr<Plan> SearchNow(const ClusterSession::Options& options, PlanInputs inputs);

// Which plan is used and why, for people; empty where it is simply the best one, or the one that was given.
std::string ChoiceSentence(const HeldPlan& chosen);

}  // namespace lime::cli
