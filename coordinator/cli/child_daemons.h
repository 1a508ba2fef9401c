// Daemons on this machine that live no longer than this program: however it ends, they end.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "daemon/weights/files.h"
#include "planner/base/status.h"

namespace lime::cli {

// Where limed lies: beside this program.
absl::StatusOr<std::string> LimedPath();

class ChildDaemons {
 public:
  struct Daemon {
    std::string name;
    std::vector<std::string> arguments;  // beside name and address
  };
  // Starts all, each on a free port of loopback, and waits until they listen. The error is the sentence of the one that does not, or
  // Cancelled after Ctrl-C. REQUIRES: the thread that calls lives as long as this; the system takes its end for ours.
  static absl::StatusOr<std::unique_ptr<ChildDaemons>> Start(const std::vector<Daemon>& daemons);
  ~ChildDaemons();  // asks them to end, and ends those that do not

  std::string address(size_t daemon) const;

 private:
  struct Child {
    std::string name;
    pid_t pid = 0;
    FileDescriptor log;    // in memory: what it says on stderr
    FileDescriptor ready;  // what it says of its port comes here
    int port = 0;
  };
  absl::Status Spawn(const std::string& program, const Daemon& daemon);
  static absl::Status AwaitPort(Child& child);

  std::vector<Child> children_;
};

}  // namespace lime::cli
