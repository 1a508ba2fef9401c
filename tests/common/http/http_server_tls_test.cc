// The server over TLS, with keys made here.
#include <openssl/ssl.h>

#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/http/http_server.h"
#include "coordinator/cluster/key_maker.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/http/http_client.h"
#include "tests/common/http/test_handler.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

class HttpServerTlsTest : public ::testing::Test {
 protected:
  // Keys of a server of this name, in the files that the server reads.
  void WriteKeys(const std::string& name) {
    const Validity validity = ValidityOfNewKeys(absl::ToTimeT(absl::Now()));
    const auto authority = MakeAuthority(validity);
    ASSERT_TRUE(authority.ok());
    const auto keys = MakeDeviceKeys(*authority, name, validity);
    ASSERT_TRUE(keys.ok());
    folder_.Write("cert.pem", keys->certificate + authority->certificate);
    folder_.Write("key.pem", keys->key);
  }
  HttpServer::Options Options() const {
    HttpServer::Options options;
    options.tls = TlsFiles{.certificate = folder_ / "cert.pem", .key = folder_ / "key.pem"};
    return options;
  }

  const TempDir folder_;
};

TEST_F(HttpServerTlsTest, RequestsAreAnswered) {
  WriteKeys("first");
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler, Options());
  HttpClient client(server->port(), {.tls = true});
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.PeerName(), "first");
  for (int i = 0; i < 10; ++i) EXPECT_EQ(client.Get("/hello").body, "/hello");
  std::string many;
  for (int i = 0; i < 20; ++i) absl::StrAppend(&many, "GET /", i, " HTTP/1.1\r\nHost: a\r\n\r\n");
  client.Send(many);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(client.ReadAnswer().body, absl::StrCat("/", i));
}

TEST_F(HttpServerTlsTest, LongAnswersAndBodiesArriveWhole) {
  WriteKeys("first");
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler, Options());
  HttpClient client(server->port(), {.tls = true});
  const std::string body(3'000'000, 'x');
  client.Send(absl::StrCat("POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: ", body.size(), "\r\n\r\n", body));
  EXPECT_EQ(client.ReadAnswer().body, "/" + body);
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST_F(HttpServerTlsTest, NewFilesAreForNewConnections) {
  WriteKeys("first");
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler, Options());
  HttpClient old(server->port(), {.tls = true});
  EXPECT_EQ(old.Get("/a").body, "/a");
  WriteKeys("second");
  ASSERT_TRUE(server->ReloadTls().ok());
  HttpClient young(server->port(), {.tls = true});
  EXPECT_EQ(young.PeerName(), "second");
  EXPECT_EQ(old.Get("/b").body, "/b");
  folder_.Write("key.pem", "not a key");
  EXPECT_THAT(std::string(server->ReloadTls().message()), HasSubstr("key.pem"));
  EXPECT_EQ(HttpClient(server->port(), {.tls = true}).PeerName(), "second");
}

TEST_F(HttpServerTlsTest, FilesThatCannotBeUsedAreNamed) {
  TestHandler handler(AnswerWithPath);
  EXPECT_THAT(std::string(HttpServer::Create(Options(), handler).status().message()), HasSubstr("cert.pem cannot be used: No such file"));
  WriteKeys("first");
  const std::string key = folder_.Read("key.pem");
  WriteKeys("second");
  folder_.Write("key.pem", key);
  const absl::Status status = HttpServer::Create(Options(), handler).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("key.pem"));
}

TEST_F(HttpServerTlsTest, OldVersionsAndPlainTextAreNotServed) {
  WriteKeys("first");
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler, Options());
  EXPECT_FALSE(HttpClient(server->port(), {.tls = true, .max_tls_version = TLS1_1_VERSION}).connected());
  HttpClient tls12(server->port(), {.tls = true, .max_tls_version = TLS1_2_VERSION});
  ASSERT_TRUE(tls12.connected());
  EXPECT_EQ(tls12.Get("/a").body, "/a");
  HttpClient plain(server->port());
  plain.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  EXPECT_EQ(plain.ReadToEnd().find("HTTP/1.1"), std::string::npos);
}

TEST_F(HttpServerTlsTest, AHandshakeThatDoesNotEndIsCutOff) {
  WriteKeys("first");
  TestHandler handler(AnswerWithPath);
  HttpServer::Options options = Options();
  options.limits.head = absl::Milliseconds(50);
  const auto server = MakeServer(handler, options);
  HttpClient silent(server->port());
  EXPECT_EQ(silent.ReadToEnd(), "");
}

TEST_F(HttpServerTlsTest, ClientsThatStillWriteSeeThatTheBodyIsTooLong) {
  WriteKeys("first");
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler, Options());
  HttpClient client(server->port(), {.tls = true});
  client.Send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 30000000\r\n\r\n");
  for (int i = 0; i < 100; ++i) client.Send(std::string(50000, 'x'));
  EXPECT_EQ(client.ReadAnswer().status, 413);
}

TEST_F(HttpServerTlsTest, AClientThatLeavesIsNoticed) {
  WriteKeys("first");
  HeldAnswer held;
  const auto server = MakeServer(held.handler, Options());
  HttpClient client(server->port(), {.tls = true});
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  held.asked.WaitForNotification();
  client.Close();
  ASSERT_TRUE(held.seen.Waits());
  EXPECT_EQ(held.seen.end(), HttpEnd::kGone);
}

TEST_F(HttpServerTlsTest, AClientThatLeavesBehindManyPipelinedBytesIsNoticed) {
  WriteKeys("first");
  HeldAnswer held;
  const auto server = MakeServer(held.handler, Options());
  HttpClient client(server->port(), {.tls = true});
  client.Send("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  held.asked.WaitForNotification();
  ASSERT_TRUE(client.Send(std::string(100'000, 'x')));
  client.Close();
  ASSERT_TRUE(held.seen.Waits());
  EXPECT_EQ(held.seen.end(), HttpEnd::kGone);
}

TEST_F(HttpServerTlsTest, AStopEndsOpenConnections) {
  WriteKeys("first");
  TestHandler handler(AnswerWithPath);
  const auto server = MakeServer(handler, Options());
  HttpClient client(server->port(), {.tls = true}), silent(server->port());
  EXPECT_EQ(client.Get("/a").body, "/a");
  server->Stop(absl::InfiniteFuture());
  EXPECT_EQ(server->connections(), 0);
}

}  // namespace
}  // namespace lime
