// A client of HTTP for tests, plain or over TLS, that sends and reads the bytes that a test wants.
// Its calls block. A read that waits for half a minute fails the test.
#pragma once

#include <memory>
#include <string>
#include <string_view>

struct ssl_ctx_st;
struct ssl_st;

namespace lime {

class HttpClient {
 public:
  struct Options {
    bool tls = false;
    int receive_buffer_bytes = 0;  // 0: what the kernel likes
    int max_tls_version = 0;       // 0: any
  };
  explicit HttpClient(int port) : HttpClient(port, Options{}) {}
  HttpClient(int port, const Options& options);
  ~HttpClient();
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  bool connected() const { return connected_; }
  // False if the server has closed.
  bool Send(std::string_view bytes);
  // Without TLS: bytes until the kernel has taken none for half a second.
  void SendUntilItIsFull();
  // At most `most` bytes; "" at the end.
  std::string ReadSome(size_t most = 64 * 1024);
  std::string ReadToEnd();
  // Up to and with `words`; all up to the end if they do not come.
  std::string ReadUntil(std::string_view words);
  // A head, and a body by its Content-Length, its chunks (joined) or the end.
  struct Answer {
    int status = 0;
    std::string head, body;
    bool complete = false;  // the body has come to its end
  };
  Answer ReadAnswer(bool has_body = true);
  Answer Get(std::string_view path);
  bool HasBytes() const;  // some wait to be read
  void ShutDown();        // of writing
  void Close();
  std::string PeerName() const;  // the common name of the server's certificate

 private:
  int socket_ = -1;
  bool connected_ = false;
  std::shared_ptr<ssl_ctx_st> context_;
  std::shared_ptr<ssl_st> tls_;
  std::string read_;  // and not given yet
};

}  // namespace lime
