#include "daemon/limed/limed_flags.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cluster/cluster_config.h"
#include "daemon/weights/files.h"
#include "planner/base/json_text.h"

namespace lime {

void LimedFlags::AddTo(CLI::App& app) {
  app.add_option("--listen", listen, "HOST:PORT; other machines reach it only where HOST is not this one alone")->capture_default_str();
  app.add_option("--name", name, "Of this device, as in cluster.toml")->required();
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
  app.set_config("--config", "", "TOML file with the names of these flags");
}

absl::StatusOr<LimedSettings> CheckFlags(const LimedFlags& flags) {
  LimedSettings settings;
  if (!IsDeviceName(flags.name)) return absl::InvalidArgumentError(absl::StrCat("--name: a name is ", std::string(kDeviceNameRule)));
  if (flags.threads < 0 || flags.threads > 1024)
    return absl::InvalidArgumentError(absl::StrCat("--threads ", flags.threads, " is outside 0 to 1024"));
  settings.threads = flags.threads;
  if (!flags.compute_cores.empty()) {
    const absl::StatusOr<Cores> cores = ParseCores(flags.compute_cores);
    if (!cores.ok()) return absl::InvalidArgumentError(absl::StrCat("--compute-cores: ", cores.status().message()));
    settings.compute_cores = *cores;
    if (flags.threads == 0) settings.threads = static_cast<int>(cores->size());
  }
  if (flags.numerics != "auto" && flags.numerics != "portable")
    return absl::InvalidArgumentError(absl::StrCat("--numerics ", flags.numerics, " is unknown; use auto or portable"));
  if (!flags.memory.empty()) {
    const absl::StatusOr<Bytes> memory = ParseBytes(flags.memory);
    if (!memory.ok()) return absl::InvalidArgumentError(absl::StrCat("--memory: ", memory.status().message()));
    settings.memory = *memory;
  }
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
