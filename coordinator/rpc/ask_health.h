// The first question to a device, and the reason if it does not answer.
#pragma once

#include "absl/time/time.h"
#include "lime/v1/control.grpc.pb.h"
#include "proto/convert/convert.h"
#include "proto/diagnosis/diagnosis.h"

namespace lime {

struct HealthQuestion {
  absl::Duration patience;  // for the answer; faults that waiting cannot repair are returned sooner
  int64_t awaited = 0;      // epoch of a plan that the device must keep although it is not used yet
  bool expected = false;    // it was just started, see Diagnosis::lasts
  bool explain = true;      // false: only asks whether it answers within `patience`
};

// Also checks that the device speaks our protocol and is the device in `target`. An error is the
// sentence of a Diagnosis. Waits at most `patience` for the answer; if a fault must be diagnosed,
// about twice `patience` and a second.
absl::StatusOr<DeviceHealth> AskHealth(v1::Control::Stub& stub, const ProbeTarget& target, const HealthQuestion& question);

}  // namespace lime
