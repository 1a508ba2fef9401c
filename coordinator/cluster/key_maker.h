// Makes the keys of a cluster: its own authority, and a certificate for each device that names the
// device. Uses OpenSSL; reads no file and no clock.
#pragma once

#include <ctime>
#include <string>

#include "planner/base/status.h"

namespace lime {

struct Validity {
  std::time_t from = 0, until = 0;  // seconds since 1970
};
// For keys made at `now`: valid from one day before, for devices whose clock is slow, and for ten
// years.
Validity ValidityOfNewKeys(std::time_t now);

// PEM texts of a certificate and its private key (P-256).
struct MadeKeys {
  std::string certificate, key;
};
absl::StatusOr<MadeKeys> MakeAuthority(const Validity& validity);
// InvalidArgument if the authority's key does not match its certificate.
absl::StatusOr<MadeKeys> MakeDeviceKeys(const MadeKeys& authority, const std::string& name, const Validity& validity);

}  // namespace lime
