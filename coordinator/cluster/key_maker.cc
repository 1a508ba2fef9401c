#include "coordinator/cluster/key_maker.h"

#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

constexpr std::time_t kDay = 24 * 3600;

struct FreeX509 {
  void operator()(X509* what) const { X509_free(what); }
};
struct FreeKey {
  void operator()(EVP_PKEY* what) const { EVP_PKEY_free(what); }
};
struct FreeBio {
  void operator()(BIO* what) const { BIO_free_all(what); }
};
using NewX509 = std::unique_ptr<X509, FreeX509>;
using NewKey = std::unique_ptr<EVP_PKEY, FreeKey>;
using NewBio = std::unique_ptr<BIO, FreeBio>;

absl::Status OpenSslError(const char* doing) {
  char words[256] = {};
  ERR_error_string_n(ERR_get_error(), words, sizeof(words));
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("OpenSSL cannot ", doing, ": ", words));
}

template <typename Write>
std::string PemOf(Write write) {
  const NewBio bio(BIO_new(BIO_s_mem()));
  char* data = nullptr;
  if (bio == nullptr || write(bio.get()) != 1) return "";
  const long bytes = BIO_get_mem_data(bio.get(), &data);
  return std::string(data, static_cast<size_t>(bytes));
}

bool AddExtension(X509* to, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, to, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  const bool added = extension != nullptr && X509_add_ext(to, extension, -1) == 1;
  X509_EXTENSION_free(extension);
  return added;
}

// 127 random bits, with the top bit set.
bool SetSerial(X509* certificate) {
  BIGNUM* const number = BN_new();
  const bool set = number != nullptr && BN_rand(number, 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
                   BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != nullptr;
  BN_free(number);
  return set;
}

// A certificate without issuer, extensions and signature.
NewX509 Begin(const std::string& name, EVP_PKEY* key, const Validity& validity) {
  NewX509 certificate(X509_new());
  if (certificate == nullptr || X509_set_version(certificate.get(), X509_VERSION_3) != 1 || !SetSerial(certificate.get()) ||
      ASN1_TIME_set(X509_getm_notBefore(certificate.get()), validity.from) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(certificate.get()), validity.until) == nullptr || X509_set_pubkey(certificate.get(), key) != 1 ||
      X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_UTF8,
                                 reinterpret_cast<const unsigned char*>(name.data()), static_cast<int>(name.size()), -1, 0) != 1)
    return nullptr;
  return certificate;
}

absl::StatusOr<MadeKeys> Sign(X509* certificate, EVP_PKEY* key, EVP_PKEY* signer) {
  if (X509_sign(certificate, signer, EVP_sha256()) == 0) return OpenSslError("sign a certificate");
  MadeKeys made{.certificate = PemOf([&](BIO* out) { return PEM_write_bio_X509(out, certificate); }),
                .key = PemOf([&](BIO* out) { return PEM_write_bio_PrivateKey(out, key, nullptr, nullptr, 0, nullptr, nullptr); })};
  if (made.certificate.empty() || made.key.empty()) return OpenSslError("write keys");
  return made;
}

}  // namespace

Validity ValidityOfNewKeys(std::time_t now) {
  return {.from = now - kDay, .until = now + 3650 * kDay};
}

absl::StatusOr<MadeKeys> MakeAuthority(const Validity& validity) {
  const NewKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a private key");
  const NewX509 certificate = Begin("LIME cluster", key.get(), validity);
  if (certificate == nullptr || X509_set_issuer_name(certificate.get(), X509_get_subject_name(certificate.get())) != 1 ||
      !AddExtension(certificate.get(), certificate.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0") ||
      !AddExtension(certificate.get(), certificate.get(), NID_key_usage, "critical,keyCertSign,cRLSign") ||
      !AddExtension(certificate.get(), certificate.get(), NID_subject_key_identifier, "hash"))
    return OpenSslError("make a certificate");
  return Sign(certificate.get(), key.get(), key.get());
}

absl::StatusOr<MadeKeys> MakeDeviceKeys(const MadeKeys& authority, const std::string& name, const Validity& validity) {
  const NewBio certificate_text(BIO_new_mem_buf(authority.certificate.data(), static_cast<int>(authority.certificate.size()))),
      key_text(BIO_new_mem_buf(authority.key.data(), static_cast<int>(authority.key.size())));
  const NewX509 issuer(PEM_read_bio_X509(certificate_text.get(), nullptr, nullptr, nullptr));
  const NewKey signer(PEM_read_bio_PrivateKey(
      key_text.get(), nullptr, [](char*, int, int, void*) { return -1; }, nullptr));
  const bool pair = issuer != nullptr && signer != nullptr && X509_check_private_key(issuer.get(), signer.get()) == 1;
  ERR_clear_error();
  if (!pair) return absl::InvalidArgumentError("ca.key is not the private key of ca.pem");
  const NewKey key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpenSslError("make a private key");
  const NewX509 certificate = Begin(name, key.get(), validity);
  if (certificate == nullptr || X509_set_issuer_name(certificate.get(), X509_get_subject_name(issuer.get())) != 1 ||
      !AddExtension(certificate.get(), issuer.get(), NID_basic_constraints, "critical,CA:FALSE") ||
      !AddExtension(certificate.get(), issuer.get(), NID_subject_alt_name, absl::StrCat("DNS:", name)) ||
      !AddExtension(certificate.get(), issuer.get(), NID_ext_key_usage, "serverAuth,clientAuth") ||
      !AddExtension(certificate.get(), issuer.get(), NID_subject_key_identifier, "hash") ||
      // Identifies the issuer by its key, because authorities of other clusters have the same name.
      !AddExtension(certificate.get(), issuer.get(), NID_authority_key_identifier, "keyid:always"))
    return OpenSslError("make a certificate");
  return Sign(certificate.get(), key.get(), signer.get());
}

}  // namespace lime
