#include "proto/diagnosis/prober.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/machine/files.h"
#include "proto/address.h"

namespace lime {
namespace {

// The beginning of every HTTP/2 client, and an empty SETTINGS frame.
constexpr std::string_view kHttp2Opening("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", 33);
constexpr size_t kPeek = 64;
// How often a device is probed that closes connections without an answer, and the pause between.
constexpr int kLooks = 3;
constexpr absl::Duration kLookAgain = absl::Milliseconds(250);

struct FreeSsl {
  void operator()(SSL* what) const { SSL_free(what); }
  void operator()(SSL_CTX* what) const { SSL_CTX_free(what); }
  void operator()(X509* what) const { X509_free(what); }
  void operator()(EVP_PKEY* what) const { EVP_PKEY_free(what); }
  void operator()(BIO* what) const { BIO_free_all(what); }
};
template <typename T>
using Owned = std::unique_ptr<T, FreeSsl>;

// Whether the socket becomes ready before `until`.
bool Await(const FileDescriptor& socket, short events, absl::Time until) {
  while (absl::Now() < until) {  // whatever else arrives
    const int64_t remaining = absl::ToInt64Milliseconds(until - absl::Now());
    struct pollfd event = {.fd = socket.get(), .events = events, .revents = 0};
    const int ready = poll(&event, 1, static_cast<int>(std::max<int64_t>(0, remaining)));
    if (ready > 0) return true;
    if (ready == 0 || errno != EINTR) return false;
  }
  return false;
}

// Connects before `until`. Returns errno if that fails.
int Connect(const SocketAddress& to, absl::Time until, FileDescriptor& socket) {
  socket = FileDescriptor(::socket(to.get()->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid()) return errno;
  if (connect(socket.get(), to.get(), to.length) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  if (!Await(socket, POLLOUT, until)) return ETIMEDOUT;
  int error = 0;
  socklen_t bytes = sizeof(error);
  return getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}

bool IsSettingsFrame(std::string_view bytes) {
  return bytes.size() >= 9 && bytes[0] == 0 && bytes[3] == 4 && bytes.substr(5, 4) == std::string_view("\0\0\0\0", 4);
}

bool IsTls(std::string_view bytes) {
  return bytes.size() >= 2 && (bytes[0] == 0x16 || bytes[0] == 0x15) && bytes[1] == 0x03;
}

// The first bytes that arrive. They stay in the socket.
Probed::Answer Peek(const FileDescriptor& socket, absl::Time until, std::string& said) {
  if (!Await(socket, POLLIN, until)) return Probed::Answer::kNothing;
  char bytes[kPeek];
  const ssize_t count = recv(socket.get(), bytes, sizeof(bytes), MSG_PEEK);
  if (count <= 0) return Probed::Answer::kClosed;
  said.assign(bytes, static_cast<size_t>(count));
  if (IsSettingsFrame(said)) return Probed::Answer::kHttp2;
  return IsTls(said) ? Probed::Answer::kTls : Probed::Answer::kOther;
}

Owned<SSL_CTX> ContextOf(const ClusterKeys& keys) {
  Owned<SSL_CTX> context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr || keys.empty()) return context;
  const Owned<BIO> certificate_text(BIO_new_mem_buf(keys.certificate.data(), static_cast<int>(keys.certificate.size()))),
      key_text(BIO_new_mem_buf(keys.key.data(), static_cast<int>(keys.key.size())));
  const Owned<X509> certificate(PEM_read_bio_X509(certificate_text.get(), nullptr, nullptr, nullptr));
  const Owned<EVP_PKEY> key(PEM_read_bio_PrivateKey(
      key_text.get(), nullptr, [](char*, int, int, void*) { return -1; }, nullptr));
  if (certificate != nullptr) SSL_CTX_use_certificate(context.get(), certificate.get());
  if (key != nullptr) SSL_CTX_use_PrivateKey(context.get(), key.get());
  return context;
}

// TLS over a socket that we read ourselves: bytes can be examined first, and a lost connection
// raises no SIGPIPE.
class TlsClient {
 public:
  TlsClient(const ProbeTarget& target, const FileDescriptor& socket, absl::Time until)
      : socket_(socket), until_(until), context_(ContextOf(target.keys)), tls_(context_ == nullptr ? nullptr : SSL_new(context_.get())) {
    if (tls_ == nullptr) return;
    SSL_set_bio(tls_.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_tlsext_host_name(tls_.get(), target.name.c_str());
    static constexpr unsigned char kHttp2[] = {2, 'h', '2'};
    SSL_set_alpn_protos(tls_.get(), kHttp2, sizeof(kHttp2));
    SSL_set_connect_state(tls_.get());
  }

  bool valid() const { return tls_ != nullptr; }
  SSL* get() const { return tls_.get(); }
  // Whether the connection has ended where data was due.
  bool closed() const { return closed_; }

  // Sends the client's first message. Reads nothing.
  void Begin() {
    (void)SSL_do_handshake(tls_.get());
    (void)Flush();
  }
  // Repeats a step until it succeeds, fails, or time is over. Returns whether it succeeded.
  template <typename Step>
  bool Finish(Step step) {
    while (true) {
      const int result = step(tls_.get());
      const int why = SSL_get_error(tls_.get(), result);
      if (!Flush() && result <= 0) return false;
      if (result > 0) return true;
      if (why != SSL_ERROR_WANT_READ || !Receive()) return false;
    }
  }

 private:
  bool Flush() {
    char bytes[4096];
    for (int count = 0; (count = BIO_read(SSL_get_wbio(tls_.get()), bytes, sizeof(bytes))) > 0;) {
      for (int sent = 0; sent < count;) {
        const ssize_t now = send(socket_.get(), bytes + sent, static_cast<size_t>(count - sent), MSG_NOSIGNAL);
        if (now < 0 && errno != EAGAIN) return closed_ = true, false;
        if (now < 0 && !Await(socket_, POLLOUT, until_)) return false;
        sent += static_cast<int>(std::max<ssize_t>(0, now));
      }
    }
    return true;
  }
  bool Receive() {
    if (!Await(socket_, POLLIN, until_)) return false;
    char bytes[4096];
    const ssize_t count = recv(socket_.get(), bytes, sizeof(bytes), 0);
    closed_ = count <= 0;
    return !closed_ && BIO_write(SSL_get_rbio(tls_.get()), bytes, static_cast<int>(count)) == count;
  }

  const FileDescriptor& socket_;
  const absl::Time until_;
  const Owned<SSL_CTX> context_;
  const Owned<SSL> tls_;
  bool closed_ = false;
};

std::optional<Probed::Peer> PeerOf(SSL* tls, const ClusterKeys& keys, std::time_t now) {
  const Owned<X509> certificate(SSL_get1_peer_certificate(tls));
  const Owned<BIO> text(BIO_new(BIO_s_mem()));
  if (certificate == nullptr || text == nullptr || PEM_write_bio_X509(text.get(), certificate.get()) != 1) return std::nullopt;
  char* data = nullptr;
  const long bytes = BIO_get_mem_data(text.get(), &data);
  const std::string pem(data, static_cast<size_t>(bytes));
  absl::StatusOr<Certificate> read = ReadCertificate(pem);
  if (!read.ok()) return std::nullopt;
  return Probed::Peer{.certificate = *std::move(read), .pem = pem, .trust = Judge(keys.authority, pem, now)};
}

Probed::Verdict VerdictOfError() {
  switch (ERR_GET_REASON(ERR_peek_last_error())) {
    case SSL_R_TLSV1_ALERT_UNKNOWN_CA:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
      return Probed::Verdict::kUnknown;
    case SSL_R_SSLV3_ALERT_CERTIFICATE_EXPIRED:
      return Probed::Verdict::kDates;
    default:
      return Probed::Verdict::kRefused;
  }
}

// A conversation on a connected socket.
class Conversation {
 public:
  Conversation(const ProbeTarget& target, const FileDescriptor& socket, absl::Time until, Probed& probed)
      : target_(target), socket_(socket), until_(until), probed_(probed) {}

  void Plainly() {
    (void)send(socket_.get(), kHttp2Opening.data(), kHttp2Opening.size(), MSG_NOSIGNAL);
    PeekAtAnswer();
  }

  void OverTls() {
    ERR_clear_error();
    TlsClient tls(target_, socket_, until_);
    if (!tls.valid()) return;
    tls.Begin();
    PeekAtAnswer();
    if (probed_.answer != Probed::Answer::kTls) return;
    const bool shaken = tls.Finish([](SSL* ssl) { return SSL_do_handshake(ssl); });
    probed_.peer = PeerOf(tls.get(), target_.keys, probed_.now);
    probed_.verdict = shaken ? Talk(tls) : VerdictOfError();
    probed_.closed = tls.closed();
    ERR_clear_error();
  }

 private:
  void PeekAtAnswer() {
    probed_.answer = Peek(socket_, until_, probed_.said);
    probed_.closed = probed_.answer == Probed::Answer::kClosed;
  }
  // With TLS 1.3, only this tells a client whether its certificate was accepted.
  static Probed::Verdict Talk(TlsClient& tls) {
    char bytes[kPeek];
    const bool accepted = tls.Finish([](SSL* ssl) {
      return SSL_write(ssl, kHttp2Opening.data(), static_cast<int>(kHttp2Opening.size()));
    }) && tls.Finish([&](SSL* ssl) { return SSL_read(ssl, bytes, sizeof(bytes)); });
    return accepted ? Probed::Verdict::kAccepted : VerdictOfError();
  }

  const ProbeTarget& target_;
  const FileDescriptor& socket_;
  const absl::Time until_;
  Probed& probed_;
};

std::optional<Hello> AskHelloAt(const SocketAddress& to, absl::Duration patience) {
  const FileDescriptor socket(::socket(to.get()->sa_family, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.valid() || connect(socket.get(), to.get(), to.length) != 0) return std::nullopt;
  HelloNonce nonce = {};
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) return std::nullopt;
  const HelloPacket question = HelloQuestion(nonce);
  for (int attempt = 0; attempt < 2; ++attempt) {
    (void)send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL);
    for (const absl::Time until = absl::Now() + patience / 2; Await(socket, POLLIN, until);) {
      std::byte packet[kHelloBytes + 1];
      const ssize_t bytes = recv(socket.get(), packet, sizeof(packet), 0);
      if (bytes < 0) return std::nullopt;  // its machine reports that nobody listens
      if (std::optional<Hello> hello = ReadHello(std::span(packet, static_cast<size_t>(bytes)), nonce)) return hello;
    }
  }
  return std::nullopt;
}

// Connects to the first address that accepts; else returns the error of the first one.
int ConnectToAny(const std::vector<SocketAddress>& addresses, absl::Duration patience, FileDescriptor& socket, SocketAddress& at) {
  int first = 0;
  for (const SocketAddress& each : addresses) {
    at = each;
    const int error = Connect(each, absl::Now() + patience / static_cast<double>(addresses.size()), socket);
    if (error == 0) return 0;
    if (first == 0) first = error;
  }
  return first;
}

absl::StatusOr<std::vector<SocketAddress>> ResolveTarget(const ProbeTarget& target, const ProbePatience& patience) {
  LIME_ASSIGN_OR_RETURN(const HostPort parsed, ParseAddress(target.address));
  return Resolve(parsed, patience.resolve);
}

}  // namespace

Probed Probe(const ProbeTarget& target, const ProbePatience& patience) {
  Probed probed{.now = std::time(nullptr)};
  const absl::StatusOr<std::vector<SocketAddress>> resolved = ResolveTarget(target, patience);
  if (!resolved.ok()) return probed.unresolved = std::string(resolved.status().message()), probed;
  FileDescriptor socket;
  SocketAddress at;
  probed.connect_error = ConnectToAny(*resolved, patience.connect, socket, at);
  probed.closed = probed.connect_error == ECONNRESET;
  if (probed.connect_error != 0) return probed;
  const absl::Time until = absl::Now() + patience.talk;
  const auto talk = [&](bool with_keys) {
    Conversation conversation(target, socket, until, probed);
    with_keys ? conversation.OverTls() : conversation.Plainly();
  };
  talk(!target.keys.empty());
  if (probed.answer == Probed::Answer::kClosed) {
    // A TLS server silently closes a connection that begins otherwise, so try the other way too. A
    // daemon that has just ended refuses this connection.
    probed.connect_error = Connect(at, until, socket);
    if (probed.connect_error != 0) return probed;
    talk(target.keys.empty());
  }
  if (!probed.peer) return probed;
  probed.hello = AskHelloAt(at, patience.hello);
  if (probed.hello) probed.peer->trust_there = Judge(target.keys.authority, probed.peer->pem, probed.hello->clock);
  return probed;
}

Diagnosis FindFault(const ProbeTarget& target, const ProbePatience& patience) {
  for (int look = 1;; ++look) {
    const Probed probed = Probe(target, patience);
    Diagnosis diagnosis = Diagnose(target, probed);
    if (!probed.closed || !diagnosis.lasts(/*expected=*/false) || look == kLooks) return diagnosis;
    absl::SleepFor(kLookAgain);
  }
}

std::optional<Hello> AskHello(const ProbeTarget& target, const ProbePatience& patience) {
  const absl::StatusOr<std::vector<SocketAddress>> resolved = ResolveTarget(target, patience);
  if (!resolved.ok()) return std::nullopt;
  for (const SocketAddress& each : *resolved) {
    if (std::optional<Hello> hello = AskHelloAt(each, patience.hello)) return hello;
  }
  return std::nullopt;
}

}  // namespace lime
