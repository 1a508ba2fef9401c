#include "daemon/limed/limed_flags.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/input/device_name.h"
#include "common/input/host_port.h"
#include "common/input/toml_file.h"
#include "daemon/engine/call_limits.h"
#include "daemon/machine/files.h"
#include "daemon/machine/system_memory.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/json_text.h"
#include "planner/plan/model/kv_window.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 5> kLogLevels = {"trace", "debug", "info", "warning", "error"};
constexpr std::array<const char*, 2> kNumerics = {"auto", "portable"};

// `said` opens the sentence, as LimedFlags::Said().
absl::Status CheckReadable(const std::string& said, const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return Invalid(said, " is not a folder; give one that holds config.json and safetensors");
  if (access(folder.c_str(), R_OK | X_OK) != 0) return Invalid(said, " may not be read; change its permissions");
  if (!FileExists(folder + "/config.json")) return Invalid(said, " holds no model; give a folder that holds config.json and safetensors");
  return absl::OkStatus();
}

// An error that does not name its flag: begins with the place in the file, or else with `opening`.
absl::Status InFile(const LimedFlags& flags, const char* flag, const absl::Status& error, const char* opening = "") {
  const std::string where = flags.from_file.contains(flag) ? flags.Said(flag, "") + ": " : opening;
  return absl::Status(error.code(), absl::StrCat(where, error.message()));
}

// Reads each field of the file into the flag of the same name, unless the call gives that flag.
class FileFields {
 public:
  FileFields(const TomlNode& root, std::string_view file, const CommandFlags& command)
      : fields_(root, file), command_(command), folder_(FolderOf(fs::path(file))) {}

  void Text(const char* key, std::string& flag) {
    const std::string value = fields_.String(key);
    if (Counts(key)) flag = value;
  }
  // Relative to the file's folder, wherever limed is started.
  void Path(const char* key, std::string& flag) {
    Text(key, flag);
    if (Counts(key) && !flag.empty()) flag = (folder_ / flag).string();
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

  // How an error begins, for each flag that the file gives.
  std::map<std::string, std::string> Openings(std::string_view file) const {
    std::map<std::string, std::string> openings;
    for (const auto& [key, value] : fields_.Written()) {
      if (Counts(key.c_str()))
        openings[key] = absl::StrCat(std::string(file), " line ", value.line, ": field \"", key, "\" = ", value.text);
    }
    return openings;
  }

 private:
  bool Counts(const char* key) const { return fields_.Has(key) && !command_.Given(absl::StrCat("--", key)); }

  // Empty, the working directory, if the file is a pipe.
  static fs::path FolderOf(const fs::path& file) {
    std::error_code ignored;
    const bool is_pipe = fs::exists(file, ignored) && !fs::is_regular_file(file, ignored);
    return is_pipe ? fs::path() : file.parent_path();
  }

  TomlFields fields_;
  const CommandFlags& command_;
  const fs::path folder_;
};

}  // namespace

absl::Status ReadLimedText(std::string_view text, std::string_view file, const CommandFlags& command, LimedFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const TomlNode root, ParseToml(text, file));
  FileFields fields(root, file, command);
  fields.Text("listen", flags.listen);
  fields.Name("name", flags.name);
  fields.Budget("memory", flags.memory);
  fields.OneOf("memory-mode", flags.memory_mode, kMemoryModeNames);
  fields.Path("model", flags.weights);
  fields.Path("store", flags.store);
  fields.Path("kv-dir", flags.kv_dir);
  fields.Path("tls", flags.tls);
  fields.Path("pace", flags.pace);
  fields.Text("metrics", flags.metrics);
  fields.OneOf("log", flags.log_level, kLogLevels);
  fields.OneOf("backend", flags.backend, kBackendNames);
  fields.OneOf("numerics", flags.numerics, kNumerics);
  fields.OneOf("loader", flags.loader, kLoaderNames);
  fields.Number("threads", flags.threads, kMostThreads);
  fields.Text("compute-cores", flags.compute_cores);
  fields.Name("background", flags.cluster);
  fields.Switch("insecure", flags.insecure);
  fields.Switch("no-link-probes", flags.no_link_probes);
  fields.Switch("follow-memory", flags.follow_memory);
  LIME_RETURN_IF_ERROR(fields.Finish());
  flags.from_file = fields.Openings(file);
  return absl::OkStatus();
}

absl::Status ReadLimedFile(const CommandFlags& command, LimedFlags& flags) {
  if (flags.config.empty()) return absl::OkStatus();
  const absl::StatusOr<std::string> text = ReadNamedText(flags.config, kMaxTomlBytes + 1);
  if (!text.ok()) return InFile(flags, "config", text.status(), "--config ");
  return ReadLimedText(*text, flags.config, command, flags);
}

void LimedFlags::AddTo(const CommandFlags& command) {
  command.Add("--listen", &listen, "HOST:PORT to listen on; other machines need an address of this machine that they can reach").Shown();
  command.Add("--name", &name, "Name of this device, as in cluster.toml");
  command.Add("--memory", &memory, "Memory that this process may use, such as 8GiB; limed refuses a plan that needs more");
  command.Add("--memory-mode", &memory_mode,
              "Without --memory, limed chooses it at the start and keeps memory free for KV of --model: max-tps (512 tokens), balanced "
              "(1,024) or max-context (the model's context)");
  command.Add("--model,-m", &weights, "Folder of the weights, if the coordinator names none");
  command.Add("--store", &store, "Folder for the weights that `lime push` sends; without it limed refuses a push");
  command.Add("--kv-dir", &kv_dir, "Folder on a fast disk for KV that does not fit in memory; without it the folder of the weights");
  command.Add("--tls", &tls, "Folder of the cluster's keys (`lime keys` makes them): ca.pem, NAME.pem, NAME.key");
  command.Add("--insecure", &insecure, "Let anyone who reaches the address use this device");
  command.Add("--threads", &threads, "Compute threads; 0: one for every core this process may use").Shown();
  command.Add("--compute-cores", &compute_cores,
              "Cores for the compute threads alone, such as 4-7; the other threads of this process use the other cores. Do not name "
              "cores on which other programs compute");
  command.Add("--backend", &backend, "Backend that computes: cpu, or torch (libtorch, for comparison, if its module is installed)").Shown();
  command.Add("--numerics", &numerics, "auto, or portable: the one order of reduction that every CPU implements").Shown();
  command
      .Add("--loader", &loader,
           "How weights reach memory: read (direct reads), mmap (zero copy), or auto (chosen by the plan and the page cache)")
      .Shown();
  command.Add("--pace", &pace, "For experiments: compute no faster than the device of this profile (JSON of `lime profile`)");
  command.Add("--no-link-probes", &no_link_probes, "Measure links by the plan's own traffic only; send no probes");
  command.Add("--follow-memory", &follow_memory,
              "Evict weights while other programs need the memory, and load them again afterwards; steps are slower in between");
  command.Add("--metrics", &metrics,
              "HOST:PORT on which GET /metrics answers with numbers for Prometheus, to anyone who reaches it; without it nothing does");
  command.Add("--log", &log_level, "trace, debug, info, warning or error").Shown();
  const Flag background_flag =
      command.Add("--background", &cluster,
                  "Run in the background as a device of the cluster of this name; the log and the process number are in "
                  "~/.local/state/lime/NAME");
  command.Add("--stop", &stop, "End the limed that --background started, and no other").Needs(background_flag);
  command.Add("--ready-fd", &ready_fd, "File descriptor to which limed writes its port once it listens");
  command.Add("--cluster-file", &cluster_file,
              "File given to `lime up` and `lime down`; --stop does not end a limed that another file started");
  command.Add("--stop-all", &stop_all, "End every limed that `lime up` started from --cluster-file on this machine");
  command.Add("--config", &config, "TOML file with these flags as fields, without the leading dashes; a flag overrides its field");
  // For `lime up` and `lime down`.
  command.ShowUnder("", {"--ready-fd", "--cluster-file", "--stop-all"});
}

std::string LimedFlags::Said(const std::string& flag, const std::string& value) const {
  const auto found = from_file.find(flag);
  return found != from_file.end() ? found->second : absl::StrCat("--", flag, " ", value);
}

absl::Status CheckName(const LimedFlags& flags) {
  if (flags.name.empty()) return Invalid("--name is missing; give the device's name in cluster.toml");
  const absl::Status name = CheckDeviceName(flags.name);
  return name.ok() ? name : Invalid(flags.from_file.contains("name") ? flags.Said("name", "") : "--name", ": ", name.message());
}

absl::StatusOr<LimedSettings> CheckFlags(const LimedFlags& flags) {
  LimedSettings settings;
  LIME_RETURN_IF_ERROR(CheckName(flags));
  const std::string threads = flags.Said("threads", absl::StrCat(flags.threads));
  LIME_RETURN_IF_ERROR(CheckThreads(threads.substr(0, threads.rfind(' ')), flags.threads));
  if (std::ranges::find(kLogLevels, flags.log_level) == kLogLevels.end())
    return Invalid("--log ", flags.log_level, " is unknown; use ", absl::StrJoin(kLogLevels, ", "));
  if (flags.ready_fd >= 0 && fcntl(flags.ready_fd, F_GETFD) < 0)
    return Invalid("--ready-fd ", flags.ready_fd, " is not an open descriptor");
  settings.threads = flags.threads;
  if (!flags.compute_cores.empty()) {
    const absl::StatusOr<Cores> cores = ParseCores(flags.compute_cores);
    if (!cores.ok()) return Invalid(flags.Said("compute-cores", flags.compute_cores), ": ", cores.status().message());
    settings.compute_cores = *cores;
    if (flags.threads == 0) settings.threads = static_cast<int>(cores->size());
  }
  if (std::ranges::find(kBackendNames, flags.backend) == kBackendNames.end())
    return Invalid("--backend ", flags.backend, " is unknown; use ", absl::StrJoin(kBackendNames, " or "));
  if (flags.numerics != "auto" && flags.numerics != "portable")
    return Invalid("--numerics ", flags.numerics, " is unknown; use auto or portable");
  const std::optional<LoaderKind> loader = LoaderNamed(flags.loader);
  if (!loader) return Invalid("--loader ", flags.loader, " is unknown; use ", absl::StrJoin(kLoaderNames, ", "));
  settings.loader = *loader;
  if (!flags.memory.empty()) {
    const absl::StatusOr<Bytes> memory = ParseBytes(flags.memory);
    if (!memory.ok()) return Invalid("--memory: ", memory.status().message());
    if (*memory < 1) return Invalid(flags.Said("memory", flags.memory), " is too small; give a size such as 8GiB, or leave it out");
    LIME_RETURN_IF_ERROR(CheckBudget(flags.Said("memory", flags.memory), *memory));
    settings.memory = *memory;
  }
  if (!flags.memory_mode.empty()) {
    const absl::StatusOr<MemoryPriority> mode = ParseMemoryPriority(flags.memory_mode);
    if (!mode.ok()) return Invalid("--memory-mode: ", mode.status().message());
    const std::string said = flags.Said("memory-mode", flags.memory_mode);
    if (!flags.memory.empty()) return Invalid(said, " is for memory that limed chooses; leave out --memory or --memory-mode");
    if (flags.weights.empty()) return Invalid(said, " keeps memory free for the KV of a model; give its folder with --model");
    settings.memory_mode = *mode;
  }
  if (!flags.weights.empty()) LIME_RETURN_IF_ERROR(CheckReadable(flags.Said("model", flags.weights), flags.weights));
  if (!flags.store.empty()) LIME_RETURN_IF_ERROR(CheckWritable(flags.Said("store", flags.store), flags.store));
  if (!flags.kv_dir.empty()) LIME_RETURN_IF_ERROR(CheckWritable(flags.Said("kv-dir", flags.kv_dir), flags.kv_dir));
  if (!flags.pace.empty()) {
    const absl::StatusOr<std::string> text = ReadNamedText(flags.pace, kMaxJsonBytes);
    if (!text.ok()) return InFile(flags, "pace", text.status(), "--pace ");
    absl::StatusOr<DeviceProfile> pace = ParseDeviceProfile(*text, flags.pace);
    if (!pace.ok()) return InFile(flags, "pace", pace.status());
    settings.pace = *std::move(pace);
  }
  if (!flags.tls.empty() && flags.insecure)
    return InFile(flags, flags.from_file.contains("insecure") ? "insecure" : "tls",
                  Invalid("--tls and --insecure exclude each other; leave one out"));
  const absl::StatusOr<HostPort> listen = ParseAddress(flags.listen);
  if (!listen.ok()) return InFile(flags, "listen", listen.status(), "--listen: ");
  settings.listen = AddressText(*listen);
  if (!flags.metrics.empty()) {
    const absl::StatusOr<HostPort> metrics = ParseAddress(flags.metrics);
    if (!metrics.ok()) return InFile(flags, "metrics", metrics.status(), "--metrics: ");
    settings.metrics = *metrics;
  }
  if (!flags.tls.empty()) {
    absl::StatusOr<ClusterKeys> keys = ClusterKeys::Read(flags.tls, flags.name);
    if (absl::IsNotFound(keys.status())) {
      return InFile(flags, "tls",
                    absl::NotFoundError(absl::StrCat(keys.status().message(), "; copy ca.pem, ", flags.name, ".pem and ", flags.name,
                                                     ".key there from the folder where `lime keys` made them")));
    }
    if (!keys.ok()) return InFile(flags, "tls", keys.status());
    settings.keys = *std::move(keys);
  } else if (!IsLoopback(*listen) && !flags.insecure) {
    return Invalid(flags.Said("listen", flags.listen),
                   " can be reached from other machines: give --tls FOLDER with the keys that `lime keys` makes, or --insecure to let "
                   "anyone in");
  }
  return settings;
}

absl::StatusOr<DerivedBudget> ChooseMemory(const std::string& model, MemoryPriority mode, Bytes runtime) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(model));
  LIME_ASSIGN_OR_RETURN(const ModelSpec spec, checkpoint.BuildModelSpec());
  return DeriveBudget({.available = AvailableMemory(),
                       .machine = MachineMemory(),
                       .process = runtime,
                       .kv_bytes = [&](int64_t tokens) { return spec.KvPages(tokens, kLeastWindowRows) * spec.KvPageBytes(); },
                       .context = spec.config.max_positions,
                       .priority = mode});
}

absl::Status MakeFolders(const LimedFlags& flags) {
  for (const std::string& folder : {flags.store, flags.kv_dir}) {
    if (!folder.empty()) LIME_RETURN_IF_ERROR(MakeFolder(folder));
  }
  return absl::OkStatus();
}

}  // namespace lime
