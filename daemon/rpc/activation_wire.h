// Activations as gRPC carries them: a message of two slices.
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include "daemon/logic/activation.h"

namespace lime {

inline constexpr char kActivationMethod[] = "/lime.v1.Activations/Stream";
// What a stream says when it begins: the plan's epoch, and which of its devices sends.
inline constexpr char kEpochKey[] = "lime-epoch";
inline constexpr char kFromKey[] = "lime-from";

// The payload is not copied: it lives until gRPC has sent it.
grpc::ByteBuffer ToBuffer(ActivationMessage activation);

// InvalidArgument for anything but one header and as many bytes as it says.
absl::StatusOr<ActivationMessage> FromBuffer(const grpc::ByteBuffer& buffer);

}  // namespace lime
