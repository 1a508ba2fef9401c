// Converts between absl::Status and grpc::Status, which have the same codes.
#pragma once

#include <grpcpp/support/status.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "planner/base/status.h"

namespace lime {

inline grpc::Status ToGrpc(const absl::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()).substr(0, 4096));
}

// The message begins with `who`.
inline absl::Status FromGrpc(const grpc::Status& status, const std::string& who) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), absl::StrCat(who, ": ", status.error_message().substr(0, 4096)));
}

}  // namespace lime
