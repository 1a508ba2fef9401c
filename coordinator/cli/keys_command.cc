#include "coordinator/cli/keys_command.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/device_name.h"
#include "coordinator/cli/cluster_file.h"
#include "coordinator/cli/command.h"
#include "coordinator/cluster/cluster_config.h"
#include "coordinator/cluster/key_maker.h"
#include "daemon/weights/files.h"
#include "nlohmann/json.hpp"
#include "planner/base/status.h"
#include "proto/certificate.h"

namespace lime::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr Bytes kMaxPem = kMiB;

struct KeysFlags {
  std::string out = "keys";
  std::string cluster;
  std::vector<std::string> names;
  bool renew = false;
  bool json = false;
};

// Of one name: made now, or left as it is.
struct KeyOutcome {
  std::string name;
  bool made = false;
  std::time_t until = 0;
};

std::string PathIn(const std::string& folder, const std::string& name, const char* ending) {
  return absl::StrCat(folder, "/", name, ending);
}

// Whole or not at all, and from the first byte on read by its owner alone.
absl::Status WriteSecretFile(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".partial");
  (void)::unlink(temporary.c_str());
  const FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(errno, temporary, "create");
  absl::Status status = WriteExactly(file, temporary, 0, std::as_bytes(std::span(text)));
  if (status.ok() && ::fsync(file.get()) != 0) status = ErrnoStatus(errno, temporary, "sync");
  if (status.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) status = ErrnoStatus(errno, path, "write");
  if (!status.ok()) (void)::unlink(temporary.c_str());
  LIME_RETURN_IF_ERROR(status);
  return SyncDirectoryOf(path);
}

// The private key first: a certificate that is there has its key.
absl::Status WriteKeys(const std::string& folder, const std::string& name, const MadeKeys& keys) {
  LIME_RETURN_IF_ERROR(WriteSecretFile(PathIn(folder, name, ".key"), keys.key));
  return WriteSecretFile(PathIn(folder, name, ".pem"), keys.certificate);
}

// The folder's own, made now where nothing is there.
absl::StatusOr<MadeKeys> AuthorityOf(const std::string& folder) {
  const std::string certificate = PathIn(folder, "ca", ".pem"), key = PathIn(folder, "ca", ".key");
  if (!FileExists(certificate) && !FileExists(key)) {
    LIME_ASSIGN_OR_RETURN(const MadeKeys made, MakeAuthority(ValidityOfNewKeys(std::time(nullptr))));
    LIME_RETURN_IF_ERROR(WriteKeys(folder, "ca", made));
    return made;
  }
  for (const std::string& path : {certificate, key}) {
    if (!FileExists(path))
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is not there: keys are added where the others were made, in the folder that has ca.pem and ca.key"));
  }
  MadeKeys there;
  LIME_ASSIGN_OR_RETURN(there.certificate, ReadTextFile(certificate, kMaxPem));
  LIME_ASSIGN_OR_RETURN(there.key, ReadTextFile(key, kMaxPem));
  return there;
}

absl::StatusOr<std::vector<std::string>> NamesOf(const KeysFlags& flags) {
  std::vector<std::string> names = flags.names;
  if (!flags.cluster.empty() && !(flags.renew && !names.empty())) {
    LIME_ASSIGN_OR_RETURN(const std::string text, OfUser(ReadTextFile(flags.cluster, kMaxClusterBytes + 1)));
    LIME_ASSIGN_OR_RETURN(const ClusterConfig config, OfUser(ParseClusterConfig(text, flags.cluster)));
    for (const ClusterConfig::Device& device : config.devices) names.push_back(device.name);
  }
  if (names.empty()) return WrongCall("keys: no devices; give --cluster C.toml, or --name for each");
  for (const std::string& name : names) {
    if (!IsDeviceName(name) || name == "ca" || name.front() == '-' || name.front() == '.')
      return WrongCall(absl::StrCat("--name ", name.substr(0, 80), ": a name is ", std::string(kDeviceNameRule), ", and not \"ca\""));
  }
  if (!flags.renew || flags.names.empty()) names.push_back(kCoordinatorName);
  std::ranges::sort(names);
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

// What is there stays, unless it is to be made anew; only what this folder's authority has made is ever replaced.
absl::StatusOr<KeyOutcome> MakeOne(const KeysFlags& flags, const MadeKeys& authority, const std::string& name) {
  const std::string certificate = PathIn(flags.out, name, ".pem"), key = PathIn(flags.out, name, ".key");
  if (FileExists(certificate)) {
    LIME_ASSIGN_OR_RETURN(const std::string pem, ReadTextFile(certificate, kMaxPem));
    const Trust trust = Judge(authority.certificate, pem, std::time(nullptr));
    const absl::StatusOr<Certificate> there = ReadCertificate(pem);
    if (!there.ok() || trust == Trust::kForeign || trust == Trust::kUnusable)
      return absl::FailedPreconditionError(
          absl::StrCat(certificate, " was not made by the authority of ", flags.out, "/ca.pem; move it away, then call this again"));
    if (!flags.renew) return KeyOutcome{.name = name, .until = there->until};
  } else if (FileExists(key) && !flags.renew) {
    return absl::FailedPreconditionError(absl::StrCat(key, " is there without ", certificate,
                                                      "; make both anew with `lime keys --renew --name ", name, " --out ", flags.out, "`"));
  }
  const Validity validity = ValidityOfNewKeys(std::time(nullptr));
  const absl::StatusOr<MadeKeys> made = MakeDeviceKeys(authority, name, validity);
  if (!made.ok()) return absl::Status(made.status().code(), absl::StrCat(flags.out, ": ", made.status().message()));
  LIME_RETURN_IF_ERROR(WriteKeys(flags.out, name, *made));
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
  if (!made.empty()) sentences.push_back(absl::StrCat("keys for ", Listed(made), flags.renew ? " made anew" : " made", " in ", flags.out));
  for (const KeyOutcome& outcome : outcomes) {
    if (outcome.made) continue;
    const std::time_t left = outcome.until - std::time(nullptr);
    sentences.push_back(absl::StrCat(
        outcome.name, " has keys already, ", left > 0 ? "valid until " : "EXPIRED on ", FormatClock(outcome.until),
        left > kExpiryNotice ? "" : absl::StrCat(" (`lime keys --renew --name ", outcome.name, " --out ", flags.out, "` makes new ones)")));
  }
  std::cout << absl::StrJoin(sentences, "; ") << ".\n";
  if (made.empty()) return;
  std::cout << "Copy ca.pem, NAME.pem and NAME.key to each device, for `limed --tls`; here, write tls = \"" << flags.out
            << "\" into [cluster]. Keep ca.key to yourself: who has it can make keys." << std::endl;
}

absl::Status Run(const KeysFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesOf(flags));
  if (flags.out.empty()) return WrongCall("--out is empty; name a folder");
  std::error_code error;
  fs::create_directories(flags.out, error);
  if (error) return WrongCall(absl::StrCat("--out ", flags.out, ": ", error.message()));
  LIME_ASSIGN_OR_RETURN(const MadeKeys authority, AuthorityOf(flags.out));
  std::vector<KeyOutcome> outcomes;
  for (const std::string& name : names) {
    LIME_ASSIGN_OR_RETURN(KeyOutcome outcome, MakeOne(flags, authority, name));
    outcomes.push_back(std::move(outcome));
  }
  if (!flags.json) return Print(flags, outcomes), absl::OkStatus();
  json root = {{"folder", flags.out}, {"keys", json::array()}};
  for (const KeyOutcome& outcome : outcomes)
    root["keys"].push_back({{"name", outcome.name}, {"made", outcome.made}, {"valid_until", FormatClock(outcome.until)}});
  std::cout << root.dump(-1, ' ', false, json::error_handler_t::replace) << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddKeysCommand(CLI::App& app, int& exit_code) {
  auto flags = std::make_shared<KeysFlags>();
  CLI::App* command = app.add_subcommand("keys", "Make the keys by which the devices of a cluster know each other");
  command->footer(
      "Example: lime keys --cluster shelf.toml --out keys\n"
      "Called again, it adds keys for devices that have none. `lime keys --renew --name orin` makes those of orin anew and touches no\n"
      "others: the old ones stay good until they expire. Keys are valid for ten years, from a day before they were made.");
  command->add_option("--cluster,-c", flags->cluster, "cluster.toml: keys for each of its devices");
  command->add_option("--name,--device", flags->names, "A device; may be given several times")
      ->take_all()
      ->expected(1)
      ->allow_extra_args(false);
  command->add_option("--out,-o", flags->out, "Folder; what is there already stays")->capture_default_str();
  command->add_flag("--renew", flags->renew, "Make the keys of --name (without it, of all devices and of this machine) anew");
  command->add_flag("--json", flags->json, "Print one JSON object and nothing else on stdout");
  command->callback([flags, &exit_code] { exit_code = Finish(Run(*flags)); });
}

}  // namespace lime::cli
