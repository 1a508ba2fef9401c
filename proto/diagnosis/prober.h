// Finds out why a device cannot be reached: resolves its host, connects, and reads what it sends,
// with and without TLS.
//
// Uses only sockets and OpenSSL, because gRPC reports the same status for every fault. Threads:
// any; blocks for a few seconds at most.
#pragma once

#include <optional>

#include "absl/time/time.h"
#include "proto/diagnosis/diagnosis.h"

namespace lime {

struct ProbePatience {
  absl::Duration resolve = absl::Seconds(3);
  absl::Duration connect = absl::Seconds(2);
  absl::Duration talk = absl::Seconds(2);  // for all data after connecting
  absl::Duration hello = absl::Milliseconds(300);
};

Probed Probe(const ProbeTarget& target, const ProbePatience& patience = {});
// Probes again, a second at most, while the device closes connections without an answer: a daemon
// that is just ending or starting does so for a moment.
Diagnosis FindFault(const ProbeTarget& target, const ProbePatience& patience = {});

// The device's hello before keys are shown (proto/hello.h); nullopt if it does not answer in time.
std::optional<Hello> AskHello(const ProbeTarget& target, const ProbePatience& patience = {});

}  // namespace lime
