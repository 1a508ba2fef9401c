// Makes the keys of a cluster: an authority of its own, and for each device a certificate that names it. OpenSSL; no file, no clock.
#pragma once

#include <ctime>
#include <string>

#include "planner/base/status.h"

namespace lime {

struct Validity {
  std::time_t from = 0, until = 0;  // seconds since 1970
};
// Of keys made at `now`: from a day before, so that a board whose clock is somewhat behind takes them too, and for ten years.
Validity ValidityOfNewKeys(std::time_t now);

// PEM texts of a certificate and its private key (P-256).
struct MadeKeys {
  std::string certificate, key;
};
absl::StatusOr<MadeKeys> MakeAuthority(const Validity& validity);
// InvalidArgument where the authority's own keys cannot be used.
absl::StatusOr<MadeKeys> MakeDeviceKeys(const MadeKeys& authority, const std::string& name, const Validity& validity);

}  // namespace lime
