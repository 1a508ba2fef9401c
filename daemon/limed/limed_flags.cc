#include "daemon/limed/limed_flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cluster/cluster_config.h"
#include "coordinator/cluster/toml_file.h"
#include "daemon/engine/call_limits.h"
#include "daemon/weights/files.h"
#include "planner/base/json_text.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 5> kLogLevels = {"trace", "debug", "info", "warning", "error"};
constexpr std::array<const char*, 2> kNumerics = {"auto", "portable"};

absl::Status CheckReadable(const char* flag, const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error))
    return Invalid(flag, " ", folder, " is not a folder; give one that holds config.json and safetensors");
  if (access(folder.c_str(), R_OK | X_OK) != 0) return Invalid(flag, " ", folder, " may not be read; change its permissions");
  return absl::OkStatus();
}

absl::Status CheckWritable(const char* flag, const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!fs::is_directory(folder, error)) return Invalid(flag, " ", folder, " is not a folder, and none can be made there");
  if (access(folder.c_str(), R_OK | W_OK | X_OK) != 0)
    return Invalid(flag, " ", folder, " may not be written (", std::strerror(errno), "); choose another folder, or change its permissions");
  return absl::OkStatus();
}

// The fields of the file, each into the flag of its name where the call does not give that.
class FileFields {
 public:
  FileFields(const TomlNode& root, std::string_view file, const CLI::App& app) : fields_(root, file), app_(app) {}

  void Text(const char* key, std::string& flag) {
    const std::string value = fields_.String(key);
    if (Counts(key)) flag = value;
  }
  void OneOf(const char* key, std::string& flag, std::span<const char* const> known) {
    const std::string value = fields_.String(key);
    if (fields_.Has(key) && std::ranges::find(known, value) == known.end())
      fields_.FailAt(key, absl::StrCat("= ", ShownToml(value), " is unknown; use ", absl::StrJoin(known, ", ")));
    if (Counts(key)) flag = value;
  }
  void Name(const char* key, std::string& flag) {
    const std::string value = fields_.String(key);
    if (fields_.Has(key) && !IsDeviceName(value))
      fields_.FailAt(key, absl::StrCat("= \"", ShownToml(value), "\" is not ", std::string(kDeviceNameRule)));
    if (Counts(key)) flag = value;
  }
  void Budget(const char* key, std::string& flag) {
    const Bytes bytes = fields_.Budget(key);
    if (Counts(key)) flag = absl::StrCat(bytes);
  }
  void Number(const char* key, int& flag, int high) {
    const int64_t value = fields_.Int(key, 0, high);
    if (Counts(key)) flag = static_cast<int>(value);
  }
  void Switch(const char* key, bool& flag) {
    const bool value = fields_.Bool(key);
    if (Counts(key)) flag = value;
  }
  absl::Status Finish() { return fields_.Finish(); }

 private:
  bool Counts(const char* key) const { return fields_.Has(key) && app_.count(absl::StrCat("--", key)) == 0; }

  TomlFields fields_;
  const CLI::App& app_;
};

}  // namespace

absl::Status ReadLimedText(std::string_view text, std::string_view file, const CLI::App& app, LimedFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const TomlNode root, ParseToml(text, file));
  FileFields fields(root, file, app);
  fields.Text("listen", flags.listen);
  fields.Name("name", flags.name);
  fields.Budget("memory", flags.memory);
  fields.Text("model", flags.model);
  fields.Text("store", flags.store);
  fields.Text("kv-dir", flags.kv_dir);
  fields.Text("tls", flags.tls);
  fields.Text("pace", flags.pace);
  fields.OneOf("log", flags.log_level, kLogLevels);
  fields.OneOf("backend", flags.backend, kBackendNames);
  fields.OneOf("numerics", flags.numerics, kNumerics);
  fields.Number("threads", flags.threads, kMostThreads);
  fields.Text("compute-cores", flags.compute_cores);
  fields.Name("background", flags.background);
  fields.Switch("insecure", flags.insecure);
  fields.Switch("no-link-probes", flags.no_link_probes);
  return fields.Finish();
}

absl::Status ReadLimedFile(const CLI::App& app, LimedFlags& flags) {
  if (flags.config.empty()) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.config, kMaxTomlBytes + 1));
  return ReadLimedText(text, flags.config, app, flags);
}

void LimedFlags::AddTo(CLI::App& app) {
  app.add_option("--listen", listen, "HOST:PORT; other machines reach it only where HOST is not this one alone")->capture_default_str();
  app.add_option("--name", name, "Of this device, as in cluster.toml");
  app.add_option("--memory", memory, "What this process may use, such as 8GiB; a plan that takes more is refused");
  app.add_option("--model,-m", model, "Folder of the weights, where the coordinator names none");
  app.add_option("--store", store, "Folder for the weights that `lime push` sends; without it none are taken");
  app.add_option("--kv-dir", kv_dir, "Folder on a fast disk for KV that memory has no room for; else that of the weights");
  app.add_option("--tls", tls, "Folder of the cluster's keys (`lime keys` makes them): ca.pem, NAME.pem, NAME.key");
  app.add_flag("--insecure", insecure, "Let anyone who reaches the address use this device");
  app.add_option("--threads", threads, "Compute threads; 0: one for every core this process may use")->capture_default_str();
  app.add_option("--compute-cores", compute_cores,
                 "Cores that compute, such as 4-7, and nothing else of this process: what brings work then never takes their time. Not for "
                 "cores that others compute on, too");
  app.add_option("--backend", backend, "What computes: cpu, or torch: libtorch, to compare with, where its module is installed")
      ->capture_default_str();
  app.add_option("--numerics", numerics, "auto, or portable: the one order of reduction that every CPU implements")->capture_default_str();
  app.add_option("--pace", pace, "For experiments: compute no faster than the device of this profile (JSON of `lime profile`)");
  app.add_flag("--no-link-probes", no_link_probes, "Know of links only what the traffic itself tells: nothing is sent to measure them");
  app.add_option("--log", log_level, "trace, debug, info, warning or error")->capture_default_str();
  CLI::Option* const cluster =
      app.add_option("--background", background,
                     "Run in the background as a device of the cluster of this name; log and process number are kept in "
                     "~/.local/state/lime/NAME");
  app.add_flag("--stop", stop, "End the one that --background started, and no other")->needs(cluster);
  app.add_option("--ready-fd", ready_fd, "Descriptor that the port is written to, once it listens")->group("");
  app.add_option("--config", config, "TOML file with the names of these flags, without dashes in front; a flag wins over it");
}

absl::StatusOr<LimedSettings> CheckFlags(const LimedFlags& flags) {
  LimedSettings settings;
  if (flags.name.empty()) return Invalid("--name is missing; give the device's name in cluster.toml");
  if (!IsDeviceName(flags.name)) return Invalid("--name: a name is ", std::string(kDeviceNameRule));
  LIME_RETURN_IF_ERROR(CheckThreads("--threads", flags.threads));
  if (std::ranges::find(kLogLevels, flags.log_level) == kLogLevels.end())
    return Invalid("--log ", flags.log_level, " is unknown; use ", absl::StrJoin(kLogLevels, ", "));
  if (flags.ready_fd >= 0 && fcntl(flags.ready_fd, F_GETFD) < 0) return Invalid("--ready-fd ", flags.ready_fd, " is no open descriptor");
  settings.threads = flags.threads;
  if (!flags.compute_cores.empty()) {
    const absl::StatusOr<Cores> cores = ParseCores(flags.compute_cores);
    if (!cores.ok()) return absl::InvalidArgumentError(absl::StrCat("--compute-cores: ", cores.status().message()));
    settings.compute_cores = *cores;
    if (flags.threads == 0) settings.threads = static_cast<int>(cores->size());
  }
  if (std::ranges::find(kBackendNames, flags.backend) == kBackendNames.end())
    return Invalid("--backend ", flags.backend, " is unknown; use ", absl::StrJoin(kBackendNames, " or "));
  if (flags.numerics != "auto" && flags.numerics != "portable")
    return absl::InvalidArgumentError(absl::StrCat("--numerics ", flags.numerics, " is unknown; use auto or portable"));
  if (!flags.memory.empty()) {
    const absl::StatusOr<Bytes> memory = ParseBytes(flags.memory);
    if (!memory.ok()) return absl::InvalidArgumentError(absl::StrCat("--memory: ", memory.status().message()));
    LIME_RETURN_IF_ERROR(CheckBudget(absl::StrCat("--memory ", flags.memory), *memory));
    settings.memory = *memory;
  }
  if (!flags.model.empty()) LIME_RETURN_IF_ERROR(CheckReadable("--model", flags.model));
  if (!flags.store.empty()) LIME_RETURN_IF_ERROR(CheckWritable("--store", flags.store));
  if (!flags.kv_dir.empty()) LIME_RETURN_IF_ERROR(CheckWritable("--kv-dir", flags.kv_dir));
  if (!flags.pace.empty()) {
    LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(flags.pace, kMaxJsonBytes));
    LIME_ASSIGN_OR_RETURN(settings.pace, ParseDeviceProfile(text, flags.pace));
  }
  if (!flags.tls.empty() && flags.insecure) return absl::InvalidArgumentError("--tls and --insecure exclude each other; leave one out");
  const absl::StatusOr<bool> loopback = IsLoopback(flags.listen);
  if (!loopback.ok()) return absl::InvalidArgumentError(absl::StrCat("--listen: ", loopback.status().message()));
  if (!flags.tls.empty()) {
    LIME_ASSIGN_OR_RETURN(settings.keys, ClusterKeys::Read(flags.tls, flags.name));
  } else if (!*loopback && !flags.insecure) {
    return absl::InvalidArgumentError(
        absl::StrCat("--listen ", flags.listen,
                     " can be reached from other machines: give --tls FOLDER with the keys that `lime keys` makes, or --insecure to let "
                     "anyone in"));
  }
  return settings;
}

}  // namespace lime
