#include <algorithm>
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/input/command_line.h"
#include "common/sampling/sampler.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/cli/output_flag.h"
#include "coordinator/cluster/device_profiles.h"
#include "coordinator/cluster/units.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/devices/cluster_profile.h"
#include "coordinator/reports/progress.h"
#include "coordinator/reports/text_table.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "daemon/machine/files.h"
#include "daemon/machine/system_memory.h"
#include "daemon/profile/measure_bursts.h"
#include "daemon/profile/measure_compute.h"
#include "daemon/profile/measure_disk.h"
#include "daemon/profile/measure_rates.h"
#include "daemon/profile/profile_file.h"
#include "daemon/weights/checkpoint.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

constexpr Bytes kLeastForPlans = 64 * kMiB;  // of a device, beyond limed itself
constexpr Bytes kMeasuringRoom = 16 * kMiB;
// A smaller model is too small to measure the disk, and never needs it.
constexpr Bytes kLeastDiskBytes = 32 * kMiB;

struct ProfileFlags {
  std::string model;
  std::string cluster;
  std::string profile;
  OutputFlag out{.kind = OutputKind::kProfile, .adds_to = "--profile"};
  std::string memory;
  int threads = 0;
  double seconds = 5;
  double link_seconds = 1;
  bool insecure = false;
  bool json = false;
};

// Memory that measuring may use: from the call, else half of the free memory, to leave room for
// other programs.
absl::StatusOr<Bytes> Allowed(const ProfileFlags& flags) {
  const Bytes free = AvailableMemory() / 2;
  if (flags.memory.empty()) return free;
  const absl::StatusOr<Bytes> memory = ParseBytes(flags.memory);
  if (!memory.ok()) return WrongCall(absl::StrCat("--memory: ", memory.status().message()));
  LIME_RETURN_IF_ERROR(OfUser(CheckBudget(absl::StrCat("--memory ", flags.memory), *memory)));
  const Bytes own = ProcessResidentBytes();
  if (*memory < own + kMeasuringRoom) {
    return absl::ResourceExhaustedError(absl::StrCat("--memory ", AsTyped(flags.memory),
                                                     " leaves no room for measuring: this process uses ", FormatBytes(own), "; give ",
                                                     BudgetAtLeast(own + 2 * kMeasuringRoom), " or more"));
  }
  return std::min(free, *memory - own);
}

// The known profile: of --profile, or of the file that will be replaced if it is for this CPU and
// thread count.
absl::StatusOr<DeviceProfile> KnownProfile(const ProfileFlags& flags, const std::string& out, int threads) {
  const absl::StatusOr<DeviceProfile> known = ReadProfile(flags.profile.empty() ? out : flags.profile);
  if (!flags.profile.empty() && !known.ok()) return OfUser(known.status());
  if (!flags.profile.empty() && !IsOwn(*known, threads)) {
    return WrongCall(absl::StrCat("--profile ", flags.profile, " is a profile of ", known->cpu, " with ", known->threads,
                                  " threads; measure into a new file with --out"));
  }
  return known.ok() && IsOwn(*known, threads) ? *known : EmptyProfile(threads);
}

auto Progress(ProgressLine& line) {
  return [&line](double done, double total) { line.UpdateShare(done / total); };
}

absl::Status MeasureDiskOf(const Checkpoint& checkpoint, const ProfileFlags& flags, Bytes memory, DeviceProfile& profile) {
  if (checkpoint.FileBytes() < kLeastDiskBytes) return absl::OkStatus();
  ProgressLine line("Disk");
  LIME_ASSIGN_OR_RETURN(
      std::vector<DiskPoint> disk,
      MeasureDisk(checkpoint.FilePaths(),
                  {.seconds = flags.seconds, .memory = memory / 2, .progress = Progress(line), .cancelled = &Interrupted()}));
  LIME_ASSIGN_OR_RETURN(const std::optional<BurstCost> bursts,
                        MeasureBursts(checkpoint.FilePaths(), {.seconds = std::min(MeasureBurstsOptions().seconds, flags.seconds / 2),
                                                               .memory = memory / 2,
                                                               .cancelled = &Interrupted()}));
  profile.SetDisk(std::move(disk), bursts);
  return absl::OkStatus();
}

absl::Status MeasureBlocksOf(const ModelSpec& spec, const ProfileFlags& flags, Bytes memory, DeviceProfile& profile) {
  ProgressLine line("Blocks");
  Sampler sampler;
  uint64_t position = 0;
  const auto sample = [&](std::span<const float> logits) { (void)sampler.Sample(logits, {}, {}, {.request = 0, .position = ++position}); };
  LIME_ASSIGN_OR_RETURN(ModelCompute compute, MeasureCompute(spec, {.num_threads = static_cast<int>(profile.threads),
                                                                    .seconds = 2 * flags.seconds,
                                                                    .memory = memory,
                                                                    .after_step = sample,
                                                                    .progress = Progress(line),
                                                                    .cancelled = &Interrupted()}));
  compute.name = std::filesystem::path(flags.model).lexically_normal().filename().string().substr(0, 128);
  profile.SetModel(std::move(compute));
  return absl::OkStatus();
}

// Milliseconds of one kind of block, by rows (down) and context (across).
void PrintBlocks(const ModelCompute& model, BlockKind kind) {
  std::map<int64_t, std::map<int64_t, double>> ms;  // by rows, by context
  std::set<int64_t> contexts;
  for (const ComputePoint& p : model.points) {
    if (p.kind != kind) continue;
    ms[p.rows][p.context] = p.ms;
    contexts.insert(p.context);
  }
  absl::PrintF("%-10s %6s", std::string(InfoOf(kind).name), "rows");
  for (const int64_t context : contexts) absl::PrintF(" %12s", context > 0 ? absl::StrCat("at ", context) : "ms");
  for (const auto& [rows, by_context] : ms) {
    absl::PrintF("\n%17d", rows);
    for (const int64_t context : contexts)
      absl::PrintF(" %12s", by_context.contains(context) ? absl::StrFormat("%.3f", by_context.at(context)) : "");
  }
  absl::PrintF("\n");
}

void Print(const DeviceProfile& profile, const ModelCompute* model) {
  absl::PrintF("%s, %s, %d threads\nmemory   %7.1f GB/s read\ncompute  %7.0f GFLOP/s fp32\n", profile.cpu, profile.instruction_set,
               profile.threads, profile.read_bytes_per_second / 1e9, profile.flops / 1e9);
  for (const DiskPoint& p : profile.disk) {
    absl::PrintF("disk     %7.2f GB/s, %8.2f ms, %s reads, %d in flight\n", p.bytes_per_second / 1e9, p.latency_ms,
                 FormatBytes(p.read_bytes), p.depth);
  }
  if (profile.bursts)
    absl::PrintF("bursts   n small reads of s bytes: %.3f ms + n (%.1f us + s / %.2f GB/s)\n", profile.bursts->burst_ms,
                 1000 * profile.bursts->read_ms, profile.bursts->bytes_per_ms / 1e6);
  if (model == nullptr) return;
  absl::PrintF("%s: milliseconds of one block; a step takes %.3f ms besides its blocks\n", model->name, model->step_overhead_ms);
  for (const LayerHalf half : {LayerHalf::kAttention, LayerHalf::kMlp, LayerHalf::kNone}) {
    for (const BlockKindInfo& info : kBlockKinds) {
      const bool measured = std::ranges::find(model->points, info.kind, &ComputePoint::kind) != model->points.end();
      if (info.half == half && measured) PrintBlocks(*model, info.kind);
    }
  }
}

absl::Status Profile(const ProfileFlags& flags) {
  LIME_RETURN_IF_ERROR(OfUser(CheckThreads("--threads", flags.threads)));
  if (!(flags.seconds > 0 && flags.seconds <= 600))
    return WrongCall(absl::StrCat("--seconds ", flags.seconds, " must be more than 0 and at most 600"));
  LIME_ASSIGN_OR_RETURN(const Bytes memory, Allowed(flags));
  const Bytes bytes = std::min(kMeasuredBytes, memory / kMiB * kMiB);
  if (bytes < kMiB) return absl::ResourceExhaustedError("less than 1 MiB of memory may be used; end other programs, or raise --memory");
  const int threads = flags.threads > 0 ? flags.threads : UsableCores();
  LIME_RETURN_IF_ERROR(flags.out.Check());
  std::optional<Checkpoint> checkpoint;
  std::optional<ModelSpec> spec;
  if (!flags.model.empty()) {
    LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model));
    LIME_ASSIGN_OR_RETURN(checkpoint, Checkpoint::Open(flags.model));
    LIME_ASSIGN_OR_RETURN(spec, checkpoint->BuildModelSpec());
  }
  const std::string out = flags.out.path.empty() ? DefaultProfilePath() : flags.out.path;
  if (out.empty()) return WrongCall(kNoProfilePath);
  LIME_ASSIGN_OR_RETURN(DeviceProfile profile, KnownProfile(flags, out, threads));
  MeasureRates(flags.seconds / 2, bytes, profile);
  if (Interrupted()) return absl::CancelledError("interrupted");
  std::string key;
  if (checkpoint) {
    LIME_RETURN_IF_ERROR(MeasureDiskOf(*checkpoint, flags, memory, profile));
    LIME_RETURN_IF_ERROR(MeasureBlocksOf(*spec, flags, memory, profile));
    key = ModelKey(*spec);
  }
  if (flags.out.path.empty()) LIME_RETURN_IF_ERROR(WriteProfile(profile, out));
  LIME_RETURN_IF_ERROR(flags.out.Write(ToJsonText(profile) + "\n"));
  if (flags.json) return Answered(nlohmann::json::parse(ToJsonText(profile)), true);
  Print(profile, profile.FindModel(key));
  absl::PrintF("written to %s\n", out);
  return absl::OkStatus();
}

// ---- The devices of a cluster, each measured by itself

// config.json of the model, if it is on this machine: for devices that have no weights yet.
std::string ConfigOf(const ProfileFlags& flags, const ClusterFile& file) {
  const std::string folder = !flags.model.empty() || file.config.model.empty() ? flags.model : file.Beside(file.config.model);
  if (folder.empty()) return "";
  const absl::StatusOr<std::string> config = ReadTextFile(folder + "/config.json", kMaxWireConfigBytes);
  return config.ok() ? *config : "";
}

absl::Status KeepBeside(const OutputFlag& beside, DescribedCluster& measured) {
  const std::string& path = beside.path;
  if (FileExists(path)) {
    if (const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxJsonBytes); text.ok()) {
      if (const absl::StatusOr<DescribedCluster> before = ParseDeviceProfiles(*text, path); before.ok()) AddKnownModels(*before, measured);
    }
  }
  return beside.Write(ToJsonText(measured) + "\n");
}

void Print(const DescribedCluster& cluster) {
  TextTable table({TextTable::Align::kLeft, TextTable::Align::kRight, TextTable::Align::kRight, TextTable::Align::kRight,
                   TextTable::Align::kRight, TextTable::Align::kLeft});
  table.AddRow({"device", "may use", "itself", "memory", "disk", "numerics"});
  for (const DescribedDevice& device : cluster.devices) {
    const double disk = device.profile.DiskRate(kMiB, 8);
    table.AddRow({device.name, FormatBytes(device.memory), FormatBytes(device.runtime.value_or(0)),
                  absl::StrFormat("%.1f GB/s", device.profile.read_bytes_per_second / 1e9),
                  disk > 0 ? absl::StrFormat("%.2f GB/s", disk / 1e9) : "-", device.numerics_id});
  }
  std::cout << table.Text(OutputColumns(), -1);
  for (const DescribedDevice& device : cluster.devices) {
    for (const LinkPoint& link : device.profile.links)
      absl::PrintF("%s to %s: %s, %.3f ms\n", device.name, link.peer, FormatBandwidth(link.bytes_per_second), link.latency_ms);
  }
}

// Refuses a budget smaller than limed itself: nothing can be measured in it, and no plan can use
// the device.
absl::Status CheckBudgetOf(const ClusterFile& file, const ClusterConfig::Device& device, const DeviceHealth& health) {
  if (device.memory == 0 || device.memory > health.runtime) return absl::OkStatus();
  return WrongCall(absl::StrCat(file.path, " line ", device.line, ": device \"", device.name, "\" has a memory of ",
                                FormatBytes(device.memory), ", but limed itself needs ", FormatBytes(health.runtime), " there; give it ",
                                BudgetAtLeast(health.runtime + kLeastForPlans), " or more"));
}

absl::Status ProfileDevices(const ProfileFlags& flags) {
  if (!flags.model.empty()) LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model));
  LIME_ASSIGN_OR_RETURN(const ClusterFile file, ClusterFile::Open(flags.cluster, flags.insecure));
  const OutputFlag beside{.kind = OutputKind::kClusterProfiles,
                          .flag = "the file of the profiles",
                          .path = ProfilesPathOf(file.path),
                          .overwrite = flags.out.overwrite};
  LIME_RETURN_IF_ERROR(beside.Check());
  const std::vector<std::unique_ptr<DeviceClient>> devices = file.Clients();
  constexpr absl::Duration kPatience = absl::Seconds(5);
  std::vector<absl::Status> silent;
  for (size_t i = 0; i < devices.size(); ++i) {
    const absl::StatusOr<DeviceHealth> health = devices[i]->Health(kPatience);
    silent.push_back(health.status());
    if (health.ok()) LIME_RETURN_IF_ERROR(CheckBudgetOf(file, file.config.devices[i], *health));
  }
  LIME_RETURN_IF_ERROR(AllOf(silent));
  std::vector<std::string> problems;
  ProgressLine line("Profiling");
  ClusterProfileOptions options{.config = ConfigOf(flags, file),
                                .seconds = flags.seconds,
                                .link_seconds = flags.link_seconds,
                                .progress = [&](double share) { line.UpdateShare(share); },
                                .say = [&](const std::string& sentence) { problems.push_back(sentence); },
                                .cancelled = &Interrupted()};
  for (const ClusterConfig::Device& device : file.config.devices) options.weights.push_back(device.weights);
  LIME_ASSIGN_OR_RETURN(DescribedCluster measured, MeasureCluster(devices, options));
  line.Finish();
  for (size_t i = 0; i < measured.devices.size(); ++i) {
    if (const Bytes memory = file.config.devices[i].memory; memory > 0) measured.devices[i].memory = memory;
  }
  LIME_RETURN_IF_ERROR(KeepBeside(beside, measured));
  for (const std::string& problem : problems) absl::FPrintF(stderr, "lime: %s\n", problem);
  if (flags.json) return Answered(nlohmann::json::parse(ToJsonText(measured)), true);
  Print(measured);
  absl::PrintF("written to %s, where `lime plan` and `lime run` with --cluster %s find it\n", ProfilesPathOf(file.path), file.path);
  return absl::OkStatus();
}

absl::Status ProfileAny(const ProfileFlags& flags) {
  if (flags.cluster.empty()) return Profile(flags);
  if (!(flags.seconds > 0.01 && flags.seconds <= kMaxProfileSeconds))
    return WrongCall(absl::StrCat("--seconds ", flags.seconds, " must be more than 0.01 and at most ", kMaxProfileSeconds));
  if (!(flags.link_seconds > 0.01 && flags.link_seconds <= 60))
    return WrongCall(absl::StrCat("--link-seconds ", flags.link_seconds, " must be more than 0.01 and at most 60"));
  return ProfileDevices(flags);
}

}  // namespace

void AddProfileCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<ProfileFlags>(
      "profile", "Measure this machine, or the devices of a cluster, and store the profiles for predictions",
      "Examples:\n  lime profile --model Llama-3.1-8B\n  lime profile --cluster shelf.toml     every device measures itself, then the "
      "links between them are measured;\n                                        the profiles are in shelf.profiles.json",
      ProfileAny);
  command.Add("--model,-m", &flags.model, "Also measure the blocks of this checkpoint, and the disk that holds it");
  command.Add("--threads", &flags.threads, "Compute threads; 0: one for every core this process may use").Shown();
  command.Add("--seconds", &flags.seconds, "Seconds for the disk; the blocks of the model get twice as much time, the rest half as much")
      .Shown();
  command.Add("--memory", &flags.memory, "Memory that measuring may use, such as 512MiB; without it: half of the free memory");
  command.Add("--profile", &flags.profile, "Profile to add to, instead of the stored one");
  flags.out.AddTo(command, "--out", "File for the profile, instead of the stored one that every run reads");
  AddOptionalClusterFlag(command, flags.cluster, "cluster.toml: measure its devices, on which limed runs, and the links between them");
  command.Add("--link-seconds", &flags.link_seconds, "With --cluster, seconds for each link from one device to another").Shown();
  command.Add("--insecure", &flags.insecure, "With --cluster, talk to other machines without keys");
  command.Add("--json", &flags.json, "Print one JSON object");
}

}  // namespace lime::cli
