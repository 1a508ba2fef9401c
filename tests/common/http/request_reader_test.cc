#include "common/http/request_reader.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/http/read_request.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using Reason = HttpRefusal::Reason;
using State = RequestReader::State;

constexpr size_t kPieces[] = {1, 2, 7, 1000000};

// Of a text that is refused, however it is cut.
void ExpectRefused(const std::string& text, Reason reason, const std::string& words, const RequestReader::Limits& limits = {}) {
  for (const size_t piece : kPieces) {
    const ReadRequest read(text, piece, limits);
    ASSERT_EQ(read.reader.state(), State::kRefused) << text << " in pieces of " << piece;
    EXPECT_EQ(read.reader.refusal().reason, reason) << text << " in pieces of " << piece << ": " << read.reader.refusal().what;
    EXPECT_THAT(read.reader.refusal().what, HasSubstr(words)) << text;
  }
}
void ExpectMalformed(const std::string& text, const std::string& words) {
  ExpectRefused(text, Reason::kMalformed, words);
}
// Of a text that is a whole request.
void ExpectBody(const std::string& text, const std::string& body) {
  for (const size_t piece : kPieces) {
    ReadRequest read(text, piece);
    ASSERT_EQ(read.reader.state(), State::kComplete) << text << " in pieces of " << piece << ": " << read.reader.refusal().what;
    EXPECT_EQ(read.reader.request().body, body);
    EXPECT_EQ(read.rest, "");
  }
}

TEST(RequestReaderTest, ARequestIsRead) {
  for (const size_t piece : kPieces) {
    ReadRequest read(
        "POST /v1/models/a%2Fb?x=1&y=a+b%21 HTTP/1.1\r\nHost: here:80\r\nX-Name:  some text \r\ncontent-length: 5\r\n\r\nhelloGET", piece);
    ASSERT_EQ(read.reader.state(), State::kComplete);
    const HttpRequest& request = read.reader.request();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/v1/models/a/b");
    EXPECT_THAT(request.query, ElementsAre(Pair("x", "1"), Pair("y", "a b!")));
    EXPECT_EQ(request.host, "here:80");
    EXPECT_EQ(request.headers.at(1).name, "x-name");
    EXPECT_EQ(request.header("X-NAME"), "some text");
    EXPECT_EQ(request.body, "hello");
    EXPECT_TRUE(request.has_body);
    EXPECT_FALSE(request.head || request.http_1_0 || read.reader.wants_close());
    EXPECT_EQ(read.rest, "GET");  // the next request
  }
}

TEST(RequestReaderTest, HeadIsAGetWithoutBody) {
  ReadRequest read("HEAD / HTTP/1.1\r\nHost: a\r\n\r\n", 100);
  EXPECT_EQ(read.reader.request().method, "GET");
  EXPECT_TRUE(read.reader.request().head);
}

TEST(RequestReaderTest, ItStopsBehindTheHead) {
  RequestReader reader({});
  const std::string_view text = "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nExpect: 100-Continue\r\n\r\nab";
  EXPECT_EQ(reader.Read(text), text.size() - 2);
  EXPECT_EQ(reader.state(), State::kBody);
  EXPECT_TRUE(reader.expects_continue());
  EXPECT_EQ(reader.Read("a"), 1u);
  EXPECT_EQ(reader.body_bytes(), 1);
}

TEST(RequestReaderTest, TheConnectionStaysOpenUnlessTheClientSaysOtherwise) {
  EXPECT_FALSE(ReadRequest("GET / HTTP/1.1\r\nHost: a\r\n\r\n", 100).reader.wants_close());
  EXPECT_TRUE(ReadRequest("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n", 100).reader.wants_close());
  EXPECT_TRUE(ReadRequest("GET / HTTP/1.0\r\nHost: a\r\n\r\n", 100).reader.wants_close());
  EXPECT_TRUE(ReadRequest("GET / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\n\r\n", 100).reader.wants_close());
}

TEST(RequestReaderTest, ChunksAreJoined) {
  const std::string head = "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n";
  ExpectBody(head + "3\r\nabc\r\n0A;name=\"value\"\r\n0123456789\r\n0\r\n\r\n", "abc0123456789");
  ExpectBody(head + "0\r\n\r\n", "");
  ExpectBody(head + "1\r\na\r\n0\r\nTrailer: x\r\nHost: evil\r\n\r\n", "a");
  ReadRequest trailers(head + "1\r\na\r\n0\r\nAuthorization: Bearer x\r\nHost: evil\r\n\r\n", 5);
  EXPECT_EQ(trailers.reader.request().header("authorization"), "");
  EXPECT_EQ(trailers.reader.request().host, "a");
  ExpectMalformed(head + "x\r\nabc\r\n", "chunk");
  ExpectMalformed(head + "3\r\nabcd\r\n0\r\n\r\n", "chunk");
  ExpectMalformed(head + "11111111111111111\r\n\r\n", "chunk");
  ExpectMalformed(head + "-1\r\n\r\n", "chunk");
  ExpectMalformed(head + "3;" + std::string(20000, 'x'), "chunk");
  ExpectMalformed(head + "3;" + std::string(20000, 'x') + "\r\nabc\r\n0\r\n\r\n", "chunk");
  ExpectMalformed(head + "0\r\nX: " + std::string(20000, 'x') + "\r\n\r\n", "chunk");
}

TEST(RequestReaderTest, AWholeUrlNamesTheHost) {
  ReadRequest read("GET http://other:81/path?q HTTP/1.1\r\nHost: a\r\n\r\n", 100);
  EXPECT_EQ(read.reader.request().host, "other:81");
  EXPECT_EQ(read.reader.request().path, "/path");
  EXPECT_EQ(ReadRequest("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 100).reader.request().path, "*");
}

TEST(RequestReaderTest, WhatIsAmbiguousIsRefused) {
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n", "Content-Length");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n", "another length");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n", "two lengths");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2, 2\r\n\r\n", "two lengths");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +2\r\n\r\n", "Content-Length");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -2\r\n\r\n", "Content-Length");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n", "Content-Length");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\n", "Content-Length");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", "Transfer-Encoding");
  ExpectMalformed("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: identity\r\n\r\n", "Transfer-Encoding");
  ExpectMalformed("POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "Transfer-Encoding");
  ExpectMalformed("GET / HTTP/1.1\r\nHost : a\r\n\r\n", "name of a header");
  ExpectMalformed("GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n c\r\n\r\n", "folded");
  ExpectMalformed("GET / HTTP/1.1\r\nHost: a\r\nX: b\r\n\tTransfer-Encoding: chunked\r\n\r\n", "folded");
  ExpectMalformed("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "two Host");
  ExpectMalformed("GET / HTTP/1.1\r\n\r\n", "no Host");
  ExpectMalformed("GET / HTTP/1.0\r\n\r\n", "no Host");
}

TEST(RequestReaderTest, WhatIsNotHttpIsRefused) {
  ExpectMalformed("\x16\x03\x01\x02\x01 a client of TLS\r\n\r\n", "method");
  ExpectMalformed("GET  / HTTP/1.1\r\nHost: a\r\n\r\n", "target");
  ExpectMalformed("GET / HTTP/2.0\r\nHost: a\r\n\r\n", "HTTP/1.1");
  ExpectMalformed("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1");
  ExpectMalformed("GET /\r\n\r\n", "request line");
  ExpectMalformed("GET / HTTP/1.1\r\nHost: a\r\n: b\r\n\r\n", "name of a header");
  ExpectMalformed("GET / HTTP/1.1\r\nHost: a\r\nA: b\x01\r\n\r\n", "value of a header");
  ExpectMalformed("GET / HTTP/1.1\r\n Host: a\r\n\r\n", "");
  ExpectMalformed("GET / HTTP/1.1\r\nno colon\r\nHost: a\r\n\r\n", "name of a header");
  ExpectMalformed("GET /%2 HTTP/1.1\r\nHost: a\r\n\r\n", "percent");
  ExpectMalformed("GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n", "NUL");
  ExpectMalformed("CONNECT host:80 HTTP/1.1\r\nHost: a\r\n\r\n", "neither a path nor a URL");
  ExpectMalformed("GET / HTTP/1.1\nHost: a\n\r\n\r\n", "");  // no carriage returns
}

TEST(RequestReaderTest, HeadersHaveALimitOfBytesInWhateverPieces) {
  const std::string name = "GET / HTTP/1.1\r\nHost: a\r\n";
  ExpectRefused(name + "X: " + std::string(20000, 'x') + "\r\n\r\n", Reason::kHeadersTooLarge, "16384 bytes");
  ExpectRefused(name + "X: " + std::string(20000, 'x'), Reason::kHeadersTooLarge, "16384 bytes");  // that end nowhere
  ExpectRefused("GET /" + std::string(20000, 'x'), Reason::kHeadersTooLarge, "16384 bytes");
  std::string lines = name;
  for (int i = 0; i < 40; ++i) absl::StrAppend(&lines, "X", i, ": ", std::string(500, 'x'), "\r\n");
  ExpectRefused(lines + "\r\n", Reason::kHeadersTooLarge, "16384 bytes");
  ExpectBody(name + "X: " + std::string(16000, 'x') + "\r\n\r\n", "");
}

TEST(RequestReaderTest, HeadersHaveALimitOfNumber) {
  std::string lines = "GET / HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 99; ++i) absl::StrAppend(&lines, "X: y\r\n");
  ExpectBody(lines + "\r\n", "");
  ExpectRefused(lines + "X: y\r\n\r\n", Reason::kHeadersTooLarge, "too many");
}

TEST(RequestReaderTest, BodiesHaveALimit) {
  const RequestReader::Limits limits{.body_bytes = 10};
  ExpectRefused("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 11\r\n\r\n", Reason::kBodyTooLarge, "10 bytes", limits);
  ExpectRefused("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n01", Reason::kBodyTooLarge, "10 bytes", limits);
  ExpectRefused("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n5\r\n", Reason::kBodyTooLarge, "10 bytes",
                limits);
  ReadRequest exact("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789", 3, limits);
  EXPECT_EQ(exact.reader.state(), State::kComplete);
}

}  // namespace
}  // namespace lime
