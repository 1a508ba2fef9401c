// A daemon in the background: its files, and who it is.
//
// The daemon holds a lock on its pid file as long as it lives. Who wants to end it asks the system who holds the lock, so that it never
// ends another process that has got the same number since.
#pragma once

#include <sys/types.h>

#include <string>

#include "daemon/weights/files.h"
#include "planner/base/status.h"

namespace lime {

// In $XDG_STATE_HOME/lime/CLUSTER, or ~/.local/state/lime/CLUSTER.
struct StateFiles {
  std::string pid, log;  // paths; the log of the run before is LOG.old
};
// Makes the folder, which nobody else may read. InvalidArgument for names that are none.
absl::StatusOr<StateFiles> StateFilesOf(const std::string& cluster, const std::string& device);

// The process that holds the lock; 0: none.
pid_t HolderOf(const std::string& pid_path);

// Asks the holder to end, and ends it if it does not; the process that it was, 0 where there was none.
absl::StatusOr<pid_t> EndHolder(const std::string& pid_path);

// Goes on in a child that holds the lock, in a session of its own, and writes to the log. The parent waits until the child's TellReady or
// its end, says on stdout what became of it, and exits. Returns in the child, with the descriptor for TellReady; or with an error in the
// parent, or where the daemon runs already, with -1. REQUIRES: this process has one thread.
absl::StatusOr<int> GoOnInBackground(const StateFiles& files, const std::string& device);

}  // namespace lime
