#include "coordinator/planning/plan_inputs.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/flow.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/cluster/cluster_config.h"
#include "coordinator/cluster/device_memory.h"
#include "coordinator/cluster/device_profiles.h"
#include "coordinator/cluster/shared_machine.h"
#include "coordinator/cluster/units.h"
#include "coordinator/devices/cluster_profile.h"
#include "daemon/logic/head_partial.h"
#include "daemon/machine/files.h"
#include "daemon/profile/profile_file.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/json_text.h"
#include "planner/plan/device/limits.h"
#include "planner/plan/model/described_model.h"

namespace lime {
namespace {

namespace fs = std::filesystem;
using cli::OfUser;
using cli::WrongCall;

constexpr char kWholeBlocks[] = "none", kUsualPart[] = "64MB";
constexpr int64_t kMaxTokens = int64_t{1} << 24;
constexpr Bytes kLeastPart = 1 * kMiB;
constexpr std::array<int64_t, 4> kPrefillChunks = {64, 128, 256, 512};  // longer ones gain little

std::string NameOf(const std::string& path) {
  return fs::path(path).lexically_normal().filename().string().substr(0, 128);
}

absl::Status CheckFlags(const PlanInputFlags& flags) {
  if (flags.cluster.empty() == flags.device_profiles.empty())
    return WrongCall(flags.cluster.empty() ? "plan: no devices are given; use --cluster C.toml or --device-profiles F.json"
                                           : "plan: --cluster and --device-profiles both name devices; leave one out");
  if (!flags.model.empty() && !flags.model_spec.empty())
    return WrongCall("plan: --model and --model-spec both name a model; leave one out");
  if (flags.tokens < 1 || flags.tokens > kMaxTokens)
    return WrongCall(absl::StrCat("--tokens ", flags.tokens, " is outside 1 to ", kMaxTokens));
  if (flags.kv_tokens < 0 || flags.kv_tokens > flags.tokens || (flags.kv_tokens > 0 && flags.kv_tokens < flags.prompt_tokens)) {
    return WrongCall(absl::StrCat("--kv-tokens ", flags.kv_tokens, " is outside ", flags.prompt_tokens, " (the prompt) to ", flags.tokens,
                                  " (--tokens)"));
  }
  if (flags.prompt_tokens < 0 || flags.prompt_tokens > flags.tokens)
    return WrongCall(absl::StrCat("--prompt-tokens ", flags.prompt_tokens, " is outside 0 to ", flags.tokens, " (--tokens)"));
  if (flags.state_snapshots < 0 || flags.state_snapshots > kMaxStateSnapshots)
    return WrongCall(absl::StrCat("--state-snapshots ", flags.state_snapshots, " is outside 0 to ", kMaxStateSnapshots));
  for (const auto& [name, value] : {std::pair("--batch", flags.batch), std::pair("--sequences", flags.sequences)}) {
    if (value && (*value < 1 || *value > kMaxMicrobatches))
      return WrongCall(absl::StrCat(name, " ", *value, " is outside 1 to ", kMaxMicrobatches));
  }
  if (flags.batch && flags.sequences && *flags.batch > *flags.sequences)
    return WrongCall(absl::StrCat("--batch ", *flags.batch, " is more than --sequences ", *flags.sequences));
  return absl::OkStatus();
}

absl::Status ReadModel(const PlanInputFlags& flags, const std::string& cluster_model, PlanInputs& inputs) {
  const bool of_cluster = flags.model.empty() && flags.model_spec.empty();
  const std::string& folder = of_cluster ? cluster_model : flags.model;
  if (!folder.empty()) {
    LIME_RETURN_IF_ERROR(cli::CheckModelFolder(folder, of_cluster ? absl::StrCat(flags.cluster, ": model") : "--model"));
    LIME_ASSIGN_OR_RETURN(inputs.spec, LoadModelSpec(folder));
    inputs.model_argument = folder;
    inputs.request.model_name = NameOf(folder);
    return absl::OkStatus();
  }
  if (flags.model_spec.empty())
    return WrongCall("plan: no model is given; use --model FOLDER, or --model-spec CONFIG.json for a model whose weights are not here");
  LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(flags.model_spec, kMaxJsonBytes)));
  LIME_ASSIGN_OR_RETURN(inputs.spec, OfUser(DescribeModel(text, flags.model_spec)));
  const std::string file = fs::path(flags.model_spec).stem().string();
  inputs.request.model_name = file == "config" ? NameOf(fs::absolute(flags.model_spec).parent_path().string()) : file.substr(0, 128);
  return absl::OkStatus();
}

absl::Status ReadRequest(const PlanInputFlags& flags, PlanRequest& request) {
  request.context = flags.tokens;
  request.kv_tokens = flags.kv_tokens;
  request.state_snapshots = static_cast<int32_t>(flags.state_snapshots);
  request.prompt_tokens = flags.prompt_tokens;
  request.chunks = {kPrefillChunks.begin(), kPrefillChunks.end()};
  request.sequences = static_cast<int32_t>(flags.sequences.value_or(flags.batch.value_or(1)));
  if (flags.batch) request.batches = {static_cast<int32_t>(*flags.batch)};
  const std::string asked = flags.part.value_or(flags.whole_blocks ? kWholeBlocks : kUsualPart);
  if (asked == kWholeBlocks) {
    request.part_bytes = 0;
    return absl::OkStatus();
  }
  const absl::StatusOr<Bytes> part = ParseBytes(asked);
  if (!part.ok()) return WrongCall(absl::StrCat("--piece: ", part.status().message(), ", or none for whole blocks"));
  if (*part < kLeastPart) return WrongCall(absl::StrCat("--piece ", asked, " is less than 1 MiB; disks are slow in small reads"));
  request.part_bytes = *part;
  return absl::OkStatus();
}

// Memory for hidden states that wait between devices, and for logits if devices share the head. An
// upper bound for all chunks.
Bytes AssumedWaiting(const PlanInputs& inputs, size_t devices) {
  const PlanRequest& request = inputs.request;
  const int64_t longest = std::min(request.chunks.back(), request.prompt_tokens);
  const Flow chunks{.devices = static_cast<int64_t>(devices), .sequences = request.sequences, .chunk = longest, .batch = request.sequences};
  const Flow sweep{.devices = 1, .sequences = request.sequences, .chunk = request.prompt_tokens + longest};
  const int64_t rows = std::max(chunks.WaitingRows(), sweep.WaitingRows());
  const Bytes logits = inputs.split_head ? MostLogitBytes(/*messages=*/rows, chunks.WaitingLogitRows(), inputs.spec.config.vocab_size) : 0;
  return rows * inputs.spec.config.stream_cols() * ElementBytes(inputs.spec.working_dtype) + logits;
}

ClusterDevice MakeDevice(const DescribedDevice& described, const PlanInputs& inputs, size_t devices) {
  const PlanRequest& request = inputs.request;
  // The order of sums depends on the model's dtype, so measurements with other models do not count.
  const bool known = described.profile.models.empty() || described.profile.FindModel(ModelKey(inputs.spec)) != nullptr;
  return {
      .name = described.name,
      .numerics_id = known ? described.numerics_id : "",
      .budget = described.memory,
      .runtime = described.runtime.value_or(kAssumedRuntime),
      .activations = described.activations.value_or(AssumedActivations(inputs.spec, MostRows(request), request.sequences, request.context) +
                                                    RingSlack(inputs.spec, request.part_bytes) + AssumedWaiting(inputs, devices)),
      .margin = described.margin.value_or(kAssumedMargin),
      .profile = described.profile};
}

void SetLink(DeviceProfile& profile, const LinkPoint& link) {
  std::erase_if(profile.links, [&](const LinkPoint& other) { return other.peer == link.peer; });
  profile.links.push_back(link);
  std::ranges::sort(profile.links, {}, &LinkPoint::peer);
}

// A link has two directions.
void ApplyLinks(const ClusterConfig& config, DescribedCluster& cluster) {
  for (const ClusterConfig::Link& link : config.links) {
    if (link.from.empty()) cluster.link = LinkPoint{.peer = "", .bytes_per_second = link.bytes_per_second, .latency_ms = link.latency_ms};
    for (DescribedDevice& device : cluster.devices) {
      const bool from = device.name == link.from, to = device.name == link.to;
      if (from || to) SetLink(device.profile, {from ? link.to : link.from, link.bytes_per_second, link.latency_ms});
    }
  }
}

// `where` opens every error.
absl::StatusOr<DescribedDevice> ReadDevice(const ClusterConfig::Device& device, const std::string& path, const DescribedCluster& stored,
                                           const std::string& where) {
  DescribedDevice described = {.name = device.name};
  const DescribedDevice* const found = stored.Find(device.name);
  if (found != nullptr) described = *found;
  if (!device.profile.empty()) {
    absl::StatusOr<DeviceProfile> profile = ReadProfile((fs::path(path).parent_path() / device.profile).string());
    if (!profile.ok()) return Invalid(where, ": ", profile.status().message());
    // A profile that was measured on the device alone has no links.
    for (const LinkPoint& link : described.profile.links) {
      const bool known = std::ranges::find(profile->links, link.peer, &LinkPoint::peer) != profile->links.end();
      if (!known) profile->links.push_back(link);
    }
    std::ranges::sort(profile->links, {}, &LinkPoint::peer);
    described.profile = *std::move(profile);
  } else if (found == nullptr) {
    return absl::FailedPreconditionError(absl::StrCat(where, " was never measured; run `lime profile --cluster ", path,
                                                      "` while limed runs there, or add profile = \"FILE\" of `lime profile --out`"));
  }
  if (device.memory > 0) described.memory = device.memory;
  if (described.memory == 0) return Invalid(where, " states no memory; add the memory that limed may use, such as memory = \"8GiB\"");
  return described;
}

std::vector<std::vector<std::string>> MachinesShared(const ClusterConfig& config) {
  std::vector<std::string> names, addresses;
  for (const ClusterConfig::Device& device : config.devices) names.push_back(device.name), addresses.push_back(device.address);
  return SharedMachines(names, addresses);
}

absl::StatusOr<DescribedCluster> ReadCluster(const std::string& path, const ClusterConfig& config) {
  LIME_ASSIGN_OR_RETURN(const DescribedCluster stored, cli::StoredProfiles(path));
  DescribedCluster cluster = {.devices = {}, .link = stored.link};
  for (const ClusterConfig::Device& device : config.devices) {
    const std::string where = absl::StrCat(path, " line ", device.line, ": device \"", device.name, "\"");
    LIME_ASSIGN_OR_RETURN(DescribedDevice described, ReadDevice(device, path, stored, where));
    cluster.devices.push_back(std::move(described));
  }
  ApplyLinks(config, cluster);
  ShareDisks(MachinesShared(config), cluster.devices);
  return cluster;
}

// Bytes per second of every link; nullopt without --bandwidth.
absl::StatusOr<std::optional<double>> ReadBandwidth(const std::string& said) {
  if (said.empty()) return std::nullopt;
  const absl::StatusOr<double> rate = ParseBandwidth(said);
  if (!rate.ok()) return WrongCall(absl::StrCat("--bandwidth: ", rate.status().message()));
  if (*rate < 1 || *rate > kMaxBytesPerSecond) return WrongCall(absl::StrCat("--bandwidth ", said, " is out of range"));
  return *rate;
}

// Checks that every pair has a link, or that there is a default.
absl::Status CheckLinks(const PlanInputFlags& flags, std::optional<double> bandwidth, DescribedCluster& cluster, PlanRequest& request) {
  if (bandwidth) {
    cluster.link = LinkPoint{.peer = "", .bytes_per_second = *bandwidth, .latency_ms = cluster.link ? cluster.link->latency_ms : 0.3};
    for (DescribedDevice& device : cluster.devices) {
      for (LinkPoint& link : device.profile.links) link.bytes_per_second = *bandwidth;
    }
  }
  if (cluster.link) {
    request.default_link = *cluster.link;
    return absl::OkStatus();
  }
  const auto has = [](const DescribedDevice& device, const std::string& peer) {
    return std::ranges::find(device.profile.links, peer, &LinkPoint::peer) != device.profile.links.end();
  };
  for (const DescribedDevice& a : cluster.devices) {
    for (const DescribedDevice& b : cluster.devices) {
      if (a.name == b.name || has(a, b.name) || has(b, a.name)) continue;
      return Invalid(flags.cluster.empty() ? flags.device_profiles : flags.cluster, ": there is no description of the link between \"",
                     a.name, "\" and \"", b.name, "\"; ",
                     flags.cluster.empty() ? "add \"link\": {\"bandwidth\": \"100Mbit/s\", \"latency_ms\": 0.3}"
                                           : "add [[link]] with bandwidth = \"100Mbit/s\" and latency = \"0.3ms\"",
                     ", or give --bandwidth");
    }
  }
  return absl::OkStatus();
}

void AddNotes(const DescribedCluster& cluster, PlanInputs& inputs) {
  const std::string key = ModelKey(inputs.spec);
  std::vector<std::string> estimated, diskless, assumed;
  for (const DescribedDevice& device : cluster.devices) {
    if (device.profile.FindModel(key) == nullptr) estimated.push_back(device.name);
    if (device.profile.disk.empty()) diskless.push_back(device.name);
    if (!device.runtime) assumed.push_back(device.name);
  }
  const auto add = [&](const std::vector<std::string>& names, const std::string& what) {
    if (!names.empty()) inputs.notes.push_back(absl::StrCat(absl::StrJoin(names, ", "), ": ", what));
  };
  add(estimated, "times of blocks are estimated from rates; `lime profile` measures them");
  add(diskless, "no disk was measured, so nothing streams there; `lime profile` measures it");
  add(assumed, "memory of the runtime is assumed; `lime profile --cluster` measures it");
  for (const auto& machine : inputs.shared)
    add(machine, absl::StrCat("they are on one machine, so each is planned with 1/", machine.size(), " of the rate of its disk"));
  const int64_t positions = inputs.spec.config.max_positions;
  if (inputs.request.context > positions) {
    inputs.notes.push_back(absl::StrCat("the context planned for, ", inputs.request.context, " tokens, is longer than the model's ",
                                        positions, " positions: no run is that long; --tokens ", positions, " plans for the longest"));
  }
}

}  // namespace

void KvBounds::AddTo(const CommandFlags& command) {
  command.Add("--no-kv-lending", &no_lending, "Keep all KV on the devices that compute its layers; lend none to other devices");
  command.Add("--no-remote-attention", &no_remote_attention,
              "Let no device compute attention for another one; lent KV comes back for every use");
}

void PlanInputFlags::AddTo(const CommandFlags& command) {
  command.Add("--model,-m", &model, "Folder of a checkpoint; its headers are read, its weights are not");
  command.Add("--model-spec", &model_spec, "A config.json with a dtype, for a model whose weights are not here");
  cli::AddOptionalClusterFlag(command, cluster, "cluster.toml: the devices, each with a profile");
  cli::AddWithoutFlag(command, without);
  command.Add("--device-profiles", &device_profiles, "JSON that describes devices by profiles or by rates");
  command.Add("--bandwidth", &bandwidth, "Bandwidth of every link, such as 200Mbit/s, instead of the values in the files");
  command.Add("--tokens,--context", &tokens, "Context to plan for: prompt and answer of each sequence").Shown();
  command.Add("--sequences", &sequences, "Requests served at a time; LIME chooses their batches (without it: 1)");
  command.Add("--batch", &batch,
              "Sequences in one micro-batch, instead of LIME's choice; without --sequences it is also the number of requests");
  command.Add("--state-snapshots", &state_snapshots,
              "Snapshots of each sequence, for models with linear attention or windows: later requests with the same beginning go on from "
              "them, and with linear attention the requests themselves after a failure; lime serve uses 3, or 2 for windows, and "
              "lime run --cluster 3 for linear attention");
  command.Add("--kv-tokens", &kv_tokens, "Positions for which KV is reserved at first; as KV grows, more parts stream; 0: all of --tokens");
  command.Add("--no-kv-spill", &kv.no_spill, cli::kNoKvSpill);
  kv.AddTo(command);
  command.Add("--prompt-tokens", &prompt_tokens, "Length of a prompt, for the time to the first token; 0: not planned");
  command.Add("--piece", &part,
              "Largest part that streams, or none for whole blocks; without it 64MB, or none for strategies other than lime");
}

int64_t MostRows(const PlanRequest& request) {
  int64_t rows = request.sequences;
  for (const int64_t chunk : request.chunks) rows = std::max(rows, std::min(chunk, request.prompt_tokens));
  return rows;
}

absl::StatusOr<PlanInputs> ReadPlanInputs(const PlanInputFlags& flags) {
  LIME_RETURN_IF_ERROR(CheckFlags(flags));
  PlanInputs inputs;
  LIME_RETURN_IF_ERROR(ReadRequest(flags, inputs.request));
  LIME_ASSIGN_OR_RETURN(const std::optional<double> bandwidth, ReadBandwidth(flags.bandwidth));
  inputs.split_head = flags.split_head;
  inputs.kv = flags.kv;
  DescribedCluster cluster;
  if (!flags.cluster.empty()) {
    LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(flags.cluster, kMaxClusterBytes + 1)));
    LIME_ASSIGN_OR_RETURN(ClusterConfig config, OfUser(ParseClusterConfig(text, flags.cluster)));
    if (const absl::Status left = Exclude(flags.without, config); !left.ok()) return WrongCall(std::string(left.message()));
    std::string cluster_model;
    if (!config.model.empty()) cluster_model = (fs::path(flags.cluster).parent_path() / config.model).string();
    LIME_RETURN_IF_ERROR(ReadModel(flags, cluster_model, inputs));
    LIME_ASSIGN_OR_RETURN(cluster, OfUser(ReadCluster(flags.cluster, config)));
    inputs.shared = MachinesShared(config);
    for (const ClusterConfig::Device& device : config.devices) {
      if (device.weights.empty()) inputs.sparse.held[device.name] = {};  // pushes send no bundles
    }
  } else {
    LIME_RETURN_IF_ERROR(ReadModel(flags, "", inputs));
    LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(flags.device_profiles, kMaxJsonBytes)));
    LIME_ASSIGN_OR_RETURN(cluster, OfUser(ParseDeviceProfiles(text, flags.device_profiles)));
  }
  LIME_RETURN_IF_ERROR(OfUser(CheckLinks(flags, bandwidth, cluster, inputs.request)));
  for (const DescribedDevice& device : cluster.devices) inputs.devices.push_back(MakeDevice(device, inputs, cluster.devices.size()));
  AddNotes(cluster, inputs);
  return inputs;
}

}  // namespace lime
