// The certificate and the key with which the server speaks TLS.
#pragma once

#include <memory>
#include <string>

#include "planner/base/status.h"

struct ssl_ctx_st;  // OpenSSL's SSL_CTX

namespace lime {

struct TlsFiles {
  std::string certificate;  // PEM: the server's own, then those that lead to an authority
  std::string key;          // PEM, without a passphrase
};

// TLS 1.2 and above, without sessions in memory; of protocols, http/1.1 alone is chosen.
// InvalidArgument, with the name of the file, if a file cannot be used or the two do not match.
absl::StatusOr<std::shared_ptr<ssl_ctx_st>> LoadTls(const TlsFiles& files);

}  // namespace lime
