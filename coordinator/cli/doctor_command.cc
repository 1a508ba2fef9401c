#include "coordinator/cli/doctor_command.h"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "coordinator/cli/cluster_file.h"
#include "coordinator/cli/command.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/cli/device_checks.h"
#include "coordinator/cli/store_room.h"
#include "coordinator/cli/text_table.h"
#include "daemon/inspect/inspect.h"
#include "daemon/weights/files.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
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

const char* NameOfGrade(Grade grade) {
  switch (grade) {
    case Grade::kOk:
      return "ok";
    case Grade::kWarn:
      return "warn";
    case Grade::kFail:
      return "fail";
  }
  return "";
}

// Memory, and the disk of the model or of the current folder.
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

absl::StatusOr<DescribedCluster> KeptProfiles(const ClusterFile& file) {
  const std::string path = ProfilesPathOf(file.path);
  if (!FileExists(path)) return DescribedCluster();
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxJsonBytes));
  return ParseDeviceProfiles(text, path);
}

// The file, its keys, then its devices.
void CheckCluster(const ClusterFile& file, const DoctorFlags& flags, const std::string& model, std::vector<Checked>& rows) {
  rows.push_back({kHere, {"cluster file", Grade::kOk, absl::StrCat(file.path, ": ", file.config.devices.size(), " devices"), ""}});
  if (file.keys.empty()) {
    rows.push_back({kHere, {"keys", Grade::kOk, "the cluster's file names none", ""}});
  } else {
    Finding keys = InspectExpiry("the keys of this machine", EndOf(file.keys), std::time(nullptr),
                                 "`lime keys --renew --name coordinator --out FOLDER` where ca.key is makes new ones");
    const absl::StatusOr<Certificate> own = ReadCertificate(file.keys.certificate);
    if (own.ok() && own->from > std::time(nullptr))
      keys = {"keys", Grade::kFail, absl::StrCat("the keys of this machine are valid from ", FormatClock(own->from), " on"),
              "set the clock of this machine (`timedatectl set-ntp true`)"};
    rows.push_back({kHere, std::move(keys)});
  }
  const absl::StatusOr<DescribedCluster> kept = KeptProfiles(file);
  if (!kept.ok())
    rows.push_back({kHere, {"profiles", Grade::kFail, std::string(kept.status().message()), "run `lime profile --cluster` again"}});
  std::vector<Checked> devices = CheckDevices(file, kept.ok() ? *kept : DescribedCluster(), {});
  const bool all_answer = std::ranges::none_of(devices, [](const Checked& row) { return row.fault != Fault::kNone; });
  if (!model.empty() && all_answer) CheckStoreRoom({.cluster = file.path, .model = model, .insecure = flags.insecure}, devices);
  std::ranges::move(devices, std::back_inserter(rows));
}

json ToJson(const std::vector<Checked>& rows) {
  json checks = json::array();
  for (const Checked& row : rows) {
    checks.push_back({{"of", row.of},
                      {"check", row.finding.check},
                      {"result", NameOfGrade(row.finding.grade)},
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
    table.AddRow({row.of, finding.check, NameOfGrade(finding.grade),
                  finding.remedy.empty() ? finding.what : absl::StrCat(finding.what, "; ", finding.remedy)});
  }
  std::cout << table.Text(OutputColumns(), 3) << std::flush;
}

// The cluster's file that the call names, else the default one; empty where there is none, and this machine alone is looked at.
std::string ClusterToCheck(const std::string& given) {
  if (!given.empty()) return given;
  return FindClusterFile().ok() ? *ClusterFileOr("") : "";
}

absl::Status Doctor(const DoctorFlags& flags) {
  if (!flags.model.empty()) LIME_RETURN_IF_ERROR(CheckModelFolder(flags.model));
  const std::string cluster = ClusterToCheck(flags.cluster);
  if (!cluster.empty()) {  // beside keys and devices, which are rows of the table
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
    rows.push_back({kHere, {"cluster file", Grade::kFail, std::string(file.status().message()), "correct it, and call this again"}});
  }
  const auto count = [&](Grade grade) {
    return std::ranges::count_if(rows, [&](const Checked& row) { return row.finding.grade == grade; });
  };
  const auto failed = count(Grade::kFail), warned = count(Grade::kWarn);
  const json root = {{"cluster", cluster}, {"failed", failed}, {"warned", warned}, {"checks", ToJson(rows)}};
  const std::string answer = root.dump(-1, ' ', false, json::error_handler_t::replace);
  if (!flags.json) Print(rows);
  if (failed > 0) {
    return WithAnswer(absl::UnavailableError(absl::StrCat(failed, " of ", rows.size(), " checks failed; the table says what to do")),
                      answer);
  }
  if (flags.json) std::cout << answer << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddDoctorCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<DoctorFlags>();
  CLI::App* command =
      app.add_subcommand("doctor", "Look at this machine and at every device of a cluster, and say what is wrong and what to do");
  command->footer(
      "Example: lime doctor --cluster shelf.toml\n"
      "Looks at reachability, keys and when they expire, clocks, releases, memory against budgets and control groups, disks (room, rate, "
      "file\n"
      "system, direct reads, io_uring), weights, and the ways between devices. Exit code 0 where nothing fails, 1 where something does.");
  command->add_option("--cluster,-c", flags->cluster,
                      "cluster.toml; without it ./cluster.toml, then ~/.config/lime/cluster.toml; without those, this machine alone");
  command->add_option("--model,-m", flags->model, "Folder of a checkpoint on this machine to look at, too");
  command->add_flag("--insecure", flags->insecure, "Talk to other machines without keys");
  command->add_flag("--json", flags->json, "Print one JSON object and nothing else on stdout");
  command->callback([flags, &exit_code] { exit_code = Finish(Doctor(*flags)); });
}

}  // namespace lime::cli
