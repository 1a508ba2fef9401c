// Activations as gRPC carries them, messages of two slices; and what is answered to them on the same stream: when each has arrived.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "common/activation.h"

namespace lime {

inline constexpr char kActivationMethod[] = "/lime.v1.Activations/Stream";
// What a stream says when it begins: the plan's epoch, and which of its devices sends.
inline constexpr char kEpochKey[] = "lime-epoch";
inline constexpr char kFromKey[] = "lime-from";

// The payload is not copied: it lives until gRPC has sent it.
grpc::ByteBuffer ToBuffer(ActivationMessage activation);

// A message that only measures the way: kProbeBytes or kLargeProbeBytes.
grpc::ByteBuffer ProbeBuffer(int64_t epoch, Bytes bytes);

// InvalidArgument for anything but one header and as many bytes as it says. What a probe carries is not kept.
absl::StatusOr<ActivationMessage> FromBuffer(const grpc::ByteBuffer& buffer);

// ParseArrivals of common/activation.h.
grpc::ByteBuffer ToBuffer(std::span<const int64_t> arrivals_us);
absl::StatusOr<std::vector<int64_t>> ArrivalsOf(const grpc::ByteBuffer& buffer);

}  // namespace lime
