// The calls of limed by `lime up` and `lime down`, on this machine or over ssh, and the settings
// they ask for.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cluster/remote_command.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/devices/daemon_settings.h"

namespace lime::cli {

class LimedCall {
 public:
  static absl::StatusOr<LimedCall> For(const ClusterFile& file, const ClusterConfig::Device& device, bool insecure);

  // Program and arguments; the same words on every machine.
  std::vector<std::string> Start() const;
  std::vector<std::string> Stop() const;
  // Ends all daemons there that were started from the cluster's file. The words are equal for all
  // devices of one machine.
  std::vector<std::string> StopAll() const;

  const std::string& name() const { return device_.name; }
  // `FILE line 7: device "orin"`
  const std::string& where() const { return where_; }
  bool is_remote() const { return !device_.ssh.empty(); }
  // Turns limed's error about a flag into a wrong call of this program. The new error names the
  // field of the file instead of the flag.
  absl::Status InFile(std::string_view sentence) const;
  // HOST:PORT that it shall listen on.
  const std::string& listen() const { return device_.listen.empty() ? device_.address : device_.listen; }
  // Its settings, with the cluster's name, and the address and keys that follow from the file.
  ClusterConfig::Device Wanted() const;

 private:
  absl::StatusOr<std::vector<std::string>> KeysOf(const ClusterFile& file, bool insecure) const;
  std::vector<std::string> Reach(const std::vector<std::string>& words) const;

  ClusterConfig::Device device_;
  SshWay ssh_;
  std::string file_, where_, program_, cluster_;
  std::string from_;  // the cluster's file, as its daemons know it
  std::vector<std::string> id_, keys_;
};

// Runs a program to its end and returns its output (stdout and stderr). If it fails, an error with
// the output. InvalidArgument: the program reports a wrong call. Once `cancel` is set, which may be null,
// the program is told to end, and the call is cancelled.
absl::StatusOr<std::string> RunToEnd(std::vector<std::string> words, const std::atomic<bool>* cancel = nullptr);

// Whether a daemon on this machine can listen on the host of `address`. True for a name that cannot
// be resolved; limed then reports the error.
bool IsOfThisMachine(const std::string& address);

}  // namespace lime::cli
