// Daemons on this machine that end when this program ends, for any reason.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/machine/files.h"
#include "planner/base/status.h"

namespace lime::cli {

// The path of limed: next to this program.
absl::StatusOr<std::string> LimedPath();

class ChildDaemons {
 public:
  struct Daemon {
    std::string name;
    std::vector<std::string> arguments;  // besides name and address
  };
  // Starts all daemons, each on a free port of loopback, and waits until they listen. The error is
  // the sentence of the daemon that does not listen, or Cancelled after Ctrl-C.
  // REQUIRES: the calling thread lives as long as this object; when it ends, the system ends the
  // daemons.
  static absl::StatusOr<std::unique_ptr<ChildDaemons>> Start(const std::vector<Daemon>& daemons);
  ~ChildDaemons();  // asks them to end, then kills the rest

  std::string address(size_t daemon) const;

 private:
  struct Child {
    std::string name;
    pid_t pid = 0;
    FileDescriptor log;    // stderr of the daemon, in memory
    FileDescriptor ready;  // the daemon writes its port here
    int port = 0;
  };
  absl::Status Spawn(const std::string& program, const Daemon& daemon);
  static absl::Status AwaitPort(Child& child);

  std::vector<Child> children_;
};

}  // namespace lime::cli
