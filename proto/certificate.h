// What a process shows others and asks of them: its keys, what certificates say, and whether keys belong together. OpenSSL, without a
// connection.
//
// Clocks are seconds since 1970, as std::time tells them: what TLS itself judges certificates by.
#pragma once

#include <ctime>
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

struct Certificate {
  std::string name;                 // of the device, or "coordinator"
  std::time_t from = 0, until = 0;  // it is valid
};
// The first certificate of a PEM text; InvalidArgument where there is none.
absl::StatusOr<Certificate> ReadCertificate(const std::string& pem);

// What a cluster's authority says of a certificate.
enum class Trust {
  kGood,
  kForeign,   // of another authority
  kNotYet,    // it, or the authority's own, is valid from later on
  kExpired,   // likewise, until earlier
  kUnusable,  // anything else: it cannot be read, or is not for this purpose
};
Trust Judge(const std::string& authority, const std::string& certificate, std::time_t now);

// Whether authority, certificate and private key are what they should be and belong together, whatever the clock says. `folder` is where
// they are from: the sentence names the file that is wrong, and what to do.
absl::Status CheckKeys(const ClusterKeys& keys, const std::string& folder, const std::string& name);

// The earlier end of a certificate and its authority; 0 where they cannot be read.
std::time_t EndOf(const ClusterKeys& keys);

// People are told so long before keys expire.
inline constexpr std::time_t kExpiryNotice = 30 * 24 * 3600;

// "2026-11-26 00:12 UTC".
std::string FormatClock(std::time_t clock);
// How long something lasts, in its largest unit: "3 days", "2 hours", "40 s".
std::string FormatSpan(std::time_t seconds);

}  // namespace lime
