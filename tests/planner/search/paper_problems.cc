#include "tests/planner/search/paper_problems.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/plan/instance/plan_json.h"

namespace lime {
namespace {

constexpr double kMostPartMb = 64;

constexpr int kContext = 2048, kBf16Bytes = 2;

struct PaperModel {
  int layers, hidden, heads, kv_heads, intermediate, vocab;
};

constexpr PaperModel kLlama13b = {40, 5120, 40, 40, 13824, 32000}, kQwen32b = {64, 5120, 64, 8, 25600, 151936},
                     kLlama70b = {80, 8192, 64, 8, 28672, 128256};
constexpr int kHeadDim = 128;  // of all three

struct PaperDevice {
  const char* name;
  int gib;
  double disk_gb_per_s, overhead_ms, mem_gb_per_s;
};

constexpr PaperDevice kNx16 = {"NX16", 16, 1, 0.25, 41.79}, kNx16Half = {"NX16-half", 8, 1, 0.25, 41.79},
                      kOrin32 = {"Orin32", 32, 2, 0.12, 143.36}, kOrin24 = {"Orin32-8", 24, 2, 0.12, 143.36},
                      kOrin64 = {"Orin64", 64, 2.5, 0.12, 143.36};
constexpr double kUsableMemory = 0.82;

struct PaperSetting {
  const char* name;
  PaperModel model;
  int mbit_per_s;
  std::vector<PaperDevice> devices;
};

const std::vector<PaperSetting>& PaperSettings() {
  static const auto& settings = *new std::vector<PaperSetting>{
      {"E1", kLlama13b, 100, {kNx16, kOrin32}},
      {"E2", kQwen32b, 200, {kNx16, kOrin32, kOrin64}},
      {"E3", kLlama70b, 100, {kNx16, kOrin32, kOrin64, kOrin64}},
      {"S1", kLlama70b, 100, {kOrin64, kOrin32, kOrin32, kNx16, kNx16}},
      {"S2", kLlama70b, 100, {kOrin64, kOrin32, kOrin32, kNx16, kNx16Half}},
      {"S3", kLlama70b, 100, {kOrin64, kOrin32, kOrin24, kNx16, kNx16Half}},
  };
  return settings;
}

double SixDecimals(double value) {
  return std::round(value * 1e6) / 1e6;
}

// In MB; with the KV of `sequences` requests.
std::vector<Instance::Block> BlocksOf(const PaperModel& model, int sequences) {
  const double row_mb = kBf16Bytes * model.hidden / 1e6;
  const double attention_mb = row_mb * 2 * kHeadDim * (model.heads + model.kv_heads), mlp_mb = row_mb * 3 * model.intermediate;
  const double kv_mb = sequences * (2.0 * kBf16Bytes * kContext * model.kv_heads * kHeadDim / 1e6);
  std::vector<Instance::Block> blocks;
  for (int i = 0; i < model.layers; ++i) {
    blocks.push_back({.kind = Instance::Kind::kAttention, .layer = i, .mb = attention_mb, .kv_mb = kv_mb});
    blocks.push_back({.kind = Instance::Kind::kMlp, .layer = i, .mb = mlp_mb});
  }
  blocks.push_back({.kind = Instance::Kind::kHead, .layer = model.layers, .mb = row_mb * model.vocab});
  return blocks;
}

Instance::Device DeviceOf(const PaperDevice& device, const std::vector<Instance::Block>& blocks) {
  Instance::Device out = {.name = device.name,
                          .mem_mb = SixDecimals(kUsableMemory * device.gib * (1 << 30) / 1e6),
                          .disk_mb_per_ms = device.disk_gb_per_s,
                          .disk_lat_ms = 0.3};
  for (const Instance::Block& block : blocks)
    out.comp_ms.push_back(SixDecimals(device.overhead_ms + (block.mb + block.kv_mb) / device.mem_gb_per_s));
  return out;
}

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
Instance::Device MachineOf(const Instance& instance, double mem_gb, double disk_gb_per_s, double mem_gb_per_s) {
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

// Every model block in as many parts as keep each within `most_mb`.
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

Instance PaperProblem(const std::string& name) {
  const int sequences = name.ends_with('b') ? 5 : 1;
  const auto setting = std::ranges::find_if(PaperSettings(), [&](const PaperSetting& each) { return name.starts_with(each.name); });
  LIME_CHECK(setting != PaperSettings().end()) << name;
  Instance instance;
  instance.blocks = BlocksOf(setting->model, sequences);
  for (const PaperDevice& device : setting->devices) instance.devices.push_back(DeviceOf(device, instance.blocks));
  for (Instance::Block& block : instance.blocks) {
    block.mb = SixDecimals(block.mb);
    block.kv_mb = SixDecimals(block.kv_mb);
  }
  instance.embed_mb = instance.blocks.back().mb;
  const double message_bytes = sequences * kBf16Bytes * setting->model.hidden;
  instance.net = {.tx_ms = SixDecimals(message_bytes / (125.0 * setting->mbit_per_s)), .lat_ms = 0.3};
  return instance;
}

Instance LargeProblem() {
  Instance instance;
  AddLayers(126, 1140.9, 8.4, 5234.5, instance);
  instance.blocks.push_back({.kind = Instance::Kind::kHead, .layer = 126, .mb = 4202.7});
  instance.embed_mb = 4202.7;
  instance.net = {.tx_ms = 2.6, .lat_ms = 0.3};
  for (const double gb : {150, 75}) instance.devices.push_back(MachineOf(instance, gb, 5, 700));
  for (const double gb : {100, 75, 50}) instance.devices.push_back(MachineOf(instance, gb, 3, 350));
  for (const double gb : {56, 28, 28}) instance.devices.push_back(MachineOf(instance, gb, 2, 143));
  return instance;
}

Instance LongProblem(int layers, int devices) {
  Instance instance;
  AddLayers(layers, 300, 8, 1400, instance);
  const double share_gb = 0.9 * 1.708 * layers / devices;
  for (int d = 0; d < devices; ++d) {
    const double part = 0.5 + 0.25 * (d % 5);
    instance.devices.push_back(MachineOf(instance, share_gb * part, 1 + 0.5 * (d % 3), d % 4 == 0 ? 42 : 143));
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

absl::StatusOr<Instance> ProblemOf(const std::string& name_or_path) {
  if (std::ranges::count(kPaperProblems, name_or_path) > 0) return PaperProblem(name_or_path);
  return ReadProblem(name_or_path);
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
