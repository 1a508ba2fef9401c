#include "common/http/tls_files.h"

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <cstring>

namespace lime {
namespace {

// The first error that OpenSSL noted: that of the file system, or what is wrong with the content.
std::string TakeError() {
  char words[256] = {};
  const unsigned long error = ERR_peek_error();
  const char* const reason = ERR_SYSTEM_ERROR(error) ? std::strerror(ERR_GET_REASON(error)) : ERR_reason_error_string(error);
  if (reason == nullptr) ERR_error_string_n(error, words, sizeof(words));
  std::string text = reason != nullptr ? reason : words;
  ERR_clear_error();
  return text;
}

int ChooseProtocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* offered, unsigned offered_size, void*) {
  static constexpr unsigned char kHttp11[] = {8, 'h', 't', 't', 'p', '/', '1', '.', '1'};
  unsigned char* chosen = nullptr;
  const int found = SSL_select_next_proto(&chosen, out_size, kHttp11, sizeof(kHttp11), offered, offered_size);
  *out = chosen;
  return found == OPENSSL_NPN_NEGOTIATED ? SSL_TLSEXT_ERR_OK : SSL_TLSEXT_ERR_NOACK;
}

}  // namespace

absl::StatusOr<std::shared_ptr<ssl_ctx_st>> LoadTls(const TlsFiles& files) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_server_method()), SSL_CTX_free);
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) != 1)
    return absl::InternalError(absl::StrCat("OpenSSL cannot begin: ", TakeError()));
  SSL_CTX_set_session_cache_mode(context.get(), SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context.get(), SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_options(context.get(), SSL_OP_NO_RENEGOTIATION | SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_alpn_select_cb(context.get(), ChooseProtocol, nullptr);
  SSL_CTX_set_default_passwd_cb(context.get(), [](char*, int, int, void*) { return -1; });  // do not ask at the terminal
  if (SSL_CTX_use_certificate_chain_file(context.get(), files.certificate.c_str()) != 1)
    return Invalid("the certificate ", files.certificate, " cannot be used: ", TakeError(), "; give a file in PEM");
  if (SSL_CTX_use_PrivateKey_file(context.get(), files.key.c_str(), SSL_FILETYPE_PEM) != 1)
    return Invalid("the key ", files.key, " cannot be used: ", TakeError(),
                   "; give the key of the certificate, in PEM and without a passphrase");
  if (SSL_CTX_check_private_key(context.get()) != 1)
    return Invalid("the key ", files.key, " does not belong to the certificate ", files.certificate, ": ", TakeError());
  return context;
}

}  // namespace lime
