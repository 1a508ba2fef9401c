#include "tests/planner/paper_problems.h"

#include <fstream>

#include "absl/strings/str_cat.h"
#include "planner/plan/plan_json.h"

namespace lime {
namespace {

constexpr double kMostPartMb = 64;

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

// A device that reads `mem_gb_per_s` of memory while it computes.
Instance::Device Machine(const Instance& instance, double mem_gb, double disk_gb_per_s, double mem_gb_per_s) {
  Instance::Device device = {.mem_mb = 1000 * mem_gb, .disk_mb_per_ms = disk_gb_per_s, .disk_lat_ms = 0.3};
  for (const Instance::Block& block : instance.blocks) device.comp_ms.push_back(0.1 + (block.mb + block.kv_mb) / mem_gb_per_s);
  return device;
}

void AddLayers(int layers, double attention_mb, double kv_mb, double mlp_mb, Instance& instance) {
  for (int i = 0; i < layers; ++i) {
    instance.blocks.push_back({.kind = Instance::Kind::kAttention, .layer = i, .mb = attention_mb, .kv_mb = kv_mb});
    instance.blocks.push_back({.kind = Instance::Kind::kMlp, .layer = i, .mb = mlp_mb});
  }
}

std::vector<double> Divided(const std::vector<double>& each, const std::vector<int>& parts) {
  std::vector<double> out;
  for (size_t b = 0; b < each.size(); ++b) out.insert(out.end(), parts[b], each[b] / parts[b]);
  return out;
}

// Every model block in as many pieces as keep each within `most_mb`.
Instance CutInParts(const Instance& instance, double most_mb) {
  Instance out = instance;
  out.blocks.clear();
  std::vector<int> parts;
  for (const Instance::Block& block : instance.blocks) {
    const int count = std::max(1, static_cast<int>(std::ceil(block.mb / most_mb - 1e-9)));
    parts.push_back(count);
    Instance::Block part = block;
    part.mb /= count;
    part.kv_mb /= count;
    out.blocks.insert(out.blocks.end(), count, part);
  }
  for (Instance::Device& device : out.devices) {
    device.comp_ms = Divided(device.comp_ms, parts);
    for (auto& [batch, comp_ms] : device.comp_ms_by_batch) comp_ms = Divided(comp_ms, parts);
  }
  return out;
}

}  // namespace

Instance LargeProblem() {
  Instance instance;
  AddLayers(126, 1140.9, 8.4, 5234.5, instance);
  instance.blocks.push_back({.kind = Instance::Kind::kHead, .layer = 126, .mb = 4202.7});
  instance.embed_mb = 4202.7;
  instance.net = {.tx_ms = 2.6, .lat_ms = 0.3};
  for (const double gb : {150, 75}) instance.devices.push_back(Machine(instance, gb, 5, 700));
  for (const double gb : {100, 75, 50}) instance.devices.push_back(Machine(instance, gb, 3, 350));
  for (const double gb : {56, 28, 28}) instance.devices.push_back(Machine(instance, gb, 2, 143));
  return instance;
}

Instance LongProblem(int layers, int devices) {
  Instance instance;
  AddLayers(layers, 300, 8, 1400, instance);
  const double share_gb = 0.9 * 1.708 * layers / devices;
  for (int d = 0; d < devices; ++d) {
    const double part = 0.5 + 0.25 * (d % 5);
    instance.devices.push_back(Machine(instance, share_gb * part, 1 + 0.5 * (d % 3), d % 4 == 0 ? 42 : 143));
  }
  instance.net = {.tx_ms = 1.3, .lat_ms = 0.3};
  return instance;
}

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

Instance InParts(const Instance& instance, double wire_mb_per_ms) {
  Instance out = CutInParts(instance, kMostPartMb);
  for (Instance::Device& device : out.devices) {
    if (device.disk_mb_per_ms <= 0) continue;
    device.embed_rows_ms = device.disk_lat_ms + instance.net.tx_ms * wire_mb_per_ms / device.disk_mb_per_ms;
  }
  return out;
}

}  // namespace lime
