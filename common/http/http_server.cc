#include "common/http/http_server.h"

#include <openssl/ssl.h>
#include <poll.h>

#include <array>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/error.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <thread>
#include <utility>  // before asio: Boost 1.74 uses std::exchange without it

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/http/inbox.h"
#include "common/input/host_port.h"

namespace lime {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

constexpr size_t kReadBytes = 16 * 1024;
constexpr absl::Duration kLookEvery = absl::Milliseconds(250);    // for the end of a client that is not read
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);  // while descriptors are missing

// The time of day that never goes back: that at which the process asked first, and the steady clock.
absl::Time Now() {
  using Clock = std::chrono::steady_clock;
  static const std::pair<absl::Time, Clock::time_point> begin{absl::Now(), Clock::now()};
  return begin.first + absl::FromChrono(Clock::now() - begin.second);
}

void SetTimer(asio::steady_timer& timer, absl::Time at) {
  timer.expires_after(absl::ToChronoNanoseconds(std::max(at - Now(), absl::ZeroDuration())));
}

std::shared_ptr<asio::ssl::context> ContextOf(const std::shared_ptr<SSL_CTX>& loaded) {
  SSL_CTX_up_ref(loaded.get());  // the context gives one back
  return std::make_shared<asio::ssl::context>(loaded.get());
}

std::string AddressOf(const tcp::endpoint& endpoint) {
  const asio::ip::address address = endpoint.address();
  if (address.is_v6() && address.to_v6().is_v4_mapped()) return asio::ip::make_address_v4(asio::ip::v4_mapped, address.to_v6()).to_string();
  return address.to_string();
}

HttpConnection::Ends EndsOf(const tcp::socket& socket) {
  Error ignored;  // a client that has left has no address
  const tcp::endpoint local = socket.local_endpoint(ignored), remote = socket.remote_endpoint(ignored);
  return {.local = AddressOf(local), .remote = AddressOf(remote)};
}

// Whether the client has closed its sending direction or reset the connection, even if the kernel
// still has bytes of it.
bool HasLeft(tcp::socket& socket) {
  pollfd look{.fd = socket.native_handle(), .events = POLLRDHUP, .revents = 0};
  return ::poll(&look, 1, /*timeout=*/0) > 0;
}

// What sessions need of the server.  Thread: that of the loop.
class Sessions {
 public:
  virtual ~Sessions() = default;
  virtual HttpHandler& handler() = 0;
  virtual const std::shared_ptr<HttpInbox>& inbox() = 0;
  virtual void RunCalls() = 0;
  virtual void OnClosed(uint64_t session) = 0;
};

// A socket, its timer, and the connection that decides what they do.
//
// Invariant: at most one read and one write are pending, and a read is pending whenever the
// connection wants bytes, so that the end of the client is seen at once. While the connection reads
// nothing, its timer looks for that end.
class Session final : public std::enable_shared_from_this<Session>, private HttpConnection::Owner {
 public:
  Session(uint64_t id, Sessions& sessions, tcp::socket socket, const HttpServer::Options& options, asio::ssl::context* tls)
      : id_(id),
        sessions_(sessions),
        socket_(std::move(socket)),
        timer_(socket_.get_executor()),
        handshake_until_(Now() + options.limits.head),
        connection_(options.limits, EndsOf(socket_), *this, Now()) {
    if (tls != nullptr) tls_.emplace(socket_, *tls);
  }

  void Start(int send_buffer_bytes) {
    Error ignored;
    socket_.set_option(tcp::no_delay(true), ignored);
    if (send_buffer_bytes > 0) socket_.set_option(asio::socket_base::send_buffer_size(send_buffer_bytes), ignored);
    ready_ = !tls_;
    if (tls_) {
      tls_->async_handshake(asio::ssl::stream_base::server, [self = shared_from_this()](const Error& error) {
        self->ready_ = !error;
        if (error) self->connection_.OnReset(Now());
        self->Pump();
      });
    }
    Pump();
  }

  // Carries out what the connection wants.
  void Pump() {
    if (done_) return;
    if (connection_.closed()) return Finish();
    if (ready_ && !writing_) Write();
    if (ready_ && !reading_ && connection_.wants_bytes()) Read();
    if (ready_ && !shut_ && connection_.wants_shutdown()) Shut();
    SetDeadline();
  }

  HttpConnection& connection() { return connection_; }
  const std::shared_ptr<HttpExchange>& exchange() const { return exchange_; }

 private:
  std::optional<HttpResponse> OnHead(const HttpRequest& request) override { return sessions_.handler().OnHead(request); }
  void OnRequest(HttpRequest request) override {
    exchange_ = std::make_shared<HttpExchange>(id_);
    sessions_.handler().OnRequest(std::move(request), MakePostedAnswer(sessions_.inbox(), exchange_));
  }
  HttpResponse OnRefusal(const HttpRefusal& refusal, const HttpRequest* request) override {
    return sessions_.handler().OnRefusal(refusal, request);
  }
  void OnEnd(HttpEnd end) override {
    const std::shared_ptr<HttpExchange> ended = std::move(exchange_);
    exchange_ = nullptr;
    ended->end = end;
    ended->on_wake = nullptr;
    if (ended->ended) std::exchange(ended->ended, nullptr)(end);
  }

  // An event of the socket or the timer. Calls that the handler made meanwhile are carried out, too.
  template <typename Act>
  void Handle(Act act) {
    if (done_) return;
    act();
    Pump();
    sessions_.RunCalls();
  }

  template <typename Act>
  void WithStream(Act act) {
    if (tls_ && !raw_) return act(*tls_);
    act(socket_);
  }

  void Read() {
    reading_ = true;
    WithStream([this](auto& stream) {
      stream.async_read_some(asio::buffer(read_),
                             [self = shared_from_this()](const Error& error, size_t bytes) { self->OnRead(error, bytes); });
    });
  }
  void OnRead(const Error& error, size_t bytes) {
    reading_ = false;
    Handle([&] {
      if (bytes > 0) connection_.OnBytes(std::string_view(read_.data(), bytes), Now());
      // Many clients of TLS close without its good-bye.
      if (error == asio::error::eof || error == asio::ssl::error::stream_truncated) return connection_.OnEof(Now());
      // OpenSSL reads nothing after its good-bye. What the client still sends is dropped anyway.
      if (error && tls_ && shut_ && !raw_) {
        raw_ = true;
      } else if (error) {
        connection_.OnReset(Now());
      }
    });
  }

  void Write() {
    const std::string_view bytes = connection_.ToWrite();
    if (bytes.empty()) return;
    writing_ = true;
    WithStream([&](auto& stream) {
      stream.async_write_some(asio::buffer(bytes.data(), bytes.size()),
                              [self = shared_from_this()](const Error& error, size_t written) { self->OnWritten(error, written); });
    });
  }
  void OnWritten(const Error& error, size_t bytes) {
    writing_ = false;
    Handle([&] {
      if (error) return connection_.OnReset(Now());
      connection_.OnWritten(bytes, Now());
    });
  }

  // Says to the client that nothing follows. The connection goes on reading.
  void Shut() {
    shut_ = true;
    if (tls_) return tls_->async_shutdown([self = shared_from_this()](const Error&) {});
    Error ignored;
    socket_.shutdown(tcp::socket::shutdown_send, ignored);
  }

  void SetDeadline() {
    absl::Time deadline = ready_ ? connection_.deadline() : handshake_until_;
    if (ready_ && connection_.wants_look()) deadline = std::min(deadline, Now() + kLookEvery);
    if (deadline == absl::InfiniteFuture() || timer_at_ <= deadline) return;  // an early timer looks again
    timer_at_ = deadline;
    SetTimer(timer_, deadline);
    timer_.async_wait([self = shared_from_this()](const Error& error) {
      if (error) return;
      self->timer_at_ = absl::InfiniteFuture();
      self->Handle([&] {
        if (self->ready_ && self->connection_.wants_look() && HasLeft(self->socket_)) return self->connection_.OnEof(Now());
        if (self->ready_) return self->connection_.OnTime(Now());
        if (Now() >= self->handshake_until_) self->connection_.OnReset(Now());
      });
    });
  }

  void Finish() {
    done_ = true;
    Error ignored;
    if (connection_.abortive()) socket_.set_option(asio::socket_base::linger(true, 0), ignored);
    socket_.close(ignored);
    timer_.cancel();
    sessions_.OnClosed(id_);
  }

  const uint64_t id_;
  Sessions& sessions_;
  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
  asio::steady_timer timer_;
  absl::Time timer_at_ = absl::InfiniteFuture();
  const absl::Time handshake_until_;
  HttpConnection connection_;
  std::shared_ptr<HttpExchange> exchange_;  // of the request that is answered
  bool ready_ = false;                      // the handshake of TLS is over
  bool reading_ = false, writing_ = false, done_ = false;
  bool shut_ = false;  // the sending direction is closed
  bool raw_ = false;   // bytes of TLS are read without OpenSSL
  std::array<char, kReadBytes> read_;
};

class Server final : public HttpServer, private Sessions {
 public:
  Server(const Options& options, HttpHandler& handler)
      : options_(options),
        handler_(handler),
        inbox_(std::make_shared<HttpInbox>()),
        acceptor_(io_),
        accept_timer_(io_),
        stop_timer_(io_),
        calls_event_(io_) {}
  ~Server() override {
    if (!thread_.joinable()) return;
    Stop(absl::InfinitePast());
    thread_.join();
  }

  absl::Status Begin() {
    if (options_.tls) {
      LIME_ASSIGN_OR_RETURN(const std::shared_ptr<SSL_CTX> loaded, LoadTls(*options_.tls));
      tls_ = ContextOf(loaded);
    }
    LIME_RETURN_IF_ERROR(Listen());
    LIME_RETURN_IF_ERROR(inbox_->Open());
    calls_event_.assign(inbox_->event());
    WaitForCalls();
    Accept();
    thread_ = std::thread([this] { Run(); });
    return absl::OkStatus();
  }

  const std::string& host() const override { return host_; }
  int port() const override { return port_; }
  int64_t connections() const override { return connections_.load(std::memory_order_relaxed); }

  absl::Status ReloadTls() override {
    LIME_ASSIGN_OR_RETURN(const std::shared_ptr<SSL_CTX> loaded, LoadTls(*options_.tls));
    asio::post(io_, [this, context = ContextOf(loaded)] { tls_ = context; });
    return absl::OkStatus();
  }

  void Stop(absl::Time deadline) override {
    asio::post(io_, [this, deadline] { BeginStop(deadline); });
    over_.WaitForNotification();
  }

 private:
  HttpHandler& handler() override { return handler_; }
  const std::shared_ptr<HttpInbox>& inbox() override { return inbox_; }

  absl::Status Listen() {
    const std::string place = AddressText({.host = options_.host, .port = options_.port});
    Error error;
    tcp::resolver resolver(io_);
    const auto found = resolver.resolve(options_.host, std::to_string(options_.port), tcp::resolver::numeric_service, error);
    if (error || found.empty())
      return Invalid("the host ", options_.host, " is not known: ", error.message(), "; give an address of this machine");
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(options_.backlog, error);
    if (error) return absl::UnavailableError(absl::StrCat("cannot listen on ", place, ": ", error.message(), "; choose another address"));
    const tcp::endpoint bound = acceptor_.local_endpoint(error);
    host_ = bound.address().to_string();
    port_ = bound.port();
    return absl::OkStatus();
  }

  void Run() {
    io_.run();
    inbox_->Close(calls_);
    for (HttpInbox::Call& call : calls_) RunCall(call);  // all requests have ended
    calls_.clear();
    over_.Notify();
  }

  void Accept() {
    if (accepting_ || stopping_ || static_cast<int>(sessions_.size()) >= options_.max_connections) return;
    accepting_ = true;
    acceptor_.async_accept([this](const Error& error, tcp::socket socket) {
      accepting_ = false;
      if (stopping_) return;
      if (!error) {
        Add(std::move(socket));
        return Accept();
      }
      // Descriptors or memory are missing, or the client has left.
      accepting_ = true;
      SetTimer(accept_timer_, Now() + kAcceptPause);
      accept_timer_.async_wait([this](const Error&) {
        accepting_ = false;
        Accept();
      });
    });
  }

  void Add(tcp::socket socket) {
    const uint64_t id = ++last_session_;
    const auto session = std::make_shared<Session>(id, static_cast<Sessions&>(*this), std::move(socket), options_, tls_.get());
    sessions_.emplace(id, session);
    connections_.store(static_cast<int64_t>(sessions_.size()), std::memory_order_relaxed);
    session->Start(options_.send_buffer_bytes);
  }

  void OnClosed(uint64_t session) override {
    sessions_.erase(session);
    connections_.store(static_cast<int64_t>(sessions_.size()), std::memory_order_relaxed);
    Accept();
    EndIfDone();
  }

  void WaitForCalls() {
    calls_event_.async_wait(asio::posix::descriptor_base::wait_read, [this](const Error& error) {
      if (error) return;
      RunCalls();
      WaitForCalls();
    });
  }

  // Calls may bring further ones: handlers answer within OnRequest, OnEnd wakes other answers.
  void RunCalls() override {
    if (running_calls_) return;
    running_calls_ = true;
    for (inbox_->Take(calls_); !calls_.empty(); inbox_->Take(calls_)) {
      for (HttpInbox::Call& call : calls_) RunCall(call);
      calls_.clear();
    }
    running_calls_ = false;
  }

  void RunCall(HttpInbox::Call& call) {
    if (!call.act) call.exchange->woken.store(false);
    const auto found = sessions_.find(call.exchange->session);
    const std::shared_ptr<Session> session =
        found != sessions_.end() && found->second->exchange() == call.exchange ? found->second : nullptr;
    if (call.act) {
      call.act(*call.exchange, session == nullptr ? nullptr : &session->connection(), Now());
    } else if (session != nullptr) {
      if (call.exchange->on_wake)
        call.exchange->on_wake();
      else
        call.exchange->has_early_wake = true;
      session->connection().Wake(Now());
    }
    if (session != nullptr) session->Pump();
  }

  template <typename Act>
  void ForAll(Act act) {
    const std::map<uint64_t, std::shared_ptr<Session>> all = sessions_;  // they leave sessions_ meanwhile
    for (const auto& [id, session] : all) {
      act(session->connection());
      session->Pump();
    }
    RunCalls();
  }

  void BeginStop(absl::Time deadline) {
    if (over_began_) return;
    if (!stopping_) {
      stopping_ = true;
      Error ignored;
      acceptor_.close(ignored);
      accept_timer_.cancel();
      ForAll([](HttpConnection& connection) { connection.Retire(Now()); });
      if (over_began_) return;  // no connection was answering; a timer would keep the loop going
    }
    stop_at_ = std::min(stop_at_, deadline);
    if (stop_at_ <= Now()) {
      ForAll([](HttpConnection& connection) { connection.Stop(); });
    } else if (stop_at_ != absl::InfiniteFuture()) {
      SetTimer(stop_timer_, stop_at_);
      stop_timer_.async_wait([this](const Error& error) {
        if (!error) ForAll([](HttpConnection& connection) { connection.Stop(); });
      });
    }
    EndIfDone();
  }

  void EndIfDone() {
    if (!stopping_ || !sessions_.empty() || over_began_) return;
    over_began_ = true;
    stop_timer_.cancel();
    Error ignored;
    calls_event_.cancel(ignored);
    calls_event_.release();  // the inbox closes it
  }

  const Options options_;
  HttpHandler& handler_;
  const std::shared_ptr<HttpInbox> inbox_;
  std::string host_;
  int port_ = 0;
  std::atomic<int64_t> connections_ = 0;
  absl::Notification over_;

  // Thread: that of the loop.
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::steady_timer accept_timer_, stop_timer_;
  asio::posix::stream_descriptor calls_event_;
  std::shared_ptr<asio::ssl::context> tls_;
  std::map<uint64_t, std::shared_ptr<Session>> sessions_;
  uint64_t last_session_ = 0;
  bool accepting_ = false, stopping_ = false, over_began_ = false, running_calls_ = false;
  absl::Time stop_at_ = absl::InfiniteFuture();
  std::vector<HttpInbox::Call> calls_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Create(const Options& options, HttpHandler& handler) {
  auto server = std::make_unique<Server>(options, handler);
  LIME_RETURN_IF_ERROR(server->Begin());
  return server;
}

}  // namespace lime
