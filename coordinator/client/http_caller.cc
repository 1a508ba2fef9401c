#include "coordinator/client/http_caller.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/write.hpp>
#include <optional>
#include <utility>  // before asio: Boost 1.74 uses std::exchange without it

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/client/response_reader.h"
#include "planner/base/release.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;
using Clock = std::chrono::steady_clock;

constexpr size_t kReadBytes = 16 * 1024;
constexpr std::chrono::milliseconds kLook(50);  // how often a call looks whether it is cancelled

std::string RequestText(const HttpCall& call, const ServerUrl& url, const std::string& api_key) {
  std::string text = absl::StrCat(call.method, " ", url.base, call.path, " HTTP/1.1\r\nHost: ", url.HostHeader(), "\r\nUser-Agent: lime/",
                                  Text(Release()), "\r\nAccept: */*\r\nConnection: close\r\n");
  if (!api_key.empty()) absl::StrAppend(&text, "Authorization: Bearer ", api_key, "\r\n");
  if (call.method == "POST")
    absl::StrAppend(&text, "Content-Type: application/json\r\nContent-Length: ", call.body.size(), "\r\n\r\n", call.body);
  else
    absl::StrAppend(&text, "\r\n");
  return text;
}

// One call: its connection, and the waits on it.
class OneCall {
 public:
  OneCall(const HttpCaller::Options& options, const std::shared_ptr<SSL_CTX>& trusted, const std::atomic<bool>* cancel)
      : options_(options), cancel_(cancel), resolver_(io_), socket_(io_) {
    if (trusted == nullptr) return;
    SSL_CTX_up_ref(trusted.get());  // the context gives one back
    context_.emplace(trusted.get());
    tls_.emplace(socket_, *context_);
  }

  absl::StatusOr<HttpReply> Run(const HttpCall& call, const HttpCaller::OnPiece& on_piece) {
    LIME_RETURN_IF_ERROR(Connect());
    const absl::Status sent = Send(RequestText(call, options_.url, options_.api_key));
    // A server that refuses a long body answers before it has all of it.
    if (!sent.ok() && !absl::IsUnavailable(sent)) return sent;
    absl::StatusOr<HttpReply> reply = Receive(on_piece);
    return !sent.ok() && absl::IsUnavailable(reply.status()) ? absl::StatusOr<HttpReply>(sent) : reply;
  }

 private:
  std::string Url() const { return options_.url.Text(); }

  // Begins `act`, which gets a handler for (error, result), and waits for its end. Not OK if it was
  // cancelled, or had not ended after `limit` (`silence` says what did not happen). Else `error_` has
  // how it ended.
  template <typename Act>
  absl::Status Wait(Clock::time_point limit, std::string_view silence, Act act) {
    bool done = false;
    act([&](const Error& error, size_t bytes) {
      done = true;
      error_ = error;
      bytes_ = bytes;
    });
    while (!done) {
      const Clock::time_point now = Clock::now();
      absl::Status stop;
      if (cancel_ != nullptr && cancel_->load(std::memory_order_relaxed)) stop = absl::CancelledError("interrupted");
      if (now >= limit) stop = absl::DeadlineExceededError(absl::StrCat(Url(), " ", Text(silence)));
      if (!stop.ok()) {
        Close();
        // The handler has references to this frame.
        while (!done) Turn(Clock::now() + kLook);  // NOLINT(bugprone-infinite-loop): the handler sets `done`
        return stop;
      }
      Turn(std::min(limit, now + kLook));
    }
    return absl::OkStatus();
  }
  void Turn(Clock::time_point until) {
    if (io_.stopped()) io_.restart();
    io_.run_one_until(until);
  }
  void Close() {
    Error ignored;
    resolver_.cancel();
    socket_.close(ignored);
  }

  absl::Status Connect() {
    const Clock::time_point limit = Clock::now() + absl::ToChronoNanoseconds(options_.connect);
    constexpr std::string_view kSilence = "does not answer; check the address and the network between";
    tcp::resolver::results_type found;
    LIME_RETURN_IF_ERROR(Wait(limit, kSilence, [&](auto ended) {
      resolver_.async_resolve(options_.url.host, std::to_string(options_.url.port), tcp::resolver::numeric_service,
                              [&found, ended](const Error& error, tcp::resolver::results_type results) {
                                found = std::move(results);
                                ended(error, 0);
                              });
    }));
    if (error_)
      return absl::UnavailableError(
          absl::StrCat("the host of ", Url(), " is not known: ", error_.message(), "; check the name, or give --url an address"));
    LIME_RETURN_IF_ERROR(Wait(limit, kSilence, [&](auto ended) {
      asio::async_connect(socket_, found, [ended](const Error& error, const tcp::endpoint&) { ended(error, 0); });
    }));
    if (error_)
      return absl::UnavailableError(absl::StrCat(Url(), " cannot be reached: ", error_.message(),
                                                 "; start `lime serve` there, or give --url the address that it printed"));
    Error ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    return tls_ ? Handshake(limit) : absl::OkStatus();
  }

  // The certificate has to be for the host, a name or an address.
  bool ExpectHost() {
    SSL* const ssl = tls_->native_handle();
    Error error;
    asio::ip::make_address(options_.url.host, error);
    if (!error) return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), options_.url.host.c_str()) == 1;
    // A server may have several certificates: it chooses by the name.
    return SSL_set1_host(ssl, options_.url.host.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, options_.url.host.c_str()) == 1;
  }

  absl::Status Handshake(Clock::time_point limit) {
    if (!ExpectHost()) return absl::InternalError(absl::StrCat("OpenSSL cannot check the name of ", Url()));
    LIME_RETURN_IF_ERROR(
        Wait(limit, "accepts connections but does not answer to TLS; if it has no certificate, write http:// in --url",
             [&](auto ended) { tls_->async_handshake(asio::ssl::stream_base::client, [ended](const Error& error) { ended(error, 0); }); }));
    if (!error_) return absl::OkStatus();
    const long verified = SSL_get_verify_result(tls_->native_handle());
    if (verified == X509_V_ERR_HOSTNAME_MISMATCH || verified == X509_V_ERR_IP_ADDRESS_MISMATCH) {
      return absl::FailedPreconditionError(
          absl::StrCat("the certificate of ", Url(), " is for another name; give --url the name that it is for"));
    }
    if (verified != X509_V_OK) {
      return absl::FailedPreconditionError(absl::StrCat("the certificate of ", Url(),
                                                        " is not trusted: ", X509_verify_cert_error_string(verified),
                                                        "; give --tls-ca the PEM file of the authority that signed it"));
    }
    return absl::UnavailableError(
        absl::StrCat(Url(), " does not speak TLS: ", error_.message(), "; if the server has no certificate, write http:// in --url"));
  }

  template <typename Act>
  void WithStream(Act act) {
    if (tls_) return act(*tls_);
    act(socket_);
  }

  absl::Status Send(const std::string& text) {
    size_t sent = 0;
    while (sent < text.size()) {
      LIME_RETURN_IF_ERROR(Wait(IdleLimit(), "reads no more of the request; look at the server's log", [&](auto ended) {
        WithStream([&](auto& stream) { stream.async_write_some(asio::buffer(text.data() + sent, text.size() - sent), ended); });
      }));
      if (error_) return Broken("it read no more of the request");
      sent += bytes_;
    }
    return absl::OkStatus();
  }

  absl::StatusOr<HttpReply> Receive(const HttpCaller::OnPiece& on_piece) {
    ResponseReader reader({});
    HttpReply reply;
    while (reader.state() == ResponseReader::State::kHead || reader.state() == ResponseReader::State::kBody) {
      LIME_RETURN_IF_ERROR(Wait(IdleLimit(), "has been silent for too long; look at its log, or try again", [&](auto ended) {
        WithStream([&](auto& stream) { stream.async_read_some(asio::buffer(read_), ended); });
      }));
      std::string piece;
      if (bytes_ > 0) reader.Read(std::string_view(read_.data(), bytes_), piece);
      if (error_ == asio::error::eof)
        reader.ReadEnd();
      else if (error_)
        return Broken(error_ == asio::ssl::error::stream_truncated ? "it ended in its middle" : error_.message());
      if (reader.state() == ResponseReader::State::kBroken) return Broken(reader.what());
      if (reader.state() == ResponseReader::State::kHead) continue;
      if (reply.status == 0) reply = {.status = reader.status(), .headers = reader.headers(), .body = ""};
      LIME_RETURN_IF_ERROR(Take(piece, on_piece, reply));
    }
    Close();
    return reply;
  }

  absl::Status Take(const std::string& piece, const HttpCaller::OnPiece& on_piece, HttpReply& reply) const {
    if (on_piece && reply.is_stream()) return piece.empty() ? absl::OkStatus() : on_piece(piece);
    if (static_cast<Bytes>(reply.body.size() + piece.size()) > options_.max_body)
      return absl::ResourceExhaustedError(
          absl::StrCat("the answer of ", Url(), " has more than ", options_.max_body, " bytes; ask for less at once"));
    reply.body += piece;
    return absl::OkStatus();
  }

  Clock::time_point IdleLimit() const { return Clock::now() + absl::ToChronoNanoseconds(options_.idle); }
  absl::Status Broken(std::string_view what) const {
    return absl::UnavailableError(absl::StrCat("the answer of ", Url(), " broke off: ", Text(what), "; see whether the server still runs",
                                               tls_ ? "" : ", and whether it wants https://"));
  }

  const HttpCaller::Options& options_;
  const std::atomic<bool>* const cancel_;
  asio::io_context io_{1};  // its end waits for a resolver that still asks
  tcp::resolver resolver_;
  tcp::socket socket_;
  std::optional<asio::ssl::context> context_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
  Error error_;  // of the last wait
  size_t bytes_ = 0;
  std::array<char, kReadBytes> read_;
};

std::string OpenSslError() {
  char words[256] = {};
  ERR_error_string_n(ERR_get_error(), words, sizeof(words));
  ERR_clear_error();
  return words;
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> MakeTrust(const std::string& authorities) {
  ERR_clear_error();
  std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (context == nullptr || SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION) != 1)
    return absl::InternalError(absl::StrCat("OpenSSL cannot begin: ", OpenSslError()));
  SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  const int loaded = authorities.empty() ? SSL_CTX_set_default_verify_paths(context.get())
                                         : SSL_CTX_load_verify_locations(context.get(), authorities.c_str(), nullptr);
  if (loaded != 1) return Invalid("--tls-ca ", authorities, " cannot be used: ", OpenSslError(), "; give a file of certificates in PEM");
  return context;
}

}  // namespace

std::string_view HttpReply::header(std::string_view name) const {
  const std::string* const value = FindHeader(headers, name);
  return value == nullptr ? std::string_view() : *value;
}

bool HttpReply::is_stream() const {
  return status == 200 && absl::StartsWithIgnoreCase(Text(header("content-type")), "text/event-stream");
}

absl::StatusOr<std::unique_ptr<HttpCaller>> HttpCaller::Create(Options options) {
  for (const char c : options.api_key) {
    if (!absl::ascii_isgraph(static_cast<unsigned char>(c)))
      return Invalid("the API key has a character that a key cannot have; give it without blanks");
  }
  std::shared_ptr<SSL_CTX> trusted;
  if (options.url.tls) {
    LIME_ASSIGN_OR_RETURN(trusted, MakeTrust(options.authorities));
  }
  return std::make_unique<HttpCaller>(std::move(options), std::move(trusted));
}

absl::StatusOr<HttpReply> HttpCaller::Call(const HttpCall& call, const OnPiece& on_piece, const std::atomic<bool>* cancel) const {
  return OneCall(options_, trusted_, cancel).Run(call, on_piece);
}

}  // namespace lime
