// Activations as gRPC messages of two slices, and the answers on the same stream that tell when
// each message arrived.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "common/activation.h"

namespace lime {

inline constexpr char kActivationMethod[] = "/lime.v1.Activations/Stream";
// Metadata at the beginning of a stream: the plan's epoch, and the index of the sending device.
inline constexpr char kEpochKey[] = "lime-epoch";
inline constexpr char kFromKey[] = "lime-from";

// Does not copy the payload; it lives until gRPC has sent it.
grpc::ByteBuffer ToBuffer(ActivationMessage activation);

// A message that only measures the link, with `bytes` bytes in total: kProbeBytes or
// kLargeProbeBytes.
grpc::ByteBuffer ProbeBuffer(int64_t epoch, Bytes bytes);

// InvalidArgument unless the buffer is one header followed by as many bytes as it says. The payload
// of a probe is dropped.
absl::StatusOr<ActivationMessage> FromBuffer(const grpc::ByteBuffer& buffer);

// The answer with these arrival times. ArrivalsOf reads it (ParseArrivals of common/activation.h).
grpc::ByteBuffer ToBuffer(std::span<const int64_t> arrivals_us);
absl::StatusOr<std::vector<int64_t>> ArrivalsOf(const grpc::ByteBuffer& buffer);

}  // namespace lime
