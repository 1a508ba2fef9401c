#include "tests/planner/paper_problems.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "planner/pieces.h"
#include "planner/plan/plan_json.h"

namespace lime {
namespace {

constexpr double kMostPieceMb = 64;

// Milliseconds a device takes per MB it reads in memory: what larger blocks without KV take longer.
double MsPerMb(const Instance& instance, const Instance::Device& device) {
  int smallest = -1, largest = -1;
  for (int b = 0; b < instance.NumBlocks(); ++b) {
    if (instance.blocks[b].kv_mb > 0) continue;
    if (smallest < 0 || instance.blocks[b].mb < instance.blocks[smallest].mb) smallest = b;
    if (largest < 0 || instance.blocks[b].mb > instance.blocks[largest].mb) largest = b;
  }
  return (device.comp_ms[largest] - device.comp_ms[smallest]) / (instance.blocks[largest].mb - instance.blocks[smallest].mb);
}

}  // namespace

absl::StatusOr<Instance> ReadProblem(const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json problem = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!problem.is_object() || !problem.contains("instance")) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no problem with an instance"));
  }
  return InstanceFromJson(problem["instance"]);
}

Instance WithSlowerWire(Instance instance, double factor) {
  instance.net.tx_ms *= factor;
  for (auto& [batch, tx_ms] : instance.net.tx_ms_by_batch) tx_ms *= factor;
  return instance;
}

Instance WithSequences(Instance instance, int sequences) {
  for (Instance::Device& device : instance.devices) {
    std::vector<double> together = device.comp_ms;
    const double ms_per_mb = MsPerMb(instance, device);
    for (int b = 0; b < instance.NumBlocks(); ++b) together[b] += (sequences - 1) * instance.blocks[b].kv_mb * ms_per_mb;
    device.comp_ms_by_batch = {{1, device.comp_ms}, {sequences, together}};
  }
  for (Instance::Block& block : instance.blocks) block.kv_mb *= sequences;
  instance.net.tx_ms_by_batch = {{1, instance.net.tx_ms}, {sequences, instance.net.tx_ms * sequences}};
  instance.sequences = sequences;
  return instance;
}

Instance InPieces(const Instance& instance, double wire_mb_per_ms) {
  Instance out = CutInPieces(instance, kMostPieceMb);
  for (Instance::Device& device : out.devices) {
    if (device.disk_mb_per_ms <= 0) continue;
    device.embed_rows_ms = device.disk_lat_ms + instance.net.tx_ms * wire_mb_per_ms / device.disk_mb_per_ms;
  }
  return out;
}

}  // namespace lime
