// Tells whoever started this process that it listens: a parent that waits at a pipe, and a service manager (sd_notify(3)).
#pragma once

namespace lime {

// Writes "PORT\n" to `fd` and closes it, where it is not -1; and READY=1 to the socket that $NOTIFY_SOCKET names, where there is one.
// Best effort: who does not listen any more does not matter.
void TellReady(int port, int fd);

// STOPPING=1 to the same socket: it ends as asked.
void TellStopping();

}  // namespace lime
