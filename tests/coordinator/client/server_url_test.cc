#include "coordinator/client/server_url.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

ServerUrl Parsed(std::string_view url) {
  const absl::StatusOr<ServerUrl> parsed = ParseServerUrl(url);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.value_or(ServerUrl());
}

TEST(ServerUrlTest, SchemeHostPortAndPathAreRead) {
  const ServerUrl url = Parsed("https://Chat.Example.org:8443/models/a/");
  EXPECT_TRUE(url.tls);
  EXPECT_EQ(url.host, "chat.example.org");
  EXPECT_EQ(url.port, 8443);
  EXPECT_EQ(url.base, "/models/a");
  EXPECT_EQ(url.Text(), "https://chat.example.org:8443/models/a");
}

TEST(ServerUrlTest, TheUsualPortIsLeftOut) {
  EXPECT_EQ(Parsed("http://a").port, 80);
  EXPECT_EQ(Parsed("https://a").port, 443);
  EXPECT_EQ(Parsed("https://a:443").HostHeader(), "a");
  EXPECT_EQ(Parsed("http://a:443").HostHeader(), "a:443");
}

TEST(ServerUrlTest, AddressesOfVersion6HaveBrackets) {
  const ServerUrl url = Parsed("http://[::1]:5463/");
  EXPECT_EQ(url.host, "::1");
  EXPECT_EQ(url.HostHeader(), "[::1]:5463");
}

TEST(ServerUrlTest, TheBaseOfOtherClientsMeansTheSame) {
  EXPECT_EQ(Parsed("http://127.0.0.1:5463/v1").Text(), "http://127.0.0.1:5463");
  EXPECT_EQ(Parsed("http://127.0.0.1:5463/a/v1/").Text(), "http://127.0.0.1:5463/a");
}

TEST(ServerUrlTest, AnythingElseIsRefusedInASentenceThatNamesIt) {
  for (const char* const url : {"", "127.0.0.1:5463", "ftp://a", "http://", "http:///v1", "http://a:0", "http://a:70000", "http://a:x",
                                "http://a/v1?x=1", "http://a/#b", "http://a/b c", "http://a/\r\nX: y", "http://a b/"}) {
    const absl::StatusOr<ServerUrl> parsed = ParseServerUrl(url);
    ASSERT_TRUE(absl::IsInvalidArgument(parsed.status())) << url;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("--url '")) << url;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("http://127.0.0.1:5463")) << url;
  }
}

TEST(ServerUrlTest, AUserIsRefusedWithoutItsPassword) {
  const absl::StatusOr<ServerUrl> parsed = ParseServerUrl("http://me:secret@a/");
  ASSERT_FALSE(parsed.ok());
  EXPECT_THAT(std::string(parsed.status().message()), ::testing::Not(HasSubstr("secret")));
  EXPECT_THAT(std::string(parsed.status().message()), HasSubstr("LIME_API_KEY"));
}

}  // namespace
}  // namespace lime
