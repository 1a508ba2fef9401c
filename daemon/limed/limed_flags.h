// The settings of limed: flags, and a TOML file with the same names. A flag overrides its field.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "common/input/command_line.h"
#include "common/input/host_port.h"
#include "common/limed_settings.h"
#include "daemon/engine/cores.h"
#include "daemon/weights/loader_choice.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/device/device_profile.h"
#include "planner/problem/memory_budget.h"
#include "proto/certificate.h"

namespace lime {

// Fields of DaemonSettings that only a running daemon reports stay empty.
struct LimedFlags : DaemonSettings {
  LimedFlags() { listen = "127.0.0.1:7001"; }

  std::string name;
  std::string memory;  // "8GiB"; empty: as much as the plan gives it, or chosen by `memory_mode`
  std::string pace;    // file of a profile
  std::string log_level = "info";
  std::string numerics = "auto";
  std::string compute_cores;  // "4-7"; empty: any
  std::string metrics;        // host:port; empty: none are served
  bool insecure = false;
  bool no_link_probes = false;
  bool stop = false;         // end the daemon that runs there
  bool stop_all = false;     // end all daemons that were started from `cluster_file`
  int ready_fd = -1;         // descriptor for the port
  std::string config;        // file of ReadLimedFile
  std::string cluster_file;  // `lime up` starts it from this file; empty: started by hand
  // By flag, if the file gives it: `FILE line 3: field "memory" = "8GiB"`.
  std::map<std::string, std::string> from_file;

  void AddTo(const CommandFlags& command);
  // The beginning of an error about a flag: "--memory 8GiB", or the place in the file.
  std::string Said(const std::string& flag, const std::string& value) const;
};

// Reads the TOML file `flags.config`, if there is one, for flags that the call does not give.
// `command` is parsed. InvalidArgument for an error in the file, with file, line and field.
absl::Status ReadLimedFile(const CommandFlags& command, LimedFlags& flags);
// The same from the file's text.
absl::Status ReadLimedText(std::string_view text, std::string_view file, const CommandFlags& command, LimedFlags& flags);

struct LimedSettings {
  std::string listen;  // in its one normal form
  Bytes memory = 0;
  std::optional<MemoryPriority> memory_mode;  // how to choose `memory`; nothing: `memory` is used as it is
  std::optional<DeviceProfile> pace;
  LoaderKind loader = LoaderKind::kRead;
  Cores compute_cores;  // ascending; empty: any
  int threads = 0;      // compute threads; 0: one for each core that this process may use
  ClusterKeys keys;     // empty: connections are not encrypted
  std::optional<HostPort> metrics;
};

// Refuses an invalid device name.
absl::Status CheckName(const LimedFlags& flags);

// Names the first error, including folders that are missing or not writable. An address that others
// can reach needs keys or --insecure.
absl::StatusOr<LimedSettings> CheckFlags(const LimedFlags& flags);

// The memory that a process with a runtime of `runtime` bytes may use on this machine now. `mode`
// says how much stays free for KV of the model in the folder `model`.
absl::StatusOr<DerivedBudget> ChooseMemory(const std::string& model, MemoryPriority mode, Bytes runtime);

// Makes the folders that limed writes to, if only the last part of their path is missing: a disk
// that is not mounted is an error, and no folder takes its place. Called after all other checks.
absl::Status MakeFolders(const LimedFlags& flags);

}  // namespace lime
