// How fast the way to another device is: small messages there and back, then more and more bytes at a time.
#pragma once

#include "lime/v1/control.grpc.pb.h"
#include "proto/channel.h"
#include "proto/convert.h"

namespace lime {

// Calls the peer's Probe. Waits: some seconds more than probe.seconds at most.
absl::StatusOr<MeasuredLink> MeasureLink(const LinkProbe& probe, const ClusterKeys& keys);

// The other end: swallows what comes and answers where asked to. `refused` ends it at once.
grpc::ServerBidiReactor<v1::ProbeData, v1::ProbeAnswer>* AnswerProbe(const absl::Status& refused);

}  // namespace lime
