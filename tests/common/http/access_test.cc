#include "common/http/access.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Optional;

HttpRequest RequestWith(HttpHeaders headers, std::string host = "localhost:5463") {
  HttpRequest request;
  request.headers = std::move(headers);
  request.host = std::move(host);
  request.local_address = "192.168.1.5";
  return request;
}

TEST(AccessTest, RequestIdsHaveASyntax) {
  for (const char* id : {"a", "0-9_Z.z"}) EXPECT_TRUE(IsRequestId(id)) << id;
  EXPECT_TRUE(IsRequestId(std::string(128, 'a')));
  EXPECT_FALSE(IsRequestId(std::string(129, 'a')));
  for (const char* id : {"", "a b", "a\r\nb", "ä", "a/b"}) EXPECT_FALSE(IsRequestId(id)) << id;
}

TEST(AccessTest, TheBearerTokenIsFound) {
  EXPECT_THAT(BearerToken(RequestWith({{"authorization", "Bearer key"}})), Optional(std::string_view("key")));
  EXPECT_THAT(BearerToken(RequestWith({{"authorization", "bEARER  key "}})), Optional(std::string_view("key")));
  for (const char* value : {"", "Bearer", "Bearer ", "Basic key", "key", "Bearerkey"})
    EXPECT_EQ(BearerToken(RequestWith({{"authorization", value}})), std::nullopt) << value;
  EXPECT_EQ(BearerToken(RequestWith({})), std::nullopt);
}

TEST(AccessTest, OneKeyIsFoundWhole) {
  const ApiKeys keys({"first", "second"});
  EXPECT_THAT(keys.Find("first"), Optional(0u));
  EXPECT_THAT(keys.Find("second"), Optional(1u));
  for (const char* key : {"", "f", "firs", "firstfirst", "First", "seconD", "firstsecond"}) EXPECT_EQ(keys.Find(key), std::nullopt) << key;
  EXPECT_EQ(ApiKeys({""}).Find(""), std::nullopt);
  EXPECT_TRUE(ApiKeys().empty());
}

TEST(AccessTest, AFileHasOneKeyALine) {
  EXPECT_THAT(ParseApiKeys("one\r\n\n  two \nthree"), ElementsAre("one", "two", "three"));
  EXPECT_THAT(ParseApiKeys("\n \n"), IsEmpty());
}

TEST(AccessTest, HostsThatAreOursAreAllowed) {
  const AllowedPlaces places({.bound_host = "10.0.0.7", .hostnames = {"Lime.Local", "::5"}, .origins = {}});
  for (const char* host : {"localhost", "LOCALHOST:80", "localhost.", "127.0.0.1:5463", "127.9.9.9", "[::1]:5463", "[::1]", "10.0.0.7:1",
                           "lime.local:443", "lime.local.", "192.168.1.5", "[::5]", "localhost:"})
    EXPECT_TRUE(places.AllowsHost(RequestWith({}, host))) << host;
  for (const char* host : {"", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil@localhost", "localhost@evil",
                           "10.0.0.8", "::1", "localhost:x", "localhost:99999", "[::1", "a b", "localhost/", "lime.localx"})
    EXPECT_FALSE(places.AllowsHost(RequestWith({}, host))) << host;
}

TEST(AccessTest, PagesOfOthersAreNotAllowed) {
  const AllowedPlaces places({.bound_host = "10.0.0.7", .hostnames = {}, .origins = {"https://Chat.example/"}});
  EXPECT_TRUE(places.AllowsOrigin(RequestWith({})));
  for (const char* origin : {"http://localhost", "https://localhost:3000", "http://127.0.0.1:1", "http://[::1]:8", "https://chat.example",
                             "HTTPS://CHAT.EXAMPLE"})
    EXPECT_TRUE(places.AllowsOrigin(RequestWith({{"origin", origin}}))) << origin;
  for (const char* origin :
       {"", "null", "https://evil.example", "http://localhost.evil.example", "http://chat.example", "https://chat.example:444", "file://",
        "https://chat.example.evil", "localhost", "chrome-extension://localhost"})
    EXPECT_FALSE(places.AllowsOrigin(RequestWith({{"origin", origin}}))) << origin;
}

TEST(AccessTest, ThePageOfTheServerItselfIsAllowed) {
  const AllowedPlaces places({.bound_host = "10.0.0.7", .hostnames = {}, .origins = {}});
  EXPECT_TRUE(places.AllowsOrigin(RequestWith({{"origin", "http://10.0.0.7:5463"}}, "10.0.0.7:5463")));
  EXPECT_FALSE(places.AllowsOrigin(RequestWith({{"origin", "http://10.0.0.7:80"}}, "10.0.0.7:5463")));
}

TEST(AccessTest, EveryPageIsAllowedIfTheUserSaysSo) {
  const AllowedPlaces places({.bound_host = "", .hostnames = {}, .origins = {"*"}});
  EXPECT_TRUE(places.AllowsOrigin(RequestWith({{"origin", "null"}})));
}

TEST(AccessTest, AnAllowedPageGetsItsHeaders) {
  EXPECT_THAT(CorsHeaders(RequestWith({})), IsEmpty());
  HttpRequest asks = RequestWith({{"origin", "http://localhost:1"}});
  EXPECT_EQ(*FindHeader(CorsHeaders(asks), "access-control-allow-origin"), "http://localhost:1");
  EXPECT_EQ(*FindHeader(CorsHeaders(asks), "vary"), "Origin");
  asks.method = "OPTIONS";
  EXPECT_FALSE(IsPreflight(asks));
  asks.headers.push_back({"access-control-request-method", "POST"});
  asks.headers.push_back({"access-control-request-headers", "authorization, x-stainless-os"});
  EXPECT_TRUE(IsPreflight(asks));
  EXPECT_EQ(*FindHeader(PreflightHeaders(asks), "access-control-allow-headers"), "authorization, x-stainless-os");
  EXPECT_NE(FindHeader(PreflightHeaders(asks), "access-control-allow-methods"), nullptr);
  asks.headers.back().value = "a: b";
  EXPECT_EQ(FindHeader(PreflightHeaders(asks), "access-control-allow-headers"), nullptr);
}

}  // namespace
}  // namespace lime
