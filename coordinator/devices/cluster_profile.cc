#include "coordinator/devices/cluster_profile.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "daemon/machine/files.h"
#include "planner/base/json_text.h"

namespace lime::cli {
namespace {

std::string HostOf(const std::string& address) {
  return address.substr(0, address.rfind(':'));
}

class Measuring {
 public:
  Measuring(const DeviceClients& devices, const ClusterProfileOptions& options)
      : devices_(devices), options_(options), measured_(devices.size()), shares_(devices.size()) {}

  absl::StatusOr<DescribedCluster> Run() {
    std::map<std::string, std::vector<size_t>> machines;
    for (size_t i = 0; i < devices_.size(); ++i) machines[HostOf(devices_[i]->address())].push_back(i);
    std::vector<std::thread> threads;
    threads.reserve(machines.size());
    for (const auto& [host, inside] : machines) threads.emplace_back([this, &inside = inside] { MeasureMachine(inside); });
    for (std::thread& thread : threads) thread.join();
    {
      absl::MutexLock lock(&mutex_);
      LIME_RETURN_IF_ERROR(failure_);
    }
    DescribedCluster cluster;
    for (size_t i = 0; i < devices_.size(); ++i) {
      cluster.devices.push_back({.name = devices_[i]->name(),
                                 .numerics_id = measured_[i].numerics_id,
                                 .memory = measured_[i].memory,
                                 .runtime = measured_[i].runtime,
                                 .profile = std::move(measured_[i].profile)});
    }
    LIME_RETURN_IF_ERROR(MeasureLinks(cluster));
    return cluster;
  }

 private:
  bool Stopped() {
    absl::MutexLock lock(&mutex_);
    return !failure_.ok();
  }

  void MeasureMachine(const std::vector<size_t>& inside) {
    for (const size_t i : inside) {
      if (Stopped()) return;
      const ProfileCall call{
          .weights = i < options_.weights.size() ? options_.weights[i] : "", .config = options_.config, .seconds = options_.seconds};
      absl::StatusOr<MeasuredDevice> measured = devices_[i]->Profile(
          call, [&](const ProfileProgress& progress) { Report(i, progress.share); }, options_.cancelled);
      if (measured.ok()) {
        SayProblem(*devices_[i], *measured);
        measured_[i] = *std::move(measured);
        Report(i, 1);
        continue;
      }
      absl::MutexLock lock(&mutex_);
      failure_.Update(measured.status());
    }
  }

  void SayProblem(const DeviceClient& device, const MeasuredDevice& measured) {
    absl::MutexLock lock(&mutex_);
    if (!measured.disk_problem.empty() && options_.say)
      options_.say(absl::StrCat("device \"", device.name(), "\": its disk was not measured: ", measured.disk_problem));
  }

  // The share of links in the progress, by their time.
  double LinkShare() const {
    const double n = static_cast<double>(devices_.size()), links = n * (n - 1) * options_.link_seconds;
    return links / (links + n * 3.5 * options_.seconds);
  }

  void Report(size_t device, double share) {
    absl::MutexLock lock(&mutex_);
    shares_[device] = share;
    double sum = 0;
    for (const double each : shares_) sum += each;
    if (options_.progress) options_.progress((1 - LinkShare()) * sum / static_cast<double>(shares_.size()));
  }

  absl::Status MeasureLinks(DescribedCluster& cluster) {
    const size_t n = devices_.size();
    for (size_t from = 0; from < n; ++from) {
      for (size_t to = 0; to < n; ++to) {
        if (from == to) continue;
        if (options_.cancelled != nullptr && options_.cancelled->load()) return absl::CancelledError("interrupted");
        const DeviceClient& peer = *devices_[to];
        LIME_ASSIGN_OR_RETURN(
            const MeasuredLink link,
            devices_[from]->ProbeLink({.peer = peer.name(), .address = peer.address(), .seconds = options_.link_seconds}));
        cluster.devices[from].profile.links.push_back({peer.name(), link.bytes_per_second, link.latency_ms});
        if (options_.progress) {
          const double done = static_cast<double>(from * (n - 1) + to + (to < from ? 1 : 0)) / static_cast<double>(n * (n - 1));
          options_.progress(std::min(1.0, 1 - LinkShare() + LinkShare() * done));
        }
      }
      std::ranges::sort(cluster.devices[from].profile.links, {}, &LinkPoint::peer);
    }
    return absl::OkStatus();
  }

  const DeviceClients& devices_;
  const ClusterProfileOptions& options_;
  std::vector<MeasuredDevice> measured_;  // by device; one thread writes each
  absl::Mutex mutex_;
  std::vector<double> shares_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the first one
};

}  // namespace

absl::StatusOr<DescribedCluster> MeasureCluster(const DeviceClients& devices, const ClusterProfileOptions& options) {
  return Measuring(devices, options).Run();
}

absl::StatusOr<DescribedCluster> StoredProfiles(const std::string& cluster_path) {
  const std::string stored = ProfilesPathOf(cluster_path);
  if (!FileExists(stored)) return DescribedCluster{};
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(stored, kMaxJsonBytes));
  return ParseDeviceProfiles(text, stored);
}

void AddKnownModels(const DescribedCluster& before, DescribedCluster& measured) {
  for (DescribedDevice& device : measured.devices) {
    const DescribedDevice* const known = before.Find(device.name);
    if (known == nullptr || known->profile.cpu != device.profile.cpu || known->profile.threads != device.profile.threads) continue;
    for (const ModelCompute& model : known->profile.models) {
      if (device.profile.FindModel(model.key) == nullptr) device.profile.SetModel(model);
    }
    if (device.profile.disk.empty()) device.profile.SetDisk(known->profile.disk, known->profile.bursts);
  }
}

}  // namespace lime::cli
