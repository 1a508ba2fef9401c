#include "coordinator/devices/cluster_devices.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lime::cli {
namespace {

constexpr absl::Duration kHoldingsPatience = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::vector<DeviceHealth>> AskHealthOfAll(const DeviceClients& devices) {
  const auto answers = AskAll(devices.size(), [&](size_t i) { return devices[i]->Health(kHoldingsPatience); });
  std::vector<DeviceHealth> health;
  std::vector<std::string> problems, flags;
  absl::Status first;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (answers[i].ok()) {
      health.push_back(*answers[i]);
      continue;
    }
    first.Update(answers[i].status());
    problems.push_back(std::string(answers[i].status().message()));
    flags.push_back(absl::StrCat("--without ", devices[i]->name()));
  }
  if (problems.empty()) return health;
  if (problems.size() == devices.size()) return absl::Status(first.code(), absl::StrJoin(problems, "; "));
  return absl::Status(first.code(), absl::StrCat(absl::StrJoin(problems, "; "), "; or continue without ",
                                                 problems.size() > 1 ? "them" : "it", ": ", absl::StrJoin(flags, " ")));
}

absl::StatusOr<ClusterHoldings> AskHoldings(const ClusterFile& file, const DeviceClients& devices, uint64_t model) {
  const auto answers = AskAll(devices.size(), [&](size_t i) {
    const HoldingsCall call{.weights = file.config.devices[i].weights, .model = model};
    absl::StatusOr<DeviceHoldings> answer = devices[i]->Holdings(call, kHoldingsPatience);
    // The device may have just restarted: ask once more.
    return absl::IsUnavailable(answer.status()) ? devices[i]->Holdings(call, kHoldingsPatience) : answer;
  });
  ClusterHoldings holdings;
  for (size_t i = 0; i < devices.size(); ++i) {
    LIME_RETURN_IF_ERROR(answers[i].status());
    const ClusterConfig::Device& device = file.config.devices[i];
    holdings.neurons[device.name] = answers[i]->neurons;
    if (answers[i]->whole) continue;
    holdings.homes[device.name] = answers[i]->blocks;
    if (!answers[i]->accepts_pushes || !device.weights.empty()) holdings.no_push.insert(device.name);
  }
  return holdings;
}

std::string HowToAcceptPushes(const ClusterFile& file, const ClusterHoldings& holdings) {
  std::vector<std::string> sentences;
  for (const ClusterConfig::Device& device : file.config.devices) {
    if (!holdings.no_push.contains(device.name)) continue;
    const std::string where = absl::StrCat("device \"", device.name, "\"");
    if (!device.weights.empty()) {
      const std::filesystem::path store = std::filesystem::path(device.weights).lexically_normal().parent_path();
      sentences.push_back(absl::StrCat(where, " should read ", device.weights,
                                       ", which holds only some pushed blocks of the model: write store = \"", store.string(),
                                       "\" instead of weights, then `lime push` sends the other blocks"));
    } else {
      sentences.push_back(absl::StrCat(where,
                                       " has neither the model nor a store for it: add weights = \"FOLDER\" or store = \"FOLDER\" in ",
                                       file.path, " and restart limed"));
    }
  }
  return absl::StrJoin(sentences, "; ");
}

}  // namespace lime::cli
