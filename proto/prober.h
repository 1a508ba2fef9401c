// Looks why a device cannot be talked to: resolves its host, connects, and reads what is said there, with and without TLS.
//
// Sockets and OpenSSL alone, since gRPC's status says the same of every fault. Threads: any; waits, a few seconds at most.
#pragma once

#include <optional>

#include "absl/time/time.h"
#include "proto/diagnosis.h"

namespace lime {

struct ProbePatience {
  absl::Duration resolve = absl::Seconds(3);
  absl::Duration connect = absl::Seconds(2);
  absl::Duration talk = absl::Seconds(2);  // from then on, for all of what is said
  absl::Duration hello = absl::Milliseconds(300);
};

Probed Probe(const ProbeTarget& target, const ProbePatience& patience = {});
Diagnosis FindFault(const ProbeTarget& target, const ProbePatience& patience = {});

// What the device says of itself before keys are shown (proto/hello.h); nothing where it does not answer in time.
std::optional<Hello> AskHello(const ProbeTarget& target, const ProbePatience& patience = {});

}  // namespace lime
