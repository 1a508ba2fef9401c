#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/devices/device_checks.h"
#include "nlohmann/json.hpp"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr absl::Duration kUnloadPatience = absl::Seconds(2);  // for an answer

struct UnloadFlags {
  std::string cluster;
  bool force = false;
  bool insecure = false;
  bool json = false;
};

std::string Outcome(const ReleasedPlan& released) {
  if (released.epoch < 0) return "had no plan";
  const std::string what = absl::StrCat("has unloaded ", released.model.empty() ? "a plan" : released.model, ", epoch ", released.epoch);
  return released.used_by ? absl::StrCat(what, ", while it was used by ", released.used_by->Who()) : what;
}

json ReleasedJson(const std::string& name, const ReleasedPlan& released) {
  json object = {{"name", name}, {"unloaded", released.epoch >= 0}, {"epoch", released.epoch}, {"model", released.model}};
  if (released.used_by) object["used_by"] = UsedByJson(*released.used_by);
  return object;
}

// If one device is in use, the plan stays on all of them, because it is one plan. Silent devices
// are reported at the end.
absl::Status CheckUnused(const std::vector<std::unique_ptr<DeviceClient>>& devices, std::vector<absl::Status>& silent) {
  const auto health = AskAll(devices.size(), [&](size_t i) { return devices[i]->Health(kUnloadPatience); });
  for (size_t i = 0; i < devices.size(); ++i) silent[i] = health[i].status();
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!health[i].ok() || !health[i]->used_by) continue;
    return absl::FailedPreconditionError(absl::StrCat("device \"", devices[i]->name(), "\" runs ", health[i]->model, " for ",
                                                      health[i]->used_by->Who(), "; wait for its end, or give --force to end it"));
  }
  return absl::OkStatus();
}

absl::Status Unload(const UnloadFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const std::string path, ClusterFileOr(flags.cluster));
  LIME_ASSIGN_OR_RETURN(const ClusterFile file, ClusterFile::Open(path, flags.insecure));
  const std::vector<std::unique_ptr<DeviceClient>> devices = file.Clients();
  std::vector<absl::Status> silent(devices.size());
  if (absl::Status used = CheckUnused(devices, silent); !used.ok() && !flags.force) return used;
  const auto released = AskAll(devices.size(), [&](size_t i) {
    return silent[i].ok() ? devices[i]->Release(flags.force) : absl::StatusOr<ReleasedPlan>(silent[i]);
  });
  json list = json::array();
  for (size_t i = 0; i < devices.size(); ++i) {
    if (!released[i].ok()) continue;
    list.push_back(ReleasedJson(devices[i]->name(), *released[i]));
    if (!flags.json) absl::PrintF("%-12s %s\n", devices[i]->name(), Outcome(*released[i]));
  }
  std::fflush(stdout);
  const json answer = {{"cluster_file", file.path}, {"devices", list}};
  std::vector<absl::Status> problems(released.size());
  std::ranges::transform(released, problems.begin(), [](const auto& each) { return each.status(); });
  return Answered(answer, flags.json, AllOf(problems));
}

}  // namespace

void AddUnloadCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<UnloadFlags>(
      "unload", "Unload the plan from the devices of a cluster",
      "Example: lime unload\n"
      "A run unloads its plan itself. Use this command if a run left its plan behind, or if you need the devices. A plan in use\n"
      "stays, and the answer names its user and since when; with --force that run ends with an error that names you.",
      Unload);
  AddClusterFlag(command, flags.cluster);
  command.Add("--force", &flags.force, "Unload the plan even if a run uses it; that run ends");
  command.Add("--insecure", &flags.insecure, "Talk to other machines without keys");
  command.Add("--json", &flags.json, "Print one JSON object and nothing else on stdout");
}

}  // namespace lime::cli
