// Keys of a process: reads them, reads certificates, and checks whether keys belong together. Uses
// OpenSSL without a connection.
//
// Times are seconds since 1970 from std::time, which TLS also uses for certificates.
#pragma once

#include <ctime>
#include <string>

#include "planner/base/status.h"

namespace lime {

// PEM texts. All empty: connections are not encrypted.
struct ClusterKeys {
  std::string authority, certificate, key;

  bool empty() const { return authority.empty(); }
  // Reads `folder`/ca.pem, `folder`/`name`.pem and `folder`/`name`.key. The key must not be
  // readable for other users. Checks that they belong together. kNotFound names the missing file;
  // the caller knows where keys come from.
  static absl::StatusOr<ClusterKeys> Read(const std::string& folder, const std::string& name);
};

struct Certificate {
  std::string name;                 // of the device, or "coordinator"
  std::time_t from = 0, until = 0;  // period of validity
};
// The first certificate of a PEM text; InvalidArgument if there is none.
absl::StatusOr<Certificate> ReadCertificate(const std::string& pem);

// The judgement of a cluster's authority on a certificate.
enum class Trust {
  kGood,
  kForeign,   // from another authority
  kNotYet,    // the certificate or its authority is not valid yet
  kExpired,   // the certificate or its authority has expired
  kUnusable,  // anything else: unreadable, or for another purpose
};
Trust Judge(const std::string& authority, const std::string& certificate, std::time_t now);

// Checks that authority, certificate and private key belong together and are valid, except for
// their dates. The error names the wrong file in `folder`, and the remedy.
absl::Status CheckKeys(const ClusterKeys& keys, const std::string& folder, const std::string& name);

// The earlier end of the certificate and its authority; 0 if they are unreadable.
std::time_t EndOf(const ClusterKeys& keys);

// Users are warned this long before keys expire.
inline constexpr std::time_t kExpiryNotice = 30 * 24 * 3600;

// "2026-11-26 00:12 UTC".
std::string FormatClock(std::time_t clock);
// A duration in its largest unit: "3 days", "2 hours", "40 s".
std::string FormatSpan(std::time_t seconds);

}  // namespace lime
