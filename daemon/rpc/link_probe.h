// Measures the link to another device: round trips of small messages, then turns with more and more
// bytes.
#pragma once

#include "lime/v1/control.grpc.pb.h"
#include "proto/channel.h"
#include "proto/convert/convert.h"

namespace lime {

// Calls the peer's Probe. Blocks, at most some seconds longer than probe.seconds.
absl::StatusOr<MeasuredLink> MeasureLink(const LinkProbe& probe, const ClusterKeys& keys);

// The other end: drops the data and answers each message that asks for it. If `refused` is an
// error, the call ends with it at once.
grpc::ServerBidiReactor<v1::ProbeData, v1::ProbeAnswer>* AnswerProbe(const absl::Status& refused);

}  // namespace lime
