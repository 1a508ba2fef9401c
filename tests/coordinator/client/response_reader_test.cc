#include "coordinator/client/response_reader.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using State = ResponseReader::State;

struct Reading {
  State state = State::kHead;
  int status = 0;
  std::string type, body, what;

  friend bool operator==(const Reading&, const Reading&) = default;
};

Reading ReadResponse(std::string_view bytes, size_t piece = std::string_view::npos, bool ends = true) {
  ResponseReader reader({});
  Reading reading;
  for (size_t at = 0; at < bytes.size(); at += std::min(piece, bytes.size())) reader.Read(bytes.substr(at, piece), reading.body);
  if (ends) reader.ReadEnd();
  reading.state = reader.state();
  reading.status = reader.status();
  reading.what = reader.what();
  if (const std::string* const type = FindHeader(reader.headers(), "content-type")) reading.type = *type;
  return reading;
}

TEST(ResponseReaderTest, ABodyHasALengthOrChunksOrEndsWithTheConnection) {
  const Reading expected{.state = State::kComplete, .status = 200, .type = "text/plain", .body = "hello", .what = ""};
  EXPECT_EQ(ReadResponse("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n\r\nhello", 1000, false), expected);
  EXPECT_EQ(
      ReadResponse("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3;x=1\r\nllo\r\n0\r\n\r\n",
                   1000, false),
      expected);
  EXPECT_EQ(ReadResponse("HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\nhello"), expected);
}

TEST(ResponseReaderTest, TheSameAnswerComesFromPiecesOfEverySize) {
  for (const std::string text :
       {"HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{\"a\":1}",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
        "Transfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\na\r\n 0123456\n\n\r\n0\r\nTrailer: t\r\n\r\n",
        "HTTP/1.0 200 OK\r\nContent-Type: a/b\r\n\r\nuntil the end"}) {
    const Reading whole = ReadResponse(text);
    EXPECT_EQ(whole.state, State::kComplete) << text << whole.what;
    for (size_t piece = 1; piece < text.size(); ++piece) EXPECT_EQ(ReadResponse(text, piece), whole) << piece << "\n" << text;
  }
}

// The last bytes of an event do not wait for the next one.
TEST(ResponseReaderTest, EveryByteOfAChunkIsThereAsSoonAsItComes) {
  const std::string head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string text = head + "c\r\ndata: {\"a\": ";
  for (size_t piece = 1; piece <= text.size(); ++piece) EXPECT_EQ(ReadResponse(text, piece, false).body, "data: {\"a\": ") << piece;
  EXPECT_EQ(ReadResponse(text, 1).what, "it ended in its middle");
}

TEST(ResponseReaderTest, AnAnswerWithoutABodyIsCompleteAtItsHead) {
  EXPECT_EQ(ReadResponse("HTTP/1.1 204 No Content\r\n\r\n", 1000, false).state, State::kComplete);
  EXPECT_EQ(ReadResponse("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1000, false).state, State::kComplete);
}

TEST(ResponseReaderTest, AnAnswerThatIsCutIsBroken) {
  const std::string text = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
  EXPECT_EQ(ReadResponse("").what, "it is empty");
  for (size_t bytes = 1; bytes < text.size(); ++bytes) {
    const Reading reading = ReadResponse(text.substr(0, bytes));
    EXPECT_EQ(reading.state, State::kBroken) << bytes;
    EXPECT_EQ(reading.what, "it ended in its middle") << bytes;
  }
  EXPECT_EQ(ReadResponse("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nhello").state, State::kBroken);
}

TEST(ResponseReaderTest, OtherProtocolsAndHostileHeadsAreBroken) {
  for (const std::string& text :
       {std::string("\x16\x03\x01\x02"), std::string("SSH-2.0-OpenSSH_9.2\r\n"), std::string("HTTP/1.1 OK\r\n\r\n"),
        std::string("HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\n\r\n"),
        absl::StrCat("HTTP/1.1 200 OK\r\nX: ", std::string(70'000, 'x'), "\r\n\r\n"),
        absl::StrCat("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", std::string(70'000, 'x'))}) {
    EXPECT_EQ(ReadResponse(text).state, State::kBroken) << text.substr(0, 100);
    EXPECT_EQ(ReadResponse(text, 1000, false).state, ReadResponse(text, 1, false).state) << text.substr(0, 100);
  }
  std::string many = "HTTP/1.1 200 OK\r\n";
  for (int i = 0; i < 201; ++i) absl::StrAppend(&many, "A", i, ": b\r\n");
  EXPECT_EQ(ReadResponse(many + "\r\n").state, State::kBroken);
  std::string endless;
  for (int i = 0; i < 5000; ++i) endless += "HTTP/1.1 102 Processing\r\n\r\n";
  EXPECT_EQ(ReadResponse(endless, 1000, false).state, State::kBroken);
}

}  // namespace
}  // namespace lime
