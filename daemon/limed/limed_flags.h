// How limed is told what to do: flags, and a file of the same names in TOML. A flag wins.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/command_line.h"
#include "daemon/engine/cores.h"
#include "daemon/weights/loader_choice.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/device_profile.h"
#include "proto/certificate.h"

namespace lime {

struct LimedFlags {
  std::string listen = "127.0.0.1:7001";
  std::string name;
  std::string memory;  // "8GiB"; empty: whatever the plan gives it
  std::string model;   // folder, where an installation names none
  std::string store;   // folder for weights that are pushed; empty: none are taken
  std::string kv_dir;  // folder for KV that memory has no room for; empty: that of the weights
  std::string tls;     // folder of the cluster's keys
  std::string pace;    // file of a profile
  std::string log_level = "info";
  std::string backend = kCpuBackend;
  std::string numerics = "auto";
  std::string loader = kDaemonLoader;
  int threads = 0;
  std::string compute_cores;  // "4-7"; empty: any
  std::string background;     // name of a cluster: run as its device in the background
  bool insecure = false;
  bool no_link_probes = false;
  bool follow_memory = false;
  bool stop = false;                             // end the one that runs there
  bool stop_all = false;                         // end all that were started from `cluster_file`
  int ready_fd = -1;                             // that the port is written to
  std::string config;                            // file of ReadLimedFile
  std::string cluster_file;                      // that `lime up` starts it from; empty: started by hand
  std::map<std::string, std::string> from_file;  // of a flag that the file gives: `FILE line 3: field "memory" = "8GiB"`

  void AddTo(const CommandFlags& command);
  // How an error about a flag begins: "--memory 8GiB", or where the file says it.
  std::string Said(const std::string& flag, const std::string& value) const;
};

// Takes from the TOML file `flags.config`, where there is one, what the call itself does not say:
// `command` is parsed. InvalidArgument for what is wrong in it, with file, line and field.
absl::Status ReadLimedFile(const CommandFlags& command, LimedFlags& flags);
// The same from the file's text.
absl::Status ReadLimedText(std::string_view text, std::string_view file, const CommandFlags& command, LimedFlags& flags);

struct LimedSettings {
  std::string listen;  // in the one text for its place
  Bytes memory = 0;
  std::optional<DeviceProfile> pace;
  LoaderKind loader = LoaderKind::kRead;
  Cores compute_cores;  // ascending; empty: any
  int threads = 0;      // that compute; 0: one for every core this process may use
  ClusterKeys keys;     // empty: connections are not encrypted
};

// Refuses a name that no device may have.
absl::Status CheckName(const LimedFlags& flags);

// Names the first thing wrong, folders that are not there or may not be written included. An address that others can reach needs keys, or
// that nobody wants any is spelled out.
absl::StatusOr<LimedSettings> CheckFlags(const LimedFlags& flags);

// Makes the folders that limed writes to, where only the last part of their path is missing: a disk that is not mounted is told, not
// replaced by a folder. After everything else was checked.
absl::Status MakeFolders(const LimedFlags& flags);

}  // namespace lime
