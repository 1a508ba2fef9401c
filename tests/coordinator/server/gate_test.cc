#include "coordinator/server/gate.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::Contains;
using ::testing::Field;

bool IsOnThePage(std::string_view path) {
  return path == "/";
}

class GateTest : public ::testing::Test {
 protected:
  // The code of the error; empty: admitted.
  std::string Refusal(const HttpRequest& request) {
    call_ = Call();
    const std::optional<ApiError> error = gate_.Admit(request, "req_ours", call_);
    return error ? error->code : "";
  }
  static HttpRequest Get(std::string path, HttpHeaders headers = {}) {
    return {.method = "GET", .path = std::move(path), .query = {}, .headers = std::move(headers), .host = "localhost:5463", .body = {}};
  }
  static HttpRequest Post(std::string path, HttpHeaders headers) {
    HttpRequest request = Get(std::move(path), std::move(headers));
    request.method = "POST";
    return request;
  }

  Gate gate_{{.bound_host = "127.0.0.1", .hostnames = {"lime.example.org"}, .origins = {"https://chat.example.org"}}, {}, IsOnThePage};
  Call call_;
};

TEST_F(GateTest, OnlyOurNamesAreHosts) {
  HttpRequest request = Get("/v1/models");
  EXPECT_EQ(Refusal(request), "");
  request.host = "lime.example.org";
  EXPECT_EQ(Refusal(request), "");
  request.host = "rebound.example.org";
  EXPECT_EQ(Refusal(request), "host_not_allowed");
  request.path = "/health";
  EXPECT_EQ(Refusal(request), "host_not_allowed") << "a page could learn what runs here";
}

TEST_F(GateTest, PagesOfStrangersMayNotCall) {
  EXPECT_EQ(Refusal(Get("/v1/models", {{"origin", "https://evil.example.org"}})), "origin_not_allowed");
  EXPECT_EQ(Refusal(Get("/v1/models", {{"origin", "https://chat.example.org"}})), "");
  EXPECT_THAT(call_.headers, Contains(Field(&HttpHeader::name, "Access-Control-Allow-Origin")));
  EXPECT_EQ(Refusal(Get("/v1/models", {{"origin", "http://localhost:3000"}})), "");
}

TEST_F(GateTest, PreflightsNeedNoKey) {
  gate_.SetKeys({"secret"});
  HttpRequest request = Get("/v1/chat/completions", {{"origin", "http://localhost:3000"}, {"access-control-request-method", "POST"}});
  request.method = "OPTIONS";
  EXPECT_EQ(Refusal(request), "");
  EXPECT_TRUE(call_.route->is_preflight);
  EXPECT_THAT(call_.headers, Contains(Field(&HttpHeader::name, "Access-Control-Allow-Methods")));
  request.headers[0].value = "https://evil.example.org";
  EXPECT_EQ(Refusal(request), "origin_not_allowed");
  request = Get("*");
  request.method = "OPTIONS";
  EXPECT_EQ(Refusal(request), "");
}

TEST_F(GateTest, AllButHealthAndThePageNeedAKey) {
  gate_.SetKeys({"first", "second"});
  EXPECT_EQ(Refusal(Get("/health")), "");
  EXPECT_EQ(Refusal(Get("/")), "");
  for (const char* path : {"/v1/models", "/metrics", "/lime/cluster", "/lime/events", "/api/tags", "/unknown"}) {
    SCOPED_TRACE(path);
    EXPECT_EQ(Refusal(Get(path)), "invalid_api_key");
    EXPECT_EQ(Refusal(Get(path, {{"authorization", "Bearer third"}})), "invalid_api_key");
  }
  EXPECT_EQ(Refusal(Get("/v1/models", {{"authorization", "Bearer second"}})), "");
}

TEST_F(GateTest, AKeyIsTheSameGroupAfterKeysAreReadAgain) {
  const HttpRequest request = Get("/v1/models", {{"authorization", "Bearer mine"}});
  gate_.SetKeys({"other", "mine"});
  EXPECT_EQ(Refusal(request), "");
  const int64_t group = call_.cache_group;
  EXPECT_NE(group, 0);
  gate_.SetKeys({"mine"});
  EXPECT_EQ(Refusal(request), "");
  EXPECT_EQ(call_.cache_group, group);
  gate_.SetKeys({"other"});
  EXPECT_EQ(Refusal(request), "invalid_api_key");
  EXPECT_EQ(Refusal(Get("/v1/models", {{"authorization", "Bearer other"}})), "");
  EXPECT_NE(call_.cache_group, group);
}

TEST_F(GateTest, MethodsAndPathsAreKnown) {
  EXPECT_EQ(Refusal(Get("/v1/chat/completions")), "method_not_allowed");
  EXPECT_EQ(call_.pattern(), "unknown");
  EXPECT_EQ(Refusal(Get("/v1/embeddings")), "unknown_url");
  HttpRequest head = Get("/health");
  head.head = true;
  EXPECT_EQ(Refusal(head), "");
  EXPECT_EQ(call_.method, "HEAD");
  HttpRequest other = Get("/health");
  other.method = "BREW";
  EXPECT_EQ(Refusal(other), "method_not_allowed");
  EXPECT_EQ(call_.method, "other");
}

TEST_F(GateTest, BodiesAreJson) {
  for (const char* type : {"application/json", "application/json; charset=utf-8", "APPLICATION/JSON ;charset=utf-8"})
    EXPECT_EQ(Refusal(Post("/tokenize", {{"content-type", type}})), "") << type;
  for (const char* type : {"", "text/plain", "application/json5", "application/x-www-form-urlencoded"})
    EXPECT_EQ(Refusal(Post("/tokenize", {{"content-type", type}})), "unsupported_media_type") << type;
  EXPECT_EQ(Refusal(Post("/tokenize", {})), "unsupported_media_type");
}

TEST_F(GateTest, AnIdOfTheClientIsKept) {
  EXPECT_EQ(Refusal(Get("/health", {{"x-request-id", "a-1_b.c"}})), "");
  EXPECT_EQ(call_.id, "a-1_b.c");
  EXPECT_EQ(call_.headers[0].value, "a-1_b.c");
  EXPECT_EQ(Refusal(Get("/health", {{"x-request-id", "no blanks"}})), "");
  EXPECT_EQ(call_.id, "req_ours");
}

}  // namespace
}  // namespace lime
