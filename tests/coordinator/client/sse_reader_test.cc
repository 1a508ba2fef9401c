#include "coordinator/client/sse_reader.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Event = SseReader::Event;

std::vector<Event> EventsOf(std::string_view bytes, size_t piece = std::string_view::npos) {
  SseReader reader;
  std::vector<Event> events;
  for (size_t at = 0; at < bytes.size(); at += std::min(piece, bytes.size()))
    EXPECT_TRUE(reader.Read(bytes.substr(at, piece), events).ok());
  return events;
}

TEST(SseReaderTest, AnEventEndsWithAnEmptyLine) {
  EXPECT_THAT(EventsOf("data: one\n\ndata: two\n\n"), ElementsAre(Event{"", "one"}, Event{"", "two"}));
  EXPECT_THAT(EventsOf("data: one\n"), IsEmpty());
  EXPECT_THAT(EventsOf("data: one\n\ndata: two"), ElementsAre(Event{"", "one"}));
}

TEST(SseReaderTest, LinesEndInAllThreeWays) {
  const std::vector<Event> events = {{"", "a"}, {"", "b"}};
  EXPECT_EQ(EventsOf("data: a\n\ndata: b\n\n"), events);
  EXPECT_EQ(EventsOf("data: a\r\n\r\ndata: b\r\n\r\n"), events);
  EXPECT_EQ(EventsOf("data: a\r\rdata: b\r\r"), events);
  EXPECT_EQ(EventsOf("data: a\r\n\ndata: b\n\r\n"), events);
}

TEST(SseReaderTest, CommentsAndUnknownFieldsAreDropped) {
  EXPECT_THAT(EventsOf(": keep-alive\n\n: keep-alive\n\nid: 7\nretry: 10\nx\ndata: a\n\n"), ElementsAre(Event{"", "a"}));
}

TEST(SseReaderTest, LinesOfDataAreJoinedByLineFeeds) {
  EXPECT_THAT(EventsOf("event: cluster\ndata: a\ndata:\ndata:  b\n\n"), ElementsAre(Event{"cluster", "a\n\n b"}));
}

TEST(SseReaderTest, AnEventWithoutDataIsNone) {
  EXPECT_THAT(EventsOf("event: ping\n\ndata: a\n\n"), ElementsAre(Event{"", "a"}));
  EXPECT_THAT(EventsOf("data\n\n"), ElementsAre(Event{"", ""}));
}

TEST(SseReaderTest, AByteOrderMarkCountsOnlyAtTheBeginning) {
  EXPECT_THAT(EventsOf("\xEF\xBB\xBF"
                       "data: a\n\n\xEF\xBB\xBF"
                       "data: b\n\ndata: c\n\n"),
              ElementsAre(Event{"", "a"}, Event{"", "c"}));
}

TEST(SseReaderTest, TheSameEventsComeFromEveryCut) {
  const std::string text =
      "\xEF\xBB\xBF: hello\r\n\r\nevent: a\r\ndata: {\"x\": 1}\r\ndata: \xE2\x82\xAC\r\n\r\rdata:2\n\nid: 3\rdata: 4\r\n\r\ndata: "
      "[DONE]\n\n";
  const std::vector<Event> whole = EventsOf(text);
  EXPECT_THAT(whole, ElementsAre(Event{"a", "{\"x\": 1}\n\xE2\x82\xAC"}, Event{"", "2"}, Event{"", "4"}, Event{"", "[DONE]"}));
  for (size_t piece = 1; piece < text.size(); ++piece) EXPECT_EQ(EventsOf(text, piece), whole) << piece;
  for (size_t cut = 1; cut < text.size(); ++cut) {
    SseReader reader;
    std::vector<Event> events;
    ASSERT_TRUE(reader.Read(std::string_view(text).substr(0, cut), events).ok());
    ASSERT_TRUE(reader.Read(std::string_view(text).substr(cut), events).ok());
    EXPECT_EQ(events, whole) << cut;
  }
}

TEST(SseReaderTest, ATooLongEventIsAnError) {
  SseReader reader(/*max_event=*/20);
  std::vector<Event> events;
  EXPECT_TRUE(reader.Read("data: 0123456789\n\ndata: 0123456789\n\n", events).ok());
  EXPECT_EQ(events.size(), 2u);
  EXPECT_FALSE(reader.Read("data: 0123456789\ndata: 0123456789\ndata: 0\n", events).ok());
  SseReader endless(/*max_event=*/20);
  EXPECT_FALSE(endless.Read(std::string(21, 'x'), events).ok());
}

}  // namespace
}  // namespace lime
