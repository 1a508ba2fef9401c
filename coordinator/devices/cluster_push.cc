#include "coordinator/devices/cluster_push.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/cli/command.h"
#include "coordinator/reports/progress.h"
#include "planner/plan/plan_blocks.h"

namespace lime::cli {
namespace {

// Pushes to all devices at once, with one progress line.
class Pusher {
 public:
  Pusher(const ClusterPushOptions& options, std::vector<PushedDevice>& devices) : options_(options), devices_(&devices) {}

  void Run() {
    std::vector<std::thread> threads;
    {
      absl::MutexLock lock(&mutex_);
      for (PushedDevice& device : *devices_) {
        if (!device.own_weights() && !device.blocks.empty()) threads.emplace_back([this, &device] { PushTo(device); });
      }
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  void PushTo(PushedDevice& device) {
    const PushOptions options{.keys = options_.keys,
                              .check = options_.check,
                              .progress = [&](const PushState& state) { Show(device, state); },
                              .cancelled = &Interrupted()};
    const absl::StatusOr<PushState> state =
        PushBlocks(options_.source, {device.at.name, device.at.address, device.blocks, device.at.start}, options);
    absl::MutexLock lock(&mutex_);
    device.status = state.status();
    if (state.ok()) device.state = *state;
  }

  void Show(PushedDevice& device, const PushState& state) {
    absl::MutexLock lock(&mutex_);
    device.state = state;
    PushState all;
    for (const PushedDevice& each : *devices_) {
      all.looked += each.state.looked, all.to_look += each.state.to_look;
      all.stored += each.state.stored, all.missing += each.state.missing;
    }
    if (all.missing == 0) return looking_.Update(all.looked, all.to_look);
    if (sending_ == nullptr) sending_ = std::make_unique<ProgressLine>("Sending");
    sending_->Update(all.stored, all.missing);
  }

  const ClusterPushOptions& options_;
  absl::Mutex mutex_;
  std::vector<PushedDevice>* const devices_ ABSL_PT_GUARDED_BY(mutex_);
  ProgressLine looking_ ABSL_GUARDED_BY(mutex_){"Looking"};
  std::unique_ptr<ProgressLine> sending_ ABSL_GUARDED_BY(mutex_);  // made at the first byte, which starts its clock
};

std::string Outcome(const PushedDevice& device) {
  const PushState& state = device.state;
  if (device.own_weights()) return absl::StrCat("reads its own ", device.at.weights.empty() ? "model" : device.at.weights);
  if (device.blocks.empty()) return "has no part in the plan";
  if (state.missing == 0) return absl::StrFormat("has its %d blocks (%s) already", device.blocks.size(), FormatBytes(state.needed));
  const double rate = state.send_seconds > 0 ? static_cast<double>(state.missing) / state.send_seconds : 0;
  const std::string more = state.sent > state.missing ? absl::StrCat(", ", FormatBytes(state.sent - state.missing), " of it again") : "";
  return absl::StrFormat("received %s of its %s in %.1f s (%s/s%s)", FormatBytes(state.missing), FormatBytes(state.needed),
                         state.send_seconds, FormatBytes(static_cast<Bytes>(rate)), more);
}

}  // namespace

std::vector<PushedDevice> DevicesOfPlan(const ClusterClient::Options& cluster, const Plan& plan) {
  std::vector<PushedDevice> devices;
  for (const ClusterClient::Device& at : cluster.devices) {
    devices.push_back({.at = at});
    if (const int32_t device = DeviceNamed(plan, at.name); device >= 0) {
      devices.back().blocks = BlocksOn(plan, device);
      for (const int part : PartsOn(plan, device)) {
        if (plan.parts[part].sparse()) devices.back().sparse_layers.push_back(plan.parts[part].block.layer);
      }
    }
  }
  return devices;
}

absl::Status CheckNeedNoBundles(const std::vector<PushedDevice>& devices) {
  for (const PushedDevice& device : devices) {
    if (device.own_weights() || device.sparse_layers.empty()) continue;
    const size_t more = device.sparse_layers.size() - 1;
    return absl::FailedPreconditionError(
        absl::StrCat("device \"", device.at.name, "\" would compute the MLP of layer ", device.sparse_layers.front(),
                     more > 0 ? absl::StrCat(" and of ", more, " more") : "",
                     " from bundles, which are not pushed; prepare a store with `lime prepare --bundles` on it, and name its folder as "
                     "`weights` of the device in the cluster file"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StoreSource>> OpenPushSource(const std::string& model) {
  ProgressLine line("Reading");
  return StoreSource::Open(
      model, {.progress = [&](const LoadProgress& state) { line.Update(state.done, state.total); }, .cancelled = &Interrupted()});
}

absl::Status PushToAll(const ClusterPushOptions& options, std::vector<PushedDevice>& devices) {
  Pusher(options, devices).Run();
  std::vector<absl::Status> statuses(devices.size());
  std::ranges::transform(devices, statuses.begin(), &PushedDevice::status);
  return AllOf(statuses);
}

std::string PushedLine(const PushedDevice& device) {
  return absl::StrFormat("%-12s %s", device.at.name, Outcome(device));
}

}  // namespace lime::cli
