// Serves HTTP/1.1 and HTTP/1.0, plain or over TLS, to one owner.
//
// Thread: one of its own runs all sockets and timers, parses, and calls the handler. Nothing is kept
// of a connection or a request that has ended.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/http/answer.h"
#include "common/http/connection.h"
#include "common/http/http_message.h"
#include "common/http/tls_files.h"
#include "planner/base/status.h"

namespace lime {

// The owner of the server. Thread: all calls come on the server's. A call delays all connections
// until it returns, so it must not block.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;

  // The head of a request with a body is there. An answer refuses it: the body is not read, and the
  // connection ends. Nothing: the body is read.
  virtual std::optional<HttpResponse> OnHead(const HttpRequest& /*request*/) { return std::nullopt; }
  // A request, with its body. It may be answered within the call or later.
  virtual void OnRequest(HttpRequest request, std::shared_ptr<HttpAnswer> answer) = 0;
  // The answer that the server sends instead of the handler. `request` is null if it is not known.
  virtual HttpResponse OnRefusal(const HttpRefusal& refusal, const HttpRequest* request) = 0;
};

class HttpServer {
 public:
  struct Options {
    std::string host = "127.0.0.1";  // an address, or a name of this machine; the first address counts
    int port = 0;                    // 0: any
    int max_connections = 512;       // more wait in the backlog of the kernel
    int backlog = 1024;
    // Bytes that the kernel keeps for a client that reads slowly; 0: what it likes, up to megabytes.
    int send_buffer_bytes = 256 * 1024;
    HttpConnection::Limits limits;
    std::optional<TlsFiles> tls;
  };

  // Listens and serves when this returns. InvalidArgument: the host or the TLS files cannot be used.
  // Unavailable: the address is taken, or this user may not listen there.
  // REQUIRES: `handler` outlives the server
  static absl::StatusOr<std::unique_ptr<HttpServer>> Create(const Options& options, HttpHandler& handler);
  // Stops with no time left.
  virtual ~HttpServer() = default;

  virtual const std::string& host() const = 0;  // the address in digits, without brackets
  virtual int port() const = 0;
  virtual int64_t connections() const = 0;  // that are open
  // Reads the TLS files again, for connections that begin from now on. After an error the old ones
  // stay in use.  REQUIRES: Options::tls
  virtual absl::Status ReloadTls() = 0;
  // Accepts no connection and no further request. Returns when the last answer has been sent, or at
  // the deadline, at which the connections break. If called several times, the earliest deadline
  // counts.  REQUIRES: not called on the server's thread
  virtual void Stop(absl::Time deadline) = 0;
};

}  // namespace lime
