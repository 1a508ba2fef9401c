// The flags of commands that generate, as far as they say where the model runs and how it is
// planned.
#pragma once

#include <string>

#include "coordinator/cli/command.h"
#include "coordinator/sessions/cluster_session.h"

namespace lime::cli {

struct PlacingFlags {
  ModelFlags model;
  ClusterSession::Options on_cluster;  // with --cluster
  double patience_s = 10;              // with --cluster
  double give_up_s = 60;               // with --cluster
  bool no_replan = false;              // with --cluster
  std::string online = "lime";         // with --cluster, if the plan's KV grows
  bool no_memory_planner = false;

  void AddTo(const CommandFlags& command);
  // Adds titles for these flags to --help.
  static void ShowTitles(const CommandFlags& command);
  // Takes the model of the cluster's file, if none is given. Refuses values out of range.
  absl::Status Check();
  // What the flags say about the session, without lengths and numbers of requests.
  // REQUIRES: Check() was OK; the call has --cluster
  absl::StatusOr<ClusterSession::Options> ForCluster() const;
};

}  // namespace lime::cli
