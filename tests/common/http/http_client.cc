#include "tests/common/http/http_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "planner/base/strings.h"

namespace lime {

HttpClient::HttpClient(int port, const Options& options) {
  socket_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience{.tv_sec = 30, .tv_usec = 0};
  ::setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  ::setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (options.receive_buffer_bytes > 0)
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &options.receive_buffer_bytes, sizeof(options.receive_buffer_bytes));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  if (!connected_ || !options.tls) return;
  context_.reset(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (options.max_tls_version != 0) {
    SSL_CTX_set_security_level(context_.get(), 0);
    SSL_CTX_set_min_proto_version(context_.get(), 0);
    SSL_CTX_set_max_proto_version(context_.get(), options.max_tls_version);
  }
  tls_.reset(SSL_new(context_.get()), SSL_free);
  SSL_set_fd(tls_.get(), socket_);
  connected_ = SSL_connect(tls_.get()) == 1;
}

HttpClient::~HttpClient() {
  Close();
}

bool HttpClient::Send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = tls_ ? SSL_write(tls_.get(), bytes.data(), static_cast<int>(bytes.size()))
                              : ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

void HttpClient::SendUntilItIsFull() {
  const std::string bytes(64 * 1024, 'x');
  pollfd room{.fd = socket_, .events = POLLOUT, .revents = 0};
  while (::poll(&room, 1, 500) == 1 && ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0) {
  }
}

std::string HttpClient::ReadSome(size_t most) {
  std::string bytes(std::min(most, read_.size()), '\0');
  if (!bytes.empty()) {
    bytes = read_.substr(0, most);
    read_.erase(0, bytes.size());
    return bytes;
  }
  most = std::min<size_t>(most, 64 * 1024);
  bytes.resize(most);
  const auto read = [&] {
    return tls_ ? SSL_read(tls_.get(), bytes.data(), static_cast<int>(most)) : ::recv(socket_, bytes.data(), most, 0);
  };
  ssize_t got = read();
  while (!tls_ && got < 0 && errno == EINTR) got = read();  // a read with a timeout is not restarted after a signal
  EXPECT_FALSE(!tls_ && got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) << "nothing came for half a minute";
  bytes.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return bytes;
}

std::string HttpClient::ReadToEnd() {
  std::string all;
  for (std::string some = ReadSome(); !some.empty(); some = ReadSome()) all += some;
  return all;
}

std::string HttpClient::ReadUntil(std::string_view words) {
  std::string all;
  for (std::string some = ReadSome(); !some.empty(); some = ReadSome()) {
    all += some;
    const size_t at = all.find(words);
    if (at == std::string::npos) continue;
    read_.insert(0, all.substr(at + words.size()));
    return all.substr(0, at + words.size());
  }
  return all;
}

HttpClient::Answer HttpClient::ReadAnswer(bool has_body) {
  Answer answer{.head = ReadUntil("\r\n\r\n")};
  if (!absl::SimpleAtoi(Text(std::string_view(answer.head).substr(std::min<size_t>(9, answer.head.size()), 3)), &answer.status))
    return answer;
  const std::string head = absl::AsciiStrToLower(answer.head);
  const auto length = head.find("content-length: ");
  if (!has_body || answer.status == 204 || answer.status == 304) {
    answer.complete = true;
  } else if (length != std::string::npos) {
    const size_t size = std::stoul(head.substr(length + 16));
    while (answer.body.size() < size) {
      const std::string some = ReadSome(size - answer.body.size());
      if (some.empty()) return answer;
      answer.body += some;
    }
    answer.complete = true;
  } else if (head.find("transfer-encoding: chunked") != std::string::npos) {
    for (;;) {
      const std::string line = ReadUntil("\r\n");
      if (!line.ends_with("\r\n")) return answer;
      size_t size = std::stoul(line, nullptr, 16) + 2;
      std::string chunk;
      while (chunk.size() < size) {
        const std::string some = ReadSome(size - chunk.size());
        if (some.empty()) return answer;
        chunk += some;
      }
      answer.body += chunk.substr(0, size - 2);
      if (size == 2) break;
    }
    answer.complete = true;
  } else {
    answer.body = ReadToEnd();
    answer.complete = true;
  }
  return answer;
}

HttpClient::Answer HttpClient::Get(std::string_view path) {
  Send(absl::StrCat("GET ", Text(path), " HTTP/1.1\r\nHost: localhost\r\n\r\n"));
  return ReadAnswer();
}

bool HttpClient::HasBytes() const {
  pollfd asked{.fd = socket_, .events = POLLIN, .revents = 0};
  return !read_.empty() || ::poll(&asked, 1, 0) == 1;
}

void HttpClient::ShutDown() {
  ::shutdown(socket_, SHUT_WR);
}

void HttpClient::Close() {
  tls_.reset();
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
}

std::string HttpClient::PeerName() const {
  const std::unique_ptr<X509, decltype(&X509_free)> certificate(SSL_get1_peer_certificate(tls_.get()), X509_free);
  char name[200] = {};
  if (certificate != nullptr) X509_NAME_get_text_by_NID(X509_get_subject_name(certificate.get()), NID_commonName, name, sizeof(name));
  return name;
}

}  // namespace lime
