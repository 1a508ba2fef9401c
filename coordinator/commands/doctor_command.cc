#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/devices/cluster_profile.h"
#include "coordinator/devices/cluster_push.h"
#include "coordinator/devices/device_checks.h"
#include "coordinator/reports/text_table.h"
#include "coordinator/rpc/device_client.h"
#include "coordinator/sessions/cluster_plan.h"
#include "daemon/inspect/inspect.h"
#include "daemon/machine/files.h"
#include "nlohmann/json.hpp"
#include "planner/base/names.h"
#include "planner/base/release.h"
#include "proto/certificate.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr char kHere[] = "this machine";

struct DoctorFlags {
  std::string cluster, model;
  bool insecure = false;
  bool json = false;
};

constexpr Names<Grade, 3> kGradeNames = {{{Grade::kOk, "ok"}, {Grade::kWarn, "warn"}, {Grade::kFail, "fail"}}};

// Checks memory, and the disk of the model or of the current folder.
void CheckThisMachine(const std::string& model, std::vector<Checked>& rows) {
  rows.push_back({kHere, {"release", Grade::kOk, absl::StrCat(std::string(Release()), ", protocol ", kProtocol), ""}});
  rows.push_back({kHere, InspectMemory(0, 0)});
  if (!model.empty()) {
    Finding weights = InspectWeights(model);
    weights.check = "model";
    if (weights.grade != Grade::kOk) weights.remedy = "name another folder with --model, or in [cluster]";
    rows.push_back({kHere, std::move(weights)});
  }
  rows.push_back({kHere, InspectDisk("disk", model.empty() ? "." : model, /*writes=*/false, DeviceCheckOptions().disk_seconds)});
}

// ---- Whether stores have room for the blocks that `lime push` would send

// The bytes that one device holds, lacks, and has free on its disk.
struct StoreRoom {
  std::string device;
  Bytes held = 0, missing = 0, free = 0;
};

// The bytes of a block. A tied head needs none if the embedding is there too.
Bytes BytesOf(const ModelSpec& spec, BlockId id, const std::vector<BlockId>& beside) {
  const BlockSpec& block = spec.block(id);
  const bool shared = spec.config.tie_embeddings && id.kind == BlockKind::kHead &&
                      std::ranges::any_of(beside, [](BlockId other) { return other.kind == BlockKind::kEmbedding; });
  Bytes bytes = block.bytes;
  for (const TensorSpec& tensor : block.tensors) bytes -= shared && tensor.role == TensorRole::kOutput ? tensor.info.bytes : 0;
  return bytes;
}

std::vector<StoreRoom> RoomOf(const KnownCluster& cluster, const std::vector<PushedDevice>& wanted) {
  std::vector<StoreRoom> rooms;
  for (const PushedDevice& device : wanted) {
    const auto home = cluster.holdings.homes.find(device.at.name);
    if (home == cluster.holdings.homes.end() || cluster.holdings.no_push.contains(device.at.name)) continue;
    const absl::StatusOr<StoreContent> content = DeviceClient(device.at.name, device.at.address, cluster.client.keys).ListStore();
    if (!content.ok()) continue;
    StoreRoom room = {.device = device.at.name, .free = content->free};
    for (const BlockId id : device.blocks) {
      const bool held = std::ranges::find(home->second, id) != home->second.end();
      (held ? room.held : room.missing) += BytesOf(cluster.weights.spec, id, device.blocks);
    }
    rooms.push_back(std::move(room));
  }
  return rooms;
}

std::vector<PushedDevice> AllBlocks(const KnownCluster& cluster) {
  std::vector<PushedDevice> wanted;
  for (const ClusterClient::Device& at : cluster.client.devices) {
    wanted.push_back({.at = at});
    for (const BlockSpec& block : cluster.weights.spec.blocks) wanted.back().blocks.push_back(block.id);
  }
  return wanted;
}

// Whether the disks of all devices together are too small for the model.
bool NoneFits(const KnownCluster& cluster, const std::vector<StoreRoom>& rooms) {
  Bytes room = 0;
  for (const StoreRoom& each : rooms) room += each.held + each.free;
  return rooms.size() == cluster.client.devices.size() && room < cluster.weights.spec.WeightBytes();
}

void AddRoom(const StoreRoom& room, const std::string& what, Grade lacking, std::vector<Checked>& rows) {
  const auto row =
      std::ranges::find_if(rows, [&](const Checked& each) { return each.of == room.device && each.finding.check == kStoreDiskCheck; });
  if (row == rows.end() || row->finding.grade == Grade::kFail || room.missing == 0) return;
  absl::StrAppend(&row->finding.what, "; ", what, " needs ", FormatBytes(room.missing), " more there");
  if (room.missing <= room.free) return;
  row->finding.grade = lacking;
  row->finding.remedy = "free some space there (`lime store --remove MODEL` removes a model), or name a `store` on a larger disk";
}

// Adds this to the row of each store's disk. Adds nothing if a device is silent, because other rows
// say why. For a cluster without a possible plan, only the size of the whole model is known.
void CheckStoreRoom(ClusterSession::Options options, std::vector<Checked>& rows) {
  if (!CompletePush(options).ok()) return;
  const absl::StatusOr<KnownCluster> cluster = KnowCluster(options);
  if (!cluster.ok() || cluster->holdings.homes.empty()) return;
  const absl::StatusOr<HeldPlan> plan = PlanForCluster(options, *cluster, /*may_push=*/true);
  const std::vector<StoreRoom> rooms = RoomOf(*cluster, plan.ok() ? DevicesOfPlan(cluster->client, plan->plan) : AllBlocks(*cluster));
  const Grade lacking = plan.ok() || NoneFits(*cluster, rooms) ? Grade::kFail : Grade::kWarn;
  for (const StoreRoom& room : rooms) AddRoom(room, plan.ok() ? "its part of the model" : "the whole model", lacking, rows);
}

// ---- The whole cluster

// Checks the file, its keys, then its devices.
void CheckCluster(const ClusterFile& file, const DoctorFlags& flags, const std::string& model, std::vector<Checked>& rows) {
  rows.push_back({kHere, {"cluster file", Grade::kOk, absl::StrCat(file.path, ": ", file.config.devices.size(), " devices"), ""}});
  if (file.keys.empty()) {
    rows.push_back({kHere, {"keys", Grade::kOk, "the cluster's file names none", ""}});
  } else {
    Finding keys = InspectExpiry("the keys of this machine", EndOf(file.keys), std::time(nullptr),
                                 "run `lime keys --renew --name coordinator --out FOLDER` on the machine that has ca.key");
    const absl::StatusOr<Certificate> own = ReadCertificate(file.keys.certificate);
    if (own.ok() && own->from > std::time(nullptr))
      keys = {"keys", Grade::kFail, absl::StrCat("the keys of this machine become valid on ", FormatClock(own->from)),
              "set the clock of this machine (`timedatectl set-ntp true`)"};
    rows.push_back({kHere, std::move(keys)});
  }
  const absl::StatusOr<DescribedCluster> stored = StoredProfiles(file.path);
  if (!stored.ok())
    rows.push_back({kHere, {"profiles", Grade::kFail, std::string(stored.status().message()), "run `lime profile --cluster` again"}});
  std::vector<Checked> devices = CheckDevices(file, stored.ok() ? *stored : DescribedCluster(), {});
  const bool all_answer = std::ranges::none_of(devices, [](const Checked& row) { return row.fault != Fault::kNone; });
  if (!model.empty() && all_answer) CheckStoreRoom({.cluster = file.path, .model = model, .insecure = flags.insecure}, devices);
  std::ranges::move(devices, std::back_inserter(rows));
}

json ChecksJson(const std::vector<Checked>& rows) {
  json checks = json::array();
  for (const Checked& row : rows) {
    checks.push_back({{"of", row.of},
                      {"check", row.finding.check},
                      {"result", kGradeNames.Of(row.finding.grade)},
                      {"what", row.finding.what},
                      {"remedy", row.finding.remedy}});
    if (row.fault != Fault::kNone) checks.back()["fault"] = NameOf(row.fault);
  }
  return checks;
}

void Print(const std::vector<Checked>& rows) {
  constexpr auto kLeft = TextTable::Align::kLeft;
  TextTable table({kLeft, kLeft, kLeft, kLeft});
  table.AddRow({"of", "check", "result", "found"});
  for (const Checked& row : rows) {
    const Finding& finding = row.finding;
    table.AddRow({row.of, finding.check, std::string(kGradeNames.Of(finding.grade)),
                  finding.remedy.empty() ? finding.what : absl::StrCat(finding.what, "; ", finding.remedy)});
  }
  std::cout << table.Text(OutputColumns(), 3) << std::flush;
}

// The given cluster file, else the default one. Empty if there is none: then only this machine is
// checked.
std::string ClusterToCheck(const std::string& given) {
  if (!given.empty()) return given;
  return FindClusterFile().ok() ? *ClusterFileOr("") : "";
}

absl::Status Doctor(const DoctorFlags& flags) {
  if (!flags.model.empty()) LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model));
  const std::string cluster = ClusterToCheck(flags.cluster);
  if (!cluster.empty()) {  // besides the rows for keys and devices
    LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(cluster, kMaxClusterBytes + 1)));
    LIME_RETURN_IF_ERROR(OfUser(ParseClusterConfig(text, cluster)).status());
  }
  std::vector<Checked> rows;
  absl::StatusOr<ClusterFile> file = absl::NotFoundError("");
  if (!cluster.empty()) file = ClusterFile::Open(cluster, flags.insecure);
  std::string model = flags.model;
  std::error_code ignored;
  if (model.empty() && file.ok() && !file->config.model.empty()) {
    if (const std::string beside = file->Beside(file->config.model); std::filesystem::is_directory(beside, ignored)) model = beside;
  }
  CheckThisMachine(model, rows);
  if (file.ok()) {
    CheckCluster(*file, flags, model, rows);
  } else if (!cluster.empty()) {
    rows.push_back(
        {kHere, {"cluster file", Grade::kFail, std::string(file.status().message()), "correct the file, and run this command again"}});
  }
  const auto count = [&](Grade grade) {
    return std::ranges::count_if(rows, [&](const Checked& row) { return row.finding.grade == grade; });
  };
  const auto failed = count(Grade::kFail), warned = count(Grade::kWarn);
  const json root = {{"cluster", cluster}, {"failed", failed}, {"warned", warned}, {"checks", ChecksJson(rows)}};
  if (!flags.json) Print(rows);
  absl::Status problem;
  if (failed > 0) problem = absl::UnavailableError(absl::StrCat(failed, " of ", rows.size(), " checks failed; the table says what to do"));
  return Answered(root, flags.json, problem);
}

}  // namespace

void AddDoctorCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<DoctorFlags>(
      "doctor", "Look at this machine and at every device of a cluster, and say what is wrong and what to do",
      "Example: lime doctor --cluster shelf.toml\n"
      "Checks reachability, keys and when they expire, clocks, releases, memory against budgets and control groups, disks (room, rate, "
      "file\n"
      "system, direct reads, io_uring), weights, and the links between devices. Exit code 0 if no check fails, 1 if one fails.",
      Doctor);
  command.Add("--cluster,-c", &flags.cluster,
              "cluster.toml; without it ./cluster.toml, then ~/.config/lime/cluster.toml; without those, this machine alone");
  command.Add("--model,-m", &flags.model, "Folder of a checkpoint on this machine to check, too");
  command.Add("--insecure", &flags.insecure, "Talk to other machines without keys");
  command.Add("--json", &flags.json, "Print one JSON object and nothing else on stdout");
}

}  // namespace lime::cli
