// The server over real sockets of loopback. What a connection decides is in connection_test.cc.
#include "common/http/http_server.h"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/http/http_client.h"
#include "tests/common/http/test_handler.h"
#include "tests/skips.h"

namespace lime {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Endless, in pieces of 64 KiB; counts what was taken of it.
class Endless final : public BodySource {
 public:
  explicit Endless(std::atomic<int64_t>& taken) : taken_(taken) {}
  bool Pull(std::string& out) override {
    out.append(64 * 1024, 'x');
    taken_ += 64 * 1024;
    return false;
  }
  void OnSilence(std::string&) override {}

 private:
  std::atomic<int64_t>& taken_;
};

// What other threads put in.
class Channel {
 public:
  void Put(const std::string& text, bool last = false) {
    const absl::MutexLock lock(&mutex_);
    text_ += text;
    last_ = last;
  }
  bool Take(std::string& out) {
    const absl::MutexLock lock(&mutex_);
    out += std::exchange(text_, "");
    return last_;
  }

 private:
  absl::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_);
  bool last_ ABSL_GUARDED_BY(mutex_) = false;
};
class ChannelSource final : public BodySource {
 public:
  explicit ChannelSource(std::shared_ptr<Channel> channel) : channel_(std::move(channel)) {}
  bool Pull(std::string& out) override { return channel_->Take(out); }
  void OnSilence(std::string& out) override { out += ": keep-alive\n\n"; }

 private:
  const std::shared_ptr<Channel> channel_;
};

TEST(HttpServerTest, ItListensOnAnyPortAndSaysWhich) {
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler);
  EXPECT_EQ(server->host(), "127.0.0.1");
  EXPECT_GT(server->port(), 0);
  EXPECT_EQ(HttpClient(server->port()).Get("/hello").body, "/hello");
}

TEST(HttpServerTest, ATakenPortIsAnError) {
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler);
  const auto second = HttpServer::Create({.port = server->port()}, handler);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(absl::StrCat("127.0.0.1:", server->port())));
  EXPECT_EQ(HttpServer::Create({.host = "no such host"}, handler).status().code(), absl::StatusCode::kInvalidArgument);
}

bool HasIpv6Loopback() {
  const int socket = ::socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 address = {};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  const bool bound = socket >= 0 && ::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
  if (socket >= 0) ::close(socket);
  return bound;
}

TEST(HttpServerTest, ItListensOnIpv6) {
  LIME_SKIP_WITHOUT(HasIpv6Loopback(), "an IPv6 loopback address");
  TestHandler handler([](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) { answer->Send({}); });
  const auto server = HttpServer::Create({.host = "::1"}, handler);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ((*server)->host(), "::1");
}

TEST(HttpServerTest, AConnectionServesManyRequests) {
  TestHandler handler([](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    EXPECT_EQ(request.local_address, "127.0.0.1");
    EXPECT_EQ(request.remote_address, "127.0.0.1");
    AnswerWithPath(request, answer);
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(client.Get(absl::StrCat("/", i)).body, absl::StrCat("/", i));
  EXPECT_EQ(server->connections(), 1);
}

TEST(HttpServerTest, TwentyPipelinedRequestsOfOtherThreadsAreAnsweredInOrder) {
  std::vector<std::thread> threads;
  TestHandler handler([&](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    threads.emplace_back([request, answer] { AnswerWithPath(request, answer); });
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  std::string many;
  for (int i = 0; i < 20; ++i) absl::StrAppend(&many, "POST /", i, " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab");
  client.Send(many);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.ReadAnswer().body, absl::StrCat("/", i, "ab"));
  server->Stop(absl::InfinitePast());
  for (std::thread& thread : threads) thread.join();
}

TEST(HttpServerTest, ABodyOfManyMegabytesInChunksIsRead) {
  TestHandler handler([](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    answer->Send({.status = 200, .headers = {}, .body = absl::StrCat(request.body.size())});
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 80; ++i) client.Send(absl::StrCat("186A0\r\n", std::string(100000, 'x'), "\r\n"));
  client.Send("0\r\n\r\n");
  EXPECT_EQ(client.ReadAnswer().body, "8000000");
}

TEST(HttpServerTest, ABodyIsAskedForWhenTheClientExpectsIt) {
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
  EXPECT_EQ(client.ReadUntil("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.Send("ab");
  EXPECT_EQ(client.ReadAnswer().body, "/ab");
}

// ---- Refusals

TEST(HttpServerTest, ClientsThatStillWriteSeeThatTheBodyIsTooLong) {
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n");
  EXPECT_TRUE(client.Send(std::string(8'000'000, 'x')));
  const HttpClient::Answer answer = client.ReadAnswer();
  EXPECT_EQ(answer.status, 413);
  EXPECT_THAT(answer.head, HasSubstr("Connection: close"));
  EXPECT_EQ(answer.body, "the body has more than 16777216 bytes");
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST(HttpServerTest, ClientsThatStillWriteSeeThatTheHeadersAreTooLong) {
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  EXPECT_TRUE(client.Send(absl::StrCat("GET / HTTP/1.1\r\nHost: a\r\nX: ", std::string(4'000'000, 'x'))));
  EXPECT_EQ(client.ReadAnswer().status, 431);
}

TEST(HttpServerTest, AClientThatWritesForeverIsCutOff) {
  TestHandler handler(AnswerWithPath);
  HttpServer::Options options;
  options.limits.linger = absl::Milliseconds(100);
  const auto server = MakeServer(handler, options);
  HttpClient client(server->port());
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n");
  while (client.Send(std::string(100000, 'x'))) {
  }
}

TEST(HttpServerTest, TheOwnerRefusesARequestByItsHead) {
  TestHandler handler(AnswerWithPath);
  handler.head = [](const HttpRequest& request) -> std::optional<HttpResponse> {
    EXPECT_EQ(request.remote_address, "127.0.0.1");
    return HttpResponse{.status = 401, .headers = {{"WWW-Authenticate", "Bearer"}}, .body = "no"};
  };
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.ReadAnswer().status, 401);
  EXPECT_EQ(HttpClient(server->port()).Get("/x").body, "/x");
}

TEST(HttpServerTest, MalformedRequestsAreAnsweredAndClosed) {
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler);
  for (const char* text :
       {"GET / HTTP/1.1\r\nHost : a\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n", "\r\nnonsense\r\n\r\n"}) {
    HttpClient client(server->port());
    client.Send(text);
    EXPECT_EQ(client.ReadAnswer().status, 400) << text;
    EXPECT_EQ(client.ReadToEnd(), "") << text;
  }
}

TEST(HttpServerTest, SlowHeadersAndBodiesAreCutOff) {
  TestHandler handler(AnswerWithPath);
  HttpServer::Options options;
  options.limits.head = options.limits.body_window = absl::Milliseconds(50);
  const auto server = MakeServer(handler, options);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 60; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server->port()));
    clients.back()->Send(i % 2 == 0 ? "GET / HTTP/1.1\r\nHost:" : "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\nx");
  }
  for (const auto& client : clients) EXPECT_EQ(client->ReadAnswer().status, 408);
}

// ---- Streams and answers that take time

TEST(HttpServerTest, AStreamOfAnotherThreadArrivesPieceByPiece) {
  const auto channel = std::make_shared<Channel>();
  std::shared_ptr<HttpAnswer> answer;
  absl::Notification asked;
  TestHandler handler([&](const HttpRequest& request, std::shared_ptr<HttpAnswer> given) {
    if (request.path == "/next") return AnswerWithPath(request, given);
    given->Stream({.status = 200, .headers = {{"Content-Type", "text/event-stream"}}, .body = {}}, absl::InfiniteDuration(),
                  std::make_unique<ChannelSource>(channel));
    answer = std::move(given);
    asked.Notify();
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\nGET /next HTTP/1.1\r\nHost: a\r\n\r\n");
  client.ReadUntil("\r\n\r\n");
  asked.WaitForNotification();
  for (int i = 0; i < 100; ++i) {
    channel->Put(absl::StrCat("data: ", i, "\n\n"));
    answer->Wake();
    EXPECT_THAT(client.ReadUntil("\n\n\r\n"), EndsWith(absl::StrCat("data: ", i, "\n\n\r\n")));
  }
  channel->Put("", true);
  answer->Wake();
  EXPECT_EQ(client.ReadUntil("0\r\n\r\n"), "0\r\n\r\n");
  EXPECT_EQ(client.ReadAnswer().body, "/next");
}

TEST(HttpServerTest, ManyStreamsOfManyThreadsAreWhole) {
  absl::Mutex mutex;
  std::deque<std::thread> threads;
  TestHandler handler([&](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    const auto channel = std::make_shared<Channel>();
    answer->Stream({}, absl::Milliseconds(1), std::make_unique<ChannelSource>(channel));
    const absl::MutexLock lock(&mutex);
    threads.emplace_back([channel, answer] {
      for (int i = 0; i <= 500; ++i) {
        channel->Put(absl::StrCat(i, ";"), i == 500);
        answer->Wake();
      }
    });
  });
  const auto server = MakeServer(handler);
  std::vector<std::unique_ptr<HttpClient>> clients;
  std::string expected;
  for (int i = 0; i <= 500; ++i) absl::StrAppend(&expected, i, ";");
  for (int i = 0; i < 10; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server->port()));
    clients.back()->Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  }
  for (const auto& client : clients) {
    HttpClient::Answer answer = client->ReadAnswer();
    EXPECT_TRUE(answer.complete);
    const std::string sign = ": keep-alive\n\n";
    for (size_t at = answer.body.find(sign); at != std::string::npos; at = answer.body.find(sign)) answer.body.erase(at, sign.size());
    EXPECT_EQ(answer.body, expected);
  }
  server->Stop(absl::InfinitePast());
  for (std::thread& thread : threads) thread.join();
}

TEST(HttpServerTest, AStreamToHttp10EndsWithTheConnection) {
  TestHandler handler([&](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    const auto channel = std::make_shared<Channel>();
    channel->Put("all of it", true);
    answer->Stream({}, absl::InfiniteDuration(), std::make_unique<ChannelSource>(channel));
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.0\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.ReadToEnd(), EndsWith("\r\n\r\nall of it"));
}

TEST(HttpServerTest, ASlowAnswerHasBlanksAheadOfIt) {
  std::shared_ptr<HttpAnswer> answer;
  absl::Notification asked;
  TestHandler handler([&](const HttpRequest&, std::shared_ptr<HttpAnswer> given) {
    given->Delay({.status = 200, .headers = {{"Content-Type", "application/json"}}, .body = {}}, absl::Milliseconds(1), nullptr);
    answer = std::move(given);
    asked.Notify();
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_THAT(client.ReadUntil("1\r\n \r\n1\r\n \r\n"), StartsWith("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"));
  asked.WaitForNotification();
  answer->Send({.status = 200, .headers = {}, .body = "{}"});
  EXPECT_THAT(client.ReadUntil("0\r\n\r\n"), EndsWith("2\r\n{}\r\n0\r\n\r\n"));
}

TEST(HttpServerTest, ADroppedRequestIsAnsweredWith500) {
  TestHandler handler([](const HttpRequest&, const std::shared_ptr<HttpAnswer>&) {});
  const auto server = MakeServer(handler);
  EXPECT_EQ(HttpClient(server->port()).Get("/").status, 500);
}

TEST(HttpServerTest, ADroppedStreamBreaks) {
  TestHandler handler([](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    const auto channel = std::make_shared<Channel>();
    channel->Put("part");
    answer->Stream({}, absl::InfiniteDuration(), std::make_unique<ChannelSource>(channel));
  });
  const auto server = MakeServer(handler);
  EXPECT_FALSE(HttpClient(server->port()).Get("/").complete);
}

// ---- Clients that leave or are slow

TEST(HttpServerTest, AClientThatLeavesWhileItWaitsIsNoticed) {
  HeldAnswer held;
  const auto server = MakeServer(held.handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  held.asked.WaitForNotification();
  client.Close();
  ASSERT_TRUE(held.seen.Waits());
  EXPECT_EQ(held.seen.end(), HttpEnd::kGone);
  held.answer->Send({});  // and this does nothing
  SeenEnd late;
  held.answer->OnEnd(late.Taker());
  ASSERT_TRUE(late.Waits());
  EXPECT_EQ(late.end(), HttpEnd::kGone);
}

// More than the server reads ahead, so that the end of the client is behind bytes in the kernel.
constexpr size_t kPipelined = 100'000;

TEST(HttpServerTest, AClientThatLeavesBehindManyPipelinedBytesIsNoticed) {
  HeldAnswer held;
  const auto server = MakeServer(held.handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  held.asked.WaitForNotification();
  ASSERT_TRUE(client.Send(std::string(kPipelined, 'x')));
  client.Close();
  ASSERT_TRUE(held.seen.Waits());
  EXPECT_EQ(held.seen.end(), HttpEnd::kGone);
}

// Its end stays in its own kernel, which answers the next write with a reset.
TEST(HttpServerTest, AClientThatFillsTheKernelAndLeavesIsNoticedAfterOneWrite) {
  SeenEnd seen;
  const auto channel = std::make_shared<Channel>();
  std::shared_ptr<HttpAnswer> answer;
  TestHandler handler([&](const HttpRequest&, std::shared_ptr<HttpAnswer> given) {
    answer = std::move(given);
    answer->OnEnd(seen.Taker());
    answer->Stream({}, absl::InfiniteDuration(), std::make_unique<ChannelSource>(channel));
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  client.ReadUntil("\r\n\r\n");
  client.SendUntilItIsFull();
  client.Close();
  channel->Put("a");
  answer->Wake();
  ASSERT_TRUE(seen.Waits());
  EXPECT_EQ(seen.end(), HttpEnd::kGone);
}

TEST(HttpServerTest, AClientThatStaysBehindManyPipelinedBytesGetsAllAnswers) {
  const auto channel = std::make_shared<Channel>();
  std::shared_ptr<HttpAnswer> first;
  absl::Notification asked;
  TestHandler handler([&](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    if (first != nullptr) return answer->Send({.status = 200, .headers = {}, .body = absl::StrCat(request.body.size())});
    first = answer;
    answer->Stream({}, absl::Milliseconds(300), std::make_unique<ChannelSource>(channel));
    asked.Notify();
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  asked.WaitForNotification();
  ASSERT_TRUE(
      client.Send(absl::StrCat("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: ", kPipelined, "\r\n\r\n", std::string(kPipelined, 'x'))));
  for (int i = 0; i < 4; ++i) EXPECT_THAT(client.ReadUntil(": keep-alive\n\n"), HasSubstr("keep-alive"));
  channel->Put("first", /*last=*/true);
  first->Wake();
  EXPECT_THAT(client.ReadUntil("0\r\n\r\n"), HasSubstr("first"));
  EXPECT_EQ(client.ReadAnswer().body, absl::StrCat(kPipelined));
}

TEST(HttpServerTest, AClientThatLeavesInAStreamIsNoticed) {
  for (const bool pipelined : {false, true}) {
    SeenEnd seen;
    std::atomic<int64_t> taken = 0;
    std::shared_ptr<HttpAnswer> answer;
    TestHandler handler([&](const HttpRequest&, std::shared_ptr<HttpAnswer> given) {
      answer = std::move(given);
      answer->OnEnd(seen.Taker());
      answer->Stream({}, absl::InfiniteDuration(), std::make_unique<Endless>(taken));
    });
    const auto server = MakeServer(handler);
    HttpClient client(server->port());
    client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    if (pipelined) client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    client.ReadUntil("\r\n\r\n");
    client.Close();
    ASSERT_TRUE(seen.Waits());
    EXPECT_EQ(seen.end(), HttpEnd::kGone);
  }
}

TEST(HttpServerTest, AClientThatReadsByteByByteCostsBoundedMemoryAndDelaysNobody) {
  std::atomic<int64_t> taken = 0;
  std::vector<std::shared_ptr<HttpAnswer>> answers;
  TestHandler handler([&](const HttpRequest& request, const std::shared_ptr<HttpAnswer>& answer) {
    if (request.path == "/quick") return AnswerWithPath(request, answer);
    answer->Stream({}, absl::InfiniteDuration(), std::make_unique<Endless>(taken));
    answers.push_back(answer);
  });
  HttpServer::Options options;
  options.send_buffer_bytes = 64 * 1024;
  const auto server = MakeServer(handler, options);
  HttpClient slow(server->port(), {.receive_buffer_bytes = 4096});
  slow.Send("GET /slow HTTP/1.1\r\nHost: a\r\n\r\n");
  HttpClient quick(server->port());
  for (int i = 0; i < 2000; ++i) {
    ASSERT_EQ(slow.ReadSome(1).size(), 1u);
    if (i % 20 == 0) {
      EXPECT_EQ(quick.Get("/quick").body, "/quick");
    }
  }
  EXPECT_LE(taken, 512 * 1024);
  server->Stop(absl::InfinitePast());
}

TEST(HttpServerTest, AWakeIsSeenWhileTheClientReadsNothing) {
  std::atomic<int64_t> taken = 0;
  absl::Notification begun, woken;
  std::shared_ptr<HttpAnswer> answer;
  TestHandler handler([&](const HttpRequest&, std::shared_ptr<HttpAnswer> given) {
    answer = std::move(given);
    answer->OnWake([&] {
      if (!woken.HasBeenNotified()) woken.Notify();
    });
    answer->Stream({}, absl::InfiniteDuration(), std::make_unique<Endless>(taken));
    begun.Notify();
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port(), {.receive_buffer_bytes = 4096});
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  begun.WaitForNotification();
  answer->Wake();
  EXPECT_TRUE(woken.WaitForNotificationWithTimeout(absl::Seconds(30)));
  server->Stop(absl::InfinitePast());
}

TEST(HttpServerTest, TheOwnerSeesAWakeFromBeforeItAsked) {
  absl::Notification woken;
  TestHandler handler([&](const HttpRequest&, const std::shared_ptr<HttpAnswer>& answer) {
    answer->Wake();
    answer->OnWake([&woken, kept = answer] {
      woken.Notify();
      kept->Send({.status = 200, .headers = {}, .body = "woken"});
    });
    answer->Wake();  // waits together with the first one, which is carried out before OnWake
  });
  const auto server = MakeServer(handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(woken.WaitForNotificationWithTimeout(absl::Seconds(30)));
  EXPECT_EQ(client.ReadAnswer().body, "woken");
}

TEST(HttpServerTest, AClientThatReadsNothingIsCutOff) {
  SeenEnd seen;
  std::atomic<int64_t> taken = 0;
  std::shared_ptr<HttpAnswer> answer;
  TestHandler handler([&](const HttpRequest&, std::shared_ptr<HttpAnswer> given) {
    answer = std::move(given);
    answer->OnEnd(seen.Taker());
    answer->Stream({}, absl::InfiniteDuration(), std::make_unique<Endless>(taken));
  });
  HttpServer::Options options;
  options.limits.stall = absl::Milliseconds(100);
  const auto server = MakeServer(handler, options);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  ASSERT_TRUE(seen.Waits());
  EXPECT_EQ(seen.end(), HttpEnd::kStalled);
}

// ---- Many connections, and the end

TEST(HttpServerTest, ConnectionsAboveTheLimitWaitInTheBacklog) {
  rlimit files = {};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 4096);
  ::setrlimit(RLIMIT_NOFILE, &files);
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler);
  std::vector<std::unique_ptr<HttpClient>> clients;
  for (int i = 0; i < 600; ++i) {
    clients.push_back(std::make_unique<HttpClient>(server->port()));
    ASSERT_TRUE(clients.back()->connected());
    ASSERT_TRUE(clients.back()->Send("GET /x HTTP/1.1\r\nHost: a\r\n\r\n"));
  }
  for (int i = 0; i < 512; ++i) ASSERT_EQ(clients[static_cast<size_t>(i)]->ReadAnswer().body, "/x");
  EXPECT_EQ(server->connections(), 512);
  for (size_t i = 512; i < 600; ++i) EXPECT_FALSE(clients[i]->HasBytes());
  for (size_t i = 0; i < 88; ++i) clients[i]->Close();
  for (size_t i = 512; i < 600; ++i) EXPECT_EQ(clients[i]->ReadAnswer().body, "/x");
}

TEST(HttpServerTest, AStopLetsRunningAnswersEnd) {
  const auto channel = std::make_shared<Channel>();
  std::shared_ptr<HttpAnswer> answer;
  TestHandler handler([&](const HttpRequest&, std::shared_ptr<HttpAnswer> given) {
    given->Stream({}, absl::InfiniteDuration(), std::make_unique<ChannelSource>(channel));
    answer = std::move(given);
  });
  const auto server = MakeServer(handler);
  const int port = server->port();
  HttpClient idle(port), client(port);
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  client.ReadUntil("\r\n\r\n");
  std::thread stop([&] { server->Stop(absl::InfiniteFuture()); });
  EXPECT_EQ(idle.ReadToEnd(), "");  // closed: the stop has begun
  EXPECT_FALSE(HttpClient(port).connected());
  channel->Put("the end", true);
  answer->Wake();
  EXPECT_EQ(client.ReadToEnd(), "7\r\nthe end\r\n0\r\n\r\n");
  client.Close();
  stop.join();
  EXPECT_EQ(server->connections(), 0);
}

TEST(HttpServerTest, AStopDoesNotWaitForConnectionsWithoutARequest) {
  TestHandler handler([](const HttpRequest&, const std::shared_ptr<HttpAnswer>& given) { given->Send({}); });
  const auto server = MakeServer(handler);
  HttpClient fresh(server->port()), used(server->port());
  used.Get("/");
  const absl::Time begin = absl::Now();
  server->Stop(begin + absl::Minutes(1));
  EXPECT_LT(absl::Now() - begin, absl::Seconds(30));
  EXPECT_EQ(fresh.ReadToEnd(), "");
  EXPECT_EQ(used.ReadToEnd(), "");
}

TEST(HttpServerTest, AStopBreaksWhatRunsAtItsDeadline) {
  HeldAnswer held;
  auto server = MakeServer(held.handler);
  HttpClient client(server->port());
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  held.asked.WaitForNotification();
  server->Stop(absl::Now() + absl::Milliseconds(50));
  ASSERT_TRUE(held.seen.Waits());
  EXPECT_EQ(held.seen.end(), HttpEnd::kStopped);
  EXPECT_EQ(client.ReadToEnd(), "");
  server.reset();
  held.answer->Send({});  // an answer may outlive the server
  held.answer->Wake();
}

}  // namespace
}  // namespace lime
