// Redirects gRPC's own log. By default it goes to stderr, in words that are not for users.
//
// Threads: call these before the first channel or server. `sink` is called on any thread.
#pragma once

#include <functional>
#include <string_view>

namespace lime {

// Discards the log. A failed call reports the reason in its status.
void SilenceGrpc();

// Sends the log to `sink`, one line per call without its end, cut at 512 bytes. `all`: also
// messages about single connections, such as a failed handshake.
void GrpcLogTo(std::function<void(std::string_view line)> sink, bool all);

}  // namespace lime
