#include <algorithm>
#include <ctime>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/input/device_name.h"
#include "coordinator/cluster/cluster_config.h"
#include "coordinator/cluster/key_maker.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/cluster_file.h"
#include "daemon/machine/files.h"
#include "daemon/stores/output_file.h"
#include "nlohmann/json.hpp"
#include "planner/base/json_text.h"
#include "planner/base/status.h"
#include "proto/certificate.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr Bytes kMaxPem = kMiB;

struct KeysFlags {
  std::string out = "keys";
  std::string cluster;
  std::vector<std::string> names;
  bool renew = false;
  bool json = false;
};

// The keys of one name: made now, or left unchanged.
struct KeyOutcome {
  std::string name;
  bool made = false;
  std::time_t until = 0;
};

std::string PathIn(const std::string& folder, const std::string& name, const char* ending) {
  return absl::StrCat(folder, "/", name, ending);
}

// Adds key and certificate to `files`, which have no names yet. The private key comes first, so
// that an existing certificate always has its key.
absl::Status StageKeys(const std::string& folder, const std::string& name, const MadeKeys& keys, std::vector<NewFile>& files) {
  for (const auto& [ending, text] : {std::pair(".key", &keys.key), std::pair(".pem", &keys.certificate)}) {
    // Existing files were checked before.
    LIME_ASSIGN_OR_RETURN(NewFile file, OfUser(PrepareOutput(PathIn(folder, name, ending), *text, {.overwrite = true, .secret = true})));
    files.push_back(std::move(file));
  }
  return absl::OkStatus();
}

// Without an authority, the folder may contain only files of the names to come. FindKeys checks
// those.
absl::Status CheckNewFolder(const std::string& folder, const std::vector<std::string>& names) {
  const auto to_come = [&names](const std::string& file) {
    return std::ranges::any_of(names, [&](const std::string& name) { return file == name + ".pem" || file == name + ".key"; });
  };
  return OfUser(CheckOutputFolder(folder, {.what = "keys of a cluster", .is_ours = to_come, .names = {}}));
}

// The folder's authority, made now if the folder has none.
absl::StatusOr<MadeKeys> AuthorityOf(const std::string& folder, const std::vector<std::string>& names, std::vector<NewFile>& files) {
  const std::string certificate = PathIn(folder, "ca", ".pem"), key = PathIn(folder, "ca", ".key");
  if (!FileExists(certificate) && !FileExists(key)) {
    LIME_RETURN_IF_ERROR(CheckNewFolder(folder, names));
    LIME_ASSIGN_OR_RETURN(const MadeKeys made, MakeAuthority(ValidityOfNewKeys(std::time(nullptr))));
    LIME_RETURN_IF_ERROR(StageKeys(folder, "ca", made, files));
    return made;
  }
  for (const std::string& path : {certificate, key}) {
    if (!FileExists(path))
      return WrongCall(absl::StrCat(path, " is not there: keys can be added only in the folder that has ca.pem and ca.key"));
  }
  MadeKeys there;
  LIME_ASSIGN_OR_RETURN(there.certificate, OfUser(ReadTextFile(certificate, kMaxPem)));
  LIME_ASSIGN_OR_RETURN(there.key, OfUser(ReadTextFile(key, kMaxPem)));
  return there;
}

absl::StatusOr<std::vector<std::string>> KeyNames(const KeysFlags& flags) {
  std::vector<std::string> names = flags.names;
  if (!flags.cluster.empty() && !(flags.renew && !names.empty())) {
    LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(flags.cluster, kMaxClusterBytes + 1)));
    LIME_ASSIGN_OR_RETURN(const ClusterConfig config, OfUser(ParseClusterConfig(text, flags.cluster)));
    for (const ClusterConfig::Device& device : config.devices) names.push_back(device.name);
  }
  if (names.empty()) return WrongCall("keys: no devices; give --cluster C.toml, or --name for each");
  for (const std::string& name : names) {
    const absl::Status named = name == kCoordinatorName ? absl::OkStatus() : CheckDeviceName(name);
    if (!named.ok()) return WrongCall(absl::StrCat("--name: ", named.message()));
  }
  if (!flags.renew || flags.names.empty()) names.push_back(kCoordinatorName);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// The existing certificate, if any. WrongCall if one of the files was not made by this authority.
absl::StatusOr<std::optional<Certificate>> FindKeys(const std::string& folder, const MadeKeys& authority, const std::string& name) {
  const std::string certificate = PathIn(folder, name, ".pem"), key = PathIn(folder, name, ".key");
  if (!FileExists(certificate)) {
    if (!FileExists(key)) return std::nullopt;
    return WrongCall(
        absl::StrCat(key, " is there without ", certificate, ": LIME makes them together; move it away, then run this command again"));
  }
  ClusterKeys there{.authority = authority.certificate, .certificate = "", .key = ""};
  LIME_ASSIGN_OR_RETURN(there.certificate, OfUser(ReadTextFile(certificate, kMaxPem)));
  const absl::StatusOr<Certificate> read = ReadCertificate(there.certificate);
  const Trust trust = Judge(there.authority, there.certificate, std::time(nullptr));
  if (!read.ok() || trust == Trust::kForeign || trust == Trust::kUnusable)
    return WrongCall(
        absl::StrCat(certificate, " was not made by the authority of ", folder, "; move it away, then run this command again"));
  if (!FileExists(key)) return *read;
  LIME_ASSIGN_OR_RETURN(there.key, OfUser(ReadTextFile(key, kMaxPem)));
  if (CheckKeys(there, folder, name).ok()) return *read;
  return WrongCall(absl::StrCat(certificate, " and ", key, " are not the keys of ", name, "; move them away, then run this command again"));
}

// Existing keys stay, unless --renew. Only keys of this folder's authority are ever replaced.
absl::StatusOr<KeyOutcome> MakeOne(const KeysFlags& flags, const MadeKeys& authority, const std::string& name,
                                   std::vector<NewFile>& files) {
  LIME_ASSIGN_OR_RETURN(const std::optional<Certificate> there, FindKeys(flags.out, authority, name));
  if (there && !flags.renew) return KeyOutcome{.name = name, .until = there->until};
  const Validity validity = ValidityOfNewKeys(std::time(nullptr));
  const absl::StatusOr<MadeKeys> made = MakeDeviceKeys(authority, name, validity);
  if (!made.ok()) return OfUser(absl::Status(made.status().code(), absl::StrCat(flags.out, ": ", made.status().message())));
  LIME_RETURN_IF_ERROR(StageKeys(flags.out, name, *made, files));
  return KeyOutcome{.name = name, .made = true, .until = validity.until};
}

// "nx, orin and coordinator".
std::string Listed(const std::vector<std::string>& names) {
  if (names.size() < 2) return absl::StrJoin(names, "");
  return absl::StrCat(absl::StrJoin(names.begin(), names.end() - 1, ", "), " and ", names.back());
}

void Print(const KeysFlags& flags, const std::vector<KeyOutcome>& outcomes) {
  std::vector<std::string> made, sentences;
  for (const KeyOutcome& outcome : outcomes) {
    if (outcome.made) made.push_back(outcome.name);
  }
  if (!made.empty()) sentences.push_back(absl::StrCat("keys for ", Listed(made), flags.renew ? " renewed" : " made", " in ", flags.out));
  for (const KeyOutcome& outcome : outcomes) {
    if (outcome.made) continue;
    const std::time_t remaining = outcome.until - std::time(nullptr);
    sentences.push_back(absl::StrCat(
        outcome.name, " has keys already, ", remaining > 0 ? "valid until " : "EXPIRED on ", FormatClock(outcome.until),
        remaining > kExpiryNotice ? ""
                                  : absl::StrCat(" (`lime keys --renew --name ", outcome.name, " --out ", flags.out, "` makes new ones)")));
  }
  std::cout << absl::StrJoin(sentences, "; ") << ".\n";
  if (made.empty()) return;
  std::cout << "Copy ca.pem, NAME.pem and NAME.key to each device, for `limed --tls`; on this machine, write tls = \"" << flags.out
            << "\" into [cluster]. Keep ca.key secret: everyone who has it can make keys." << std::endl;
}

absl::Status RunKeys(const KeysFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const std::vector<std::string> names, KeyNames(flags));
  if (flags.out.empty()) return WrongCall("--out is empty; name a folder");
  const GracefulStop graceful;  // writes all keys or none
  LIME_ASSIGN_OR_RETURN(OutputFolder folder, OfUser(OutputFolder::Make(flags.out, "lime keys")));
  std::vector<NewFile> files;
  LIME_ASSIGN_OR_RETURN(const MadeKeys authority, AuthorityOf(flags.out, names, files));
  std::vector<KeyOutcome> outcomes;
  for (const std::string& name : names) {
    LIME_ASSIGN_OR_RETURN(KeyOutcome outcome, MakeOne(flags, authority, name, files));
    outcomes.push_back(std::move(outcome));
  }
  for (NewFile& file : files) LIME_RETURN_IF_ERROR(file.Commit());
  folder.Commit();
  if (!flags.json) return Print(flags, outcomes), absl::OkStatus();
  json root = {{"folder", flags.out}, {"keys", json::array()}};
  for (const KeyOutcome& outcome : outcomes)
    root["keys"].push_back({{"name", outcome.name}, {"made", outcome.made}, {"valid_until", FormatClock(outcome.until)}});
  return Answered(root, flags.json);
}

}  // namespace

void AddKeysCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<KeysFlags>(
      "keys", "Make the keys with which the devices of a cluster recognise each other",
      "Example: lime keys --cluster shelf.toml --out keys\n"
      "Called again, it adds keys for devices that have none. `lime keys --renew --name orin` makes new keys for orin and changes no\n"
      "others: the old keys stay valid until they expire. Keys are valid for ten years, from a day before they were made.",
      RunKeys);
  command.Add("--cluster,-c", &flags.cluster, "cluster.toml: keys for each of its devices");
  command.Add("--name,--device", &flags.names, "A device; may be given several times").Repeats();
  command.Add("--out,-o", &flags.out, "Folder for the keys; files that are there already stay").Shown();
  command.Add("--renew", &flags.renew, "Make new keys for --name (without it, for all devices and for this machine)");
  command.Add("--json", &flags.json, "Print one JSON object and nothing else on stdout");
}

}  // namespace lime::cli
