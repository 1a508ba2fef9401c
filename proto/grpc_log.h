// What gRPC itself has to say goes where we want it: it writes to stderr otherwise, in words that are not for users.
//
// Threads: call these before the first channel or server; `sink` is called on any thread.
#pragma once

#include <functional>
#include <string_view>

namespace lime {

// Nowhere: a call that fails says why by its status.
void SilenceGrpc();

// To `sink`, a line each, without its end, cut at 512 bytes. `all`: also what gRPC says of single connections, such as why the
// handshake of a peer has failed.
void GrpcLogTo(std::function<void(std::string_view line)> sink, bool all);

}  // namespace lime
