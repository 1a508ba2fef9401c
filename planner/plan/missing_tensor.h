// The mark that ModelSpec::Build leaves on the error of a tensor that is not there, for whoever
// knows why it is not.
#pragma once

#include <string>

#include "planner/base/status.h"

namespace lime {

inline constexpr char kMissingTensorMark[] = "lime/missing-tensor";

// The first tensor that the index given to ModelSpec::Build lacks, where that is the error; else
// empty.
inline std::string MissingTensor(const absl::Status& status) {
  const auto tensor = status.GetPayload(kMissingTensorMark);
  return tensor ? std::string(*tensor) : "";
}

}  // namespace lime
