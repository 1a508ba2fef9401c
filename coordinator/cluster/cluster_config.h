// cluster.toml: the devices that run one model together, as a person writes them down.
//
//     [cluster]
//     name = "shelf"
//     model = "Llama-3.3-70B-Instruct"        # folder of the checkpoint
//     tls = "keys"                            # folder of the cluster's keys
//
//     [[device]]
//     name = "orin"
//     address = "192.168.1.10:7001"
//     memory = "26GiB"                        # budget of limed
//     memory-mode = "balanced"                # without memory: what limed keeps free for KV when
//                                             # it chooses its budget
//     weights = "/data/llama-70b"             # on that device; missing: pushed weights
//     store = "/data/lime"                    # folder there for `lime push`, used by `lime up`
//     threads = 8
//     backend = "cpu"
//     loader = "auto"                         # how weights reach memory there, as `limed --loader`
//     follow-memory = true                    # evict weights while other programs need memory
//     kv-dir = "/data/kv"                     # folder there for KV that does not fit in memory
//     profile = "orin.json"                   # of `lime profile --out` on that device; missing:
//                                             # stored by `lime profile --cluster`
//     ssh = "me@192.168.1.10"                 # for `lime up`, with -p PORT, -i KEY, -F CONFIG;
//                                             # missing: the device is this machine
//     limed = "/opt/lime/bin/limed"           # program there
//     tls = "/etc/lime/keys"                  # folder of its keys there
//     listen = "0.0.0.0:7001"                 # if it differs from the address
//
//     [[link]]                                # between two devices; without from and to, for pairs
//     bandwidth = "100Mbit/s"                 # that were not measured and have no [[link]]
//     latency = "0.3ms"
//
// Paths of this machine are relative to the file's folder.
//
// Pure: text in, checked values out. Hostile input: sizes, depth and numbers are bounded. The first
// error is reported in one sentence with its line. An unknown field or table is an error, because
// it is most often a typing error.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/input/device_name.h"
#include "common/input/toml_file.h"
#include "common/limed_settings.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr Bytes kMaxClusterBytes = 256 * kKiB;

struct ClusterConfig {
  // The settings asked for: with `ssh`, paths there are absolute. `listen` empty: the address.
  // `tls` empty: the cluster's keys, here.
  struct Device : DaemonSettings {
    std::string name;                          // unique
    std::string address;                       // host:port in canonical form; empty: not given
    Bytes memory = 0;                          // 0: not given
    std::string profile;                       // relative to the file's folder; empty: not given
    std::string ssh;                           // SshWay, files as `profile`; empty: this machine
    std::string limed;                         // path there; empty: next to lime, or on its PATH
    int line = 0;                              // in the file
    std::map<std::string, TomlValue> written;  // its fields, as in the file
  };

  struct Link {
    std::string from, to;  // a link in both directions; both empty: all other unmeasured pairs
    double bytes_per_second = 0;
    double latency_ms = 0;  // one way
  };

  std::string name, model, tls;  // empty: not given
  std::vector<Device> devices;   // at least one
  std::vector<Link> links;       // one per pair at most
};

// `name` (the path) opens every error. `distinct` false allows two devices with one address, so
// that `lime down` can stop devices that an older file started.
absl::StatusOr<ClusterConfig> ParseClusterConfig(std::string_view text, std::string_view name, bool distinct = true);

// Removes the named devices and their links. InvalidArgument if a name is unknown or no device
// remains.
absl::Status Exclude(const std::vector<std::string>& names, ClusterConfig& config);

}  // namespace lime
