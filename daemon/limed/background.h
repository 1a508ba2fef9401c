// A daemon in the background: its files, and who it is.
//
// The daemon holds a lock on its pid file as long as it lives. Who wants to end it asks the system who holds the lock, so that it never
// ends another process that has got the same number since.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "daemon/weights/files.h"
#include "planner/base/status.h"

namespace lime {

// In $XDG_STATE_HOME/lime/CLUSTER, or ~/.local/state/lime/CLUSTER.
struct StateFiles {
  std::string device;
  std::string pid, log;  // paths; the log of the run before is LOG.old
  std::string origin;    // what the holder of the lock was started from
};
// Makes the folder, which nobody else may read. InvalidArgument for names that are none.
absl::StatusOr<StateFiles> StateFilesOf(const std::string& cluster, const std::string& device);

// Those of every daemon that runs and was started from this cluster.toml, whatever the cluster and the device were called then.
std::vector<StateFiles> StartedFrom(const std::string& cluster_file);

// What started a daemon. Two clusters may have the same name, and then the same files.
struct Origin {
  std::string file;         // cluster.toml of `lime up`; empty: started by hand
  std::string listen, tls;  // HOST:PORT and folder
};

// Whose the daemon is that holds the lock, in a few words, where it was started from another file, address and keys; empty: it was not, or
// none runs.
std::string OtherOrigin(const StateFiles& files, const Origin& origin);

// The process that holds the lock; 0: none.
pid_t HolderOf(const std::string& pid_path);

// Asks the holder to end, and ends it if it does not; the process that it was, 0 where there was none.
absl::StatusOr<pid_t> EndHolder(const std::string& pid_path);

// Goes on in a child that holds the lock, in a session of its own, and writes to the log. The parent waits until the child's TellReady or
// its end, says on stdout what became of it, and exits. Returns in the child, with the descriptor for TellReady; or with an error in the
// parent (InvalidArgument where the child ends with exit code 2), or where the daemon runs already, with -1. AlreadyExists where another
// one has its files. REQUIRES: this process has one thread.
absl::StatusOr<int> GoOnInBackground(const StateFiles& files, const std::string& device, const Origin& origin);

// ---- Whoever started this process: a parent that waits at a pipe, and a service manager (sd_notify(3))

// Writes "PORT\n" to `fd` and closes it, where it is not -1; and READY=1 to the socket that $NOTIFY_SOCKET names, where there is one.
// Best effort: who does not listen any more does not matter.
void TellReady(int port, int fd);

// STOPPING=1 to the same socket: it ends as asked.
void TellStopping();

}  // namespace lime
