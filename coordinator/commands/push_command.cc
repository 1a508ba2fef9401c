#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/devices/cluster_push.h"
#include "coordinator/sessions/cluster_plan.h"
#include "nlohmann/json.hpp"

namespace lime::cli {
namespace {

using nlohmann::json;

struct PushFlags {
  ClusterSession::Options inputs;
  bool all = false;
  bool quick = false;
  bool json = false;
};

// The blocks that each device should hold: those of its stages, or all.
absl::StatusOr<std::vector<PushedDevice>> DevicesToPush(const StoreSource& source, const KnownCluster& cluster,
                                                        const std::optional<HeldPlan>& chosen) {
  std::vector<PushedDevice> devices;
  if (chosen) {
    LIME_RETURN_IF_ERROR(chosen->plan.Validate(source.spec()));
    devices = DevicesOfPlan(cluster.client, chosen->plan);
  } else {
    for (const ClusterClient::Device& at : cluster.client.devices) devices.push_back({.at = at, .blocks = BlocksOf(source.manifest())});
  }
  for (PushedDevice& device : devices) device.whole = !cluster.holdings.homes.contains(device.at.name);
  return devices;
}

json Describe(const std::vector<PushedDevice>& devices, double seconds) {
  json list = json::array();
  Bytes sent = 0;
  for (const PushedDevice& device : devices) {
    const PushState& state = device.state;
    sent += state.sent;
    list.push_back({{"name", device.at.name},
                    {"address", device.at.address},
                    {"weights", device.own_weights() ? device.at.weights : std::string()},
                    {"blocks", device.blocks.size()},
                    {"needed_bytes", device.own_weights() ? 0 : state.needed},
                    {"missing_bytes", state.missing},
                    {"sent_bytes", state.sent},
                    {"checked_bytes", state.looked},
                    {"breaks", state.breaks},
                    {"send_seconds", state.send_seconds}});
  }
  return {{"devices", list}, {"sent_bytes", sent}, {"seconds", seconds}};
}

absl::Status Push(PushFlags& flags) {
  const absl::Time begin = absl::Now();
  LIME_ASSIGN_OR_RETURN(flags.inputs.cluster, ClusterFileOr(flags.inputs.cluster));
  LIME_RETURN_IF_ERROR(UseModelOf(flags.inputs.cluster, flags.inputs.model));
  LIME_RETURN_IF_ERROR(CheckModelFolder(flags.inputs.model));
  LIME_RETURN_IF_ERROR(CompletePush(flags.inputs));
  LIME_ASSIGN_OR_RETURN(const KnownCluster cluster, KnowCluster(flags.inputs));
  std::optional<HeldPlan> chosen;
  if (!flags.all) {
    LIME_ASSIGN_OR_RETURN(chosen, PlanForCluster(flags.inputs, cluster, /*may_push=*/true));
  }
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<StoreSource> source, OpenPushSource(flags.inputs.model));
  LIME_ASSIGN_OR_RETURN(std::vector<PushedDevice> devices, DevicesToPush(*source, cluster, chosen));
  LIME_RETURN_IF_ERROR(CheckNeedNoBundles(devices));
  const absl::Status pushed = PushToAll({.source = *source, .keys = cluster.client.keys, .check = !flags.quick}, devices);
  if (!flags.json) {
    for (const PushedDevice& device : devices) {
      if (device.status.ok()) absl::PrintF("%s\n", PushedLine(device));
    }
  }
  return Answered(Describe(devices, absl::ToDoubleSeconds(absl::Now() - begin)), flags.json, pushed);
}

}  // namespace

void AddPushCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<PushFlags>(
      "push", "Send the devices of a cluster the weights that they need",
      "Example: lime push --cluster cluster.toml --model Llama-3.2-1B --plan plan.json\n"
      "limed accepts weights if it was started with --store FOLDER. Blocks that a device has already are not sent. An interrupted call\n"
      "continues where it stopped when it is given again. A device for which cluster.toml names `weights` uses those.",
      Push);
  ClusterSession::Options& inputs = flags.inputs;
  AddClusterFlag(command, inputs.cluster);
  command.Add(
      "--model,-m", &inputs.model,
      "Folder of a Hugging Face checkpoint, or a store that `lime prepare` made; without the flag the model that the cluster file names");
  command.Add("--plan", &inputs.plan, "File of `lime plan --out`, by which LIME knows what each device needs; without it LIME plans now");
  command.Add("--context", &inputs.context, "Positions to plan for, if no plan is given; without it 2048, or as many as the model has");
  command.Add("--prompt-tokens", &inputs.prompt_tokens, "Length of a prompt to plan for, if no plan is given");
  command.Add("--sequences", &inputs.sequences, "Requests at a time to plan for, if no plan is given").Shown();
  AddWithoutFlag(command, inputs.without);
  command.Add("--all", &flags.all, "Send every device the whole model");
  command.Add("--quick", &flags.quick, "Trust the blocks on the devices, instead of reading them back and comparing their checksums");
  command.Add("--insecure", &inputs.insecure, "Talk to other machines without keys");
  command.Add("--json", &flags.json, "Print one JSON object");
}

}  // namespace lime::cli
