// The first question to a device, and why it is not answered.
#pragma once

#include "absl/time/time.h"
#include "lime/v1/control.grpc.pb.h"
#include "proto/convert.h"
#include "proto/diagnosis.h"

namespace lime {

struct HealthQuestion {
  absl::Duration patience;  // for the answer; faults that waiting does not mend are told sooner
  int64_t awaited = 0;      // epoch of a plan that is to stay there until it is used
  bool explain = true;      // false: the caller only wants to know whether it answers, within `patience`
};

// Checked: the device understands us, and is the one. An error is the sentence of a Diagnosis. Blocks, for two times `patience` or little
// more where the fault has to be looked for.
absl::StatusOr<DeviceHealth> AskHealth(v1::Control::Stub& stub, const ProbeTarget& target, const HealthQuestion& question);

}  // namespace lime
