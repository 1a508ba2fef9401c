// What a process shows others, and asks of them.
#pragma once

#include <string>

#include "planner/base/status.h"

namespace lime {

// PEM texts; all empty: connections are not encrypted.
struct ClusterKeys {
  std::string authority, certificate, key;

  bool empty() const { return authority.empty(); }
  // `folder`/ca.pem, `folder`/`name`.pem and `folder`/`name`.key, which nobody else may read. Checked: they belong together.
  // kNotFound names a file that is not there; the caller knows where keys come from.
  static absl::StatusOr<ClusterKeys> Read(const std::string& folder, const std::string& name);
};

}  // namespace lime
