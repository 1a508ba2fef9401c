// A daemon in the background: its files, and how to find its process.
//
// The daemon holds a lock on its pid file as long as it lives. To end it, a process asks the system
// who holds the lock. So it never ends another process that has got the same number since.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "daemon/machine/files.h"
#include "planner/base/status.h"

namespace lime {

// Files in $XDG_STATE_HOME/lime/CLUSTER, or ~/.local/state/lime/CLUSTER.
struct StateFiles {
  std::string device;
  std::string pid, log;  // paths; the log of the previous run is LOG.old
  std::string origin;    // file that says what started the holder of the lock
};
// Makes the folder, which nobody else may read. InvalidArgument for invalid names.
absl::StatusOr<StateFiles> StateFilesOf(const std::string& cluster, const std::string& device);

// Files of each running daemon that was started from this cluster.toml, under any name.
std::vector<StateFiles> StartedFrom(const std::string& cluster_file);

// The cluster file, address and keys with which a daemon was started. Two clusters may have the
// same name, and then the same files.
struct Origin {
  std::string file;         // cluster.toml of `lime up`; empty: started by hand
  std::string listen, tls;  // HOST:PORT and folder
};

// Describes in a few words a daemon that holds the lock, but was started from another file and with
// another address or keys. Empty if there is no such daemon.
std::string OtherOrigin(const StateFiles& files, const Origin& origin);

// The process that holds the lock; 0: none.
pid_t HolderOf(const std::string& pid_path);

// Asks the holder to end, and kills it if it does not. Returns its process; 0: there was none.
absl::StatusOr<pid_t> EndHolder(const std::string& pid_path);

// Continues in a child that holds the lock, has a session of its own, and writes to the log. The
// parent waits until the child calls ReportReady or ends, reports that on stdout, and exits.
// Returns in the child, with the descriptor for ReportReady. Returns in the parent with an error
// (InvalidArgument if the child ends with exit code 2), or with -1 if the daemon runs already.
// AlreadyExists if another daemon has its files. REQUIRES: this process has one thread.
absl::StatusOr<int> GoOnInBackground(const StateFiles& files, const std::string& device, const Origin& origin);

// ---- News for the starter of this process: a parent at a pipe, a service manager (sd_notify(3))

// Writes "PORT\n" to `fd` and closes it, unless it is -1. Sends READY=1 to the socket that
// $NOTIFY_SOCKET names, if there is one. Ignores errors: the listener may be gone.
void ReportReady(int port, int fd);

// Sends STOPPING=1 to the same socket: this process ends as asked.
void ReportStopping();

}  // namespace lime
