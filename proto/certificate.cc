#include "proto/certificate.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "daemon/machine/files.h"
#include "proto/fields.h"

namespace lime {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* what) const {
    kFree(what);
  }
};
using X509Ptr = std::unique_ptr<X509, Freed<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using BioPtr = std::unique_ptr<BIO, Freed<BIO_free_all>>;

BioPtr BioOf(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

X509Ptr ParseX509(const std::string& pem) {
  const BioPtr bio = BioOf(pem);
  X509Ptr certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
  ERR_clear_error();
  return certificate;
}

// Never asks for a password.
int NoPassword(char*, int, int, void*) {
  return -1;
}

KeyPtr ParseKey(const std::string& pem) {
  const BioPtr bio = BioOf(pem);
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr));
  ERR_clear_error();
  return key;
}

std::time_t ClockOf(const ASN1_TIME* time) {
  struct tm parts = {};
  return ASN1_TIME_to_tm(time, &parts) == 1 ? timegm(&parts) : 0;
}

Trust TrustOf(int error) {
  switch (error) {
    case X509_V_OK:
      return Trust::kGood;
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return Trust::kNotYet;
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return Trust::kExpired;
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
      return Trust::kForeign;
    default:
      return Trust::kUnusable;
  }
}

// Does not check dates if `now` is 0.
Trust Verify(X509* authority, X509* certificate, std::time_t now) {
  const std::unique_ptr<X509_STORE, Freed<X509_STORE_free>> store(X509_STORE_new());
  const std::unique_ptr<X509_STORE_CTX, Freed<X509_STORE_CTX_free>> context(X509_STORE_CTX_new());
  X509_STORE_add_cert(store.get(), authority);
  if (X509_STORE_CTX_init(context.get(), store.get(), certificate, nullptr) != 1) return Trust::kUnusable;
  X509_VERIFY_PARAM* const how = X509_STORE_CTX_get0_param(context.get());
  if (now == 0)
    X509_VERIFY_PARAM_set_flags(how, X509_V_FLAG_NO_CHECK_TIME);
  else
    X509_VERIFY_PARAM_set_time(how, now);
  const int good = X509_verify_cert(context.get());
  const Trust trust = good == 1 ? Trust::kGood : TrustOf(X509_STORE_CTX_get_error(context.get()));
  ERR_clear_error();
  return trust;
}

absl::Status Bad(const std::string& folder, const std::string& file, const std::string& what, const std::string& name) {
  return Invalid(folder, "/", file, " ", what, "; copy ca.pem, ", name, ".pem and ", name,
                 ".key together from the folder where `lime keys` made them, or make new ones there with "
                 "`lime keys --renew --name ",
                 name, "`");
}

}  // namespace

absl::StatusOr<Certificate> ReadCertificate(const std::string& pem) {
  const X509Ptr certificate = ParseX509(pem);
  if (certificate == nullptr) return absl::InvalidArgumentError("holds no certificate");
  char name[256] = {};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name, sizeof(name));
  return Certificate{.name = fields::PlainName(name),  // may be shown on a terminal
                     .from = ClockOf(X509_get0_notBefore(certificate.get())),
                     .until = ClockOf(X509_get0_notAfter(certificate.get()))};
}

Trust Judge(const std::string& authority, const std::string& certificate, std::time_t now) {
  const X509Ptr ca = ParseX509(authority), leaf = ParseX509(certificate);
  if (ca == nullptr || leaf == nullptr) return Trust::kUnusable;
  return Verify(ca.get(), leaf.get(), now);
}

absl::Status CheckKeys(const ClusterKeys& keys, const std::string& folder, const std::string& name) {
  const X509Ptr authority = ParseX509(keys.authority), certificate = ParseX509(keys.certificate);
  const KeyPtr key = ParseKey(keys.key);
  if (authority == nullptr) return Bad(folder, "ca.pem", "holds no certificate", name);
  if (certificate == nullptr) return Bad(folder, name + ".pem", "holds no certificate", name);
  if (key == nullptr) return Bad(folder, name + ".key", "holds no private key that can be used without a password", name);
  const bool pair = X509_check_private_key(certificate.get(), key.get()) == 1;
  ERR_clear_error();
  if (!pair) return Bad(folder, name + ".key", absl::StrCat("is not the private key of ", name, ".pem"), name);
  if (Verify(authority.get(), certificate.get(), 0) != Trust::kGood)
    return Bad(folder, name + ".pem", "was not made by the authority of ca.pem beside it", name);
  if (X509_check_host(certificate.get(), name.data(), name.size(), 0, nullptr) != 1)
    return Bad(folder, name + ".pem", absl::StrCat("does not name ", name), name);
  return absl::OkStatus();
}

std::time_t EndOf(const ClusterKeys& keys) {
  const absl::StatusOr<Certificate> authority = ReadCertificate(keys.authority), certificate = ReadCertificate(keys.certificate);
  return authority.ok() && certificate.ok() ? std::min(authority->until, certificate->until) : 0;
}

std::string FormatClock(std::time_t clock) {
  return absl::FormatTime("%Y-%m-%d %H:%M UTC", absl::FromTimeT(clock), absl::UTCTimeZone());
}

std::string FormatSpan(std::time_t seconds) {
  const long span = std::labs(seconds);
  const auto in = [span](long unit, const char* name) {
    const long count = (span + unit / 2) / unit;
    return absl::StrCat(count, " ", name, count == 1 ? "" : "s");
  };
  if (span >= 2 * 365 * 86400L) return in(365 * 86400L, "year");
  if (span >= 2 * 86400) return in(86400, "day");
  if (span >= 2 * 3600) return in(3600, "hour");
  if (span >= 2 * 60) return in(60, "minute");
  return absl::StrCat(span, " s");
}

absl::StatusOr<ClusterKeys> ClusterKeys::Read(const std::string& folder, const std::string& name) {
  const std::string key_path = absl::StrCat(folder, "/", name, ".key");
  struct stat status = {};
  if (stat(key_path.c_str(), &status) == 0 && (status.st_mode & 077) != 0)
    return absl::PermissionDeniedError(absl::StrCat(key_path, " can be read by others; run `chmod 600 ", key_path, "`"));
  for (const std::string& path : {folder + "/ca.pem", absl::StrCat(folder, "/", name, ".pem"), key_path}) {
    if (FileExists(path)) continue;
    return absl::NotFoundError(absl::StrCat(path, " is not there"));
  }
  ClusterKeys keys;
  LIME_ASSIGN_OR_RETURN(keys.authority, ReadTextFile(folder + "/ca.pem", kMaxPemBytes));
  LIME_ASSIGN_OR_RETURN(keys.certificate, ReadTextFile(absl::StrCat(folder, "/", name, ".pem"), kMaxPemBytes));
  LIME_ASSIGN_OR_RETURN(keys.key, ReadTextFile(key_path, kMaxPemBytes));
  LIME_RETURN_IF_ERROR(CheckKeys(keys, folder, name));
  return keys;
}

}  // namespace lime
