// How `lime up` and `lime down` call a device's limed, on this machine or over ssh, and what they want it to run with.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "coordinator/cli/cluster_file.h"
#include "coordinator/cli/daemon_settings.h"
#include "coordinator/cluster/remote_command.h"

namespace lime::cli {

class LimedCall {
 public:
  static absl::StatusOr<LimedCall> For(const ClusterFile& file, const ClusterConfig::Device& device, bool insecure);

  // Program and arguments, the same words on this machine and on another.
  std::vector<std::string> Start() const;
  std::vector<std::string> Stop() const;
  // Ends whatever was started there from the cluster's file: the same words for all devices of a machine.
  std::vector<std::string> StopAll() const;

  const std::string& name() const { return device_.name; }
  // `FILE line 7: device "orin"`
  const std::string& where() const { return where_; }
  bool is_remote() const { return !device_.ssh.empty(); }
  // What limed says is wrong with the call, as a wrong call of this program: about the field of the file that its flag came from.
  absl::Status InFile(std::string_view sentence) const;
  // HOST:PORT that it is to listen on.
  const std::string& listen() const { return device_.listen.empty() ? device_.address : device_.listen; }
  WantedSettings Wanted() const;

 private:
  absl::StatusOr<std::vector<std::string>> KeysOf(const ClusterFile& file, bool insecure) const;
  std::vector<std::string> Reach(const std::vector<std::string>& words) const;

  ClusterConfig::Device device_;
  SshWay ssh_;
  std::string file_, where_, program_, cluster_;
  std::string from_;  // the cluster's file, as its daemons know it
  std::vector<std::string> id_, keys_;
};

// Runs a program to its end: what it says, on either stream; an error, with that, where it fails. InvalidArgument: it calls that a wrong
// call.
absl::StatusOr<std::string> RunToEnd(std::vector<std::string> words);

// Whether a daemon of this machine can listen on the host of `address`. A name that is not known here is said to be: limed tells why not.
bool IsOfThisMachine(const std::string& address);

}  // namespace lime::cli
