// A model that is loaded for a server: in this process or on a cluster, with room for a number of
// requests side by side.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/cluster_view/cluster_watch.h"
#include "coordinator/server/served_plan.h"
#include "coordinator/serving/serving.h"
#include "coordinator/sessions/cluster_session.h"
#include "coordinator/sessions/local_session.h"
#include "coordinator/sessions/placing_flags.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/snapshot_choice.h"

namespace lime::cli {

// Owner: one thread. A Serving over devices() goes before this object.
class OpenedModel {
 public:
  struct Options {
    const PlacingFlags& flags;
    const ModelSpec& spec;
    int64_t parallel = 1;                                   // requests computed at once
    bool keeps_prompts = false;                             // later requests begin with KV of earlier ones
    std::function<void(Bytes done, Bytes total)> progress;  // of loading.  Thread: any
    // Memory for masks of answers, and for the texts of tokens where they are not in memory yet.
    Bytes masks = 0, vocabulary = 0;
  };
  // Each request has --context positions. Without the flag it has those of the model, at most
  // kUsualContext, or fewer if memory has no room for them; that is said.
  static constexpr int64_t kUsualContext = 8192, kLeastContext = 256;
  // With keeps_prompts, memory has snapshots of a model's states, or none if it has no room for them;
  // that is said, too. On a cluster it has them for failures in any case, if a step takes no longer.
  static absl::StatusOr<std::unique_ptr<OpenedModel>> Open(const Options& options);

  Devices& devices();
  // How a Serving over devices() works. Call once. `in_use` gets every plan that replaces the first
  // one, on the thread of that Serving.
  Serving::Options HowToServe(std::function<void(const Plan& plan)> in_use);
  // After the Serving: the devices are free.
  absl::Status Close();

  // For a ClusterWatch that goes before this object.
  ClusterWatch::Cluster Watched() const { return local_ != nullptr ? local_->Watched() : cluster_->Watched(); }

  int64_t context() const { return context_; }
  // What is predicted for this plan, which is in use.
  ServedPlan Served(const Plan& plan);
  std::vector<std::string> numerics_ids();  // of the devices of the plan in use, each once
  // A failure that Serving does not survive ends everything.
  bool failures_are_final() const { return cluster_ == nullptr; }

 private:
  absl::Status OpenWith(const Options& options, int64_t context, const SnapshotWish& snapshots);

  std::unique_ptr<LocalSession> local_;
  std::unique_ptr<ClusterSession> cluster_;
  int64_t context_ = 0;
  int64_t short_positions_ = 0;  // of the model
};

}  // namespace lime::cli
