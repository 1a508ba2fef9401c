#include "coordinator/cli/push_command.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/cli/cluster_session.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/progress.h"
#include "coordinator/rpc/push_blocks.h"
#include "nlohmann/json.hpp"
#include "planner/plan/plan_blocks.h"

namespace lime::cli {
namespace {

using nlohmann::json;

struct PushFlags {
  ClusterSession::Options inputs;
  bool all = false;
  bool quick = false;
  bool json = false;
};

// One device of the cluster.
struct Device {
  ClusterClient::Device at;
  std::vector<BlockId> blocks;  // that it should hold
  absl::Status status;
  PushState state;

  bool own_weights() const { return !at.weights.empty(); }
};

// What each device should hold: what its stages read, or everything.
absl::StatusOr<std::vector<Device>> ReadDevices(const PushFlags& flags, const StoreSource& source, const ClusterClient::Options& cluster) {
  std::vector<Device> devices;
  for (const ClusterClient::Device& at : cluster.devices) devices.push_back({.at = at});
  if (flags.all) {
    for (Device& device : devices) device.blocks = BlocksOf(source.manifest());
    return devices;
  }
  LIME_ASSIGN_OR_RETURN(const Plan plan, PlanOf(flags.inputs));
  LIME_RETURN_IF_ERROR(plan.Validate(source.spec()));
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const auto found = std::ranges::find_if(devices, [&](const Device& device) { return device.at.name == plan.devices[d].name; });
    std::vector<BlockId> blocks = BlocksOn(plan, d);
    if (found != devices.end()) {
      found->blocks = std::move(blocks);
    } else if (!blocks.empty()) {
      return absl::NotFoundError(
          absl::StrCat("the plan uses device \"", plan.devices[d].name, "\", which is not in ", flags.inputs.cluster));
    }
  }
  return devices;
}

// All devices at once, one line of progress for all.
class Pusher {
 public:
  Pusher(const StoreSource& source, const PushFlags& flags, const ClusterKeys& keys, std::vector<Device>& devices)
      : source_(source), flags_(flags), keys_(keys), devices_(devices) {}

  void Run() {
    std::vector<std::thread> threads;
    for (Device& device : devices_) {
      if (!device.own_weights() && !device.blocks.empty()) threads.emplace_back([this, &device] { PushTo(device); });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void PushTo(Device& device) {
    const PushOptions options{.keys = keys_,
                              .check = !flags_.quick,
                              .progress = [&](const PushState& state) { Show(device, state); },
                              .cancelled = &Interrupted()};
    const absl::StatusOr<PushState> state =
        PushBlocks(source_, {device.at.name, device.at.address, device.blocks, device.at.start}, options);
    absl::MutexLock lock(&mutex_);
    device.status = state.status();
    if (state.ok()) device.state = *state;
  }

  void Show(Device& device, const PushState& state) {
    absl::MutexLock lock(&mutex_);
    device.state = state;
    PushState all;
    for (const Device& each : devices_) {
      all.looked += each.state.looked, all.to_look += each.state.to_look;
      all.stored += each.state.stored, all.missing += each.state.missing;
    }
    if (all.missing == 0) return looking_.Update(all.looked, all.to_look);
    if (sending_ == nullptr) sending_ = std::make_unique<ProgressLine>("Sending");
    sending_->Update(all.stored, all.missing);
  }

  const StoreSource& source_;
  const PushFlags& flags_;
  const ClusterKeys& keys_;
  std::vector<Device>& devices_;
  absl::Mutex mutex_;  // of devices_ and what is drawn
  ProgressLine looking_{"Looking"};
  std::unique_ptr<ProgressLine> sending_;  // its clock begins with the first byte
};

std::string Outcome(const Device& device) {
  const PushState& state = device.state;
  if (device.own_weights()) return absl::StrCat("reads its own ", device.at.weights);
  if (device.blocks.empty()) return "has no part in the plan";
  if (state.missing == 0) return absl::StrFormat("has its %d blocks (%s) already", device.blocks.size(), FormatBytes(state.needed));
  const double rate = state.send_seconds > 0 ? static_cast<double>(state.missing) / state.send_seconds : 0;
  const std::string more = state.sent > state.missing ? absl::StrCat(", ", FormatBytes(state.sent - state.missing), " of it again") : "";
  return absl::StrFormat("took %s of its %s in %.1f s (%s/s%s)", FormatBytes(state.missing), FormatBytes(state.needed), state.send_seconds,
                         FormatBytes(static_cast<Bytes>(rate)), more);
}

json Describe(const std::vector<Device>& devices, double seconds) {
  json list = json::array();
  Bytes sent = 0;
  for (const Device& device : devices) {
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

absl::StatusOr<std::unique_ptr<StoreSource>> OpenSource(const std::string& model) {
  ProgressLine line("Reading");
  LoadOptions watch;
  watch.progress = [&](const LoadProgress& state) { line.Update(state.done, state.total); };
  watch.cancelled = &Interrupted();
  return StoreSource::Open(model, watch);
}

absl::Status Push(const PushFlags& flags) {
  const absl::Time begin = absl::Now();
  LIME_ASSIGN_OR_RETURN(const ClusterClient::Options cluster, DevicesOf(flags.inputs));
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<StoreSource> source, OpenSource(flags.inputs.model));
  LIME_ASSIGN_OR_RETURN(std::vector<Device> devices, ReadDevices(flags, *source, cluster));
  Pusher(*source, flags, cluster.keys, devices).Run();
  if (!flags.json) {
    for (const Device& device : devices) {
      if (device.status.ok()) absl::PrintF("%-12s %s\n", device.at.name, Outcome(device));
    }
  }
  for (const Device& device : devices) LIME_RETURN_IF_ERROR(device.status);
  if (flags.json) std::cout << Describe(devices, absl::ToDoubleSeconds(absl::Now() - begin)).dump() << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddPushCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<PushFlags>();
  flags->inputs.context = 2048;
  CLI::App* command = app.add_subcommand("push", "Send the devices of a cluster the weights that they need");
  command->footer(
      "Example: lime push --cluster cluster.toml --model Llama-3.2-1B --plan plan.json\n"
      "limed takes them where it was started with --store FOLDER. What a device has already is not sent; an interrupted call goes on where "
      "it\n"
      "stopped when it is given again. A device for which cluster.toml names `weights` keeps to those.");
  ClusterSession::Options& inputs = flags->inputs;
  command->add_option("--cluster,-c", inputs.cluster, "cluster.toml")->required();
  command->add_option("--model,-m", inputs.model, "Folder of a Hugging Face checkpoint, or a store that `lime prepare` made")->required();
  command->add_option("--plan", inputs.plan, "Plan of `lime plan --out`, for what each device needs; without it one is made now");
  command->add_option("--context", inputs.context, "Positions planned for, where no plan is given")->capture_default_str();
  command->add_option("--prompt-tokens", inputs.prompt_tokens, "Length of a prompt planned for, where no plan is given");
  command->add_option("--sequences", inputs.sequences, "Requests planned for at a time, where no plan is given")->capture_default_str();
  command->add_flag("--all", flags->all, "Send every device the whole model");
  command->add_flag("--quick", flags->quick, "Trust what the devices have, instead of letting them read it back and compare its checksums");
  command->add_flag("--insecure", inputs.insecure, "Talk to devices elsewhere without keys");
  command->add_flag("--json", flags->json, "Print one JSON object");
  command->callback([flags, &exit_code] { exit_code = Finish(Push(*flags)); });
}

}  // namespace lime::cli
