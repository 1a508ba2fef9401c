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
//     memory = "26GiB"                        # what limed may use
//     weights = "/data/llama-70b"             # on that device; without it, what was pushed
//     store = "/data/lime"                    # folder there for what `lime push` sends, for `lime up`
//     threads = 8
//     backend = "cpu"
//     loader = "auto"                         # how weights reach memory there, as `limed --loader`
//     follow-memory = true                    # give weights back while other programs need memory
//     kv-dir = "/data/kv"                     # folder there for KV that memory has no room for
//     profile = "orin.json"                   # of `lime profile --out` on that device; else what `lime profile --cluster` has kept
//     ssh = "me@192.168.1.10"                 # how `lime up` gets there, with -p PORT, -i KEY, -F CONFIG where ssh needs them; without
//                                             # it the device is this machine
//     limed = "/opt/lime/bin/limed"           # program there
//     tls = "/etc/lime/keys"                  # folder of its keys there
//     listen = "0.0.0.0:7001"                 # where it differs from the address
//
//     [[link]]                                # between two devices, or, without from and to, wherever nothing else is said
//     bandwidth = "100Mbit/s"
//     latency = "0.3ms"
//
// Paths of this machine are relative to the file's folder.
//
// Pure: text in, checked values out. Hostile input: sizes, depth and numbers are bounded, and the first thing wrong is one sentence with
// its line. A field or table that is not known is wrong: most often it is a typing error.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/device_name.h"
#include "common/toml_file.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/backend_names.h"

namespace lime {

inline constexpr Bytes kMaxClusterBytes = 256 * kKiB;

struct ClusterConfig {
  struct Device {
    std::string name;                          // no two the same
    std::string address;                       // host:port in the one text for its place; empty: not said
    Bytes memory = 0;                          // 0: not said
    std::string weights;                       // path on that device, a whole one where ssh leads there; empty: not said
    std::string store;                         // likewise; empty: nothing can be pushed
    int32_t threads = 0;                       // 0: one for every core
    std::string backend = "cpu";               // what computes there (planner/plan/backend_names.h)
    std::string loader = kDaemonLoader;        // how weights reach memory there
    bool follow_memory = false;                // weights go while others need the memory
    std::string kv_dir;                        // path on that device; empty: that of the weights
    std::string profile;                       // path, relative to the file's folder; empty: not said
    std::string ssh;                           // SshWay, its files relative to the file's folder; empty: this machine
    std::string limed;                         // path on that device; empty: beside lime on this machine, on the PATH of another
    std::string tls;                           // folder on that device; empty: that of the cluster, on this machine
    std::string listen;                        // host:port; empty: the address
    int line = 0;                              // in the file
    std::map<std::string, TomlValue> written;  // its fields, as they are in the file
  };

  struct Link {
    std::string from, to;  // both ways; both empty: every pair that no other link names
    double bytes_per_second = 0;
    double latency_ms = 0;  // one way
  };

  std::string name, model, tls;  // empty: not said
  std::vector<Device> devices;   // at least one
  std::vector<Link> links;       // no pair twice
};

// `name` (the path) opens every error. Two devices may have one address where `distinct` is false: for ending what was started before the
// file said so.
absl::StatusOr<ClusterConfig> ParseClusterConfig(std::string_view text, std::string_view name, bool distinct = true);

// Takes the devices of these names away, and links to them. InvalidArgument where there is no such device, or none is left.
absl::Status LeaveOut(const std::vector<std::string>& names, ClusterConfig& config);

}  // namespace lime
