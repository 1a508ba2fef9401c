#include "coordinator/api/endpoint.h"

#include "tests/coordinator/api/parse.h"

namespace lime {
namespace {

bool IsPageFile(std::string_view path) {
  return path == "/" || path == "/lime.css";
}

ApiResult<Route> Find(std::string_view method, std::string_view path) {
  return FindRoute(method, path, IsPageFile);
}

TEST(EndpointTest, EveryPathHasItsMethod) {
  struct Case {
    std::string_view method, path;
    Endpoint endpoint;
  };
  constexpr Case kCases[] = {
      {"GET", "/health", Endpoint::kHealth},
      {"GET", "/metrics", Endpoint::kMetrics},
      {"GET", "/lime/cluster", Endpoint::kCluster},
      {"GET", "/lime/events", Endpoint::kClusterEvents},
      {"GET", "/v1/models", Endpoint::kModels},
      {"POST", "/v1/chat/completions", Endpoint::kChat},
      {"POST", "/v1/completions", Endpoint::kCompletions},
      {"POST", "/v1/responses", Endpoint::kResponses},
      {"POST", "/tokenize", Endpoint::kTokenize},
      {"POST", "/detokenize", Endpoint::kDetokenize},
      {"POST", "/apply-template", Endpoint::kApplyTemplate},
      {"GET", "/api/version", Endpoint::kOllamaVersion},
      {"GET", "/api/tags", Endpoint::kOllamaTags},
      {"GET", "/api/ps", Endpoint::kOllamaPs},
      {"POST", "/api/show", Endpoint::kOllamaShow},
      {"POST", "/api/chat", Endpoint::kOllamaChat},
      {"POST", "/api/generate", Endpoint::kOllamaGenerate},
      {"GET", "/", Endpoint::kPageFile},
      {"GET", "/lime.css", Endpoint::kPageFile},
  };
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.path);
    const ApiResult<Route> route = Find(c.method, c.path);
    ASSERT_TRUE(route.ok()) << route.error().message;
    EXPECT_EQ(route->endpoint, c.endpoint);
    EXPECT_EQ(route->path, c.path);
    EXPECT_FALSE(route->is_head || route->is_preflight);
    EXPECT_NE(std::ranges::find(RoutePatterns(), route->pattern), RoutePatterns().end());
    const ApiError error = Find(c.method == "GET" ? "POST" : "GET", c.path).error();
    EXPECT_EQ(error.status, 405);
    const std::string allow = c.method == "GET" ? "GET, HEAD, OPTIONS" : "POST, OPTIONS";
    EXPECT_EQ(error.headers, (std::vector<std::pair<std::string, std::string>>{{"Allow", allow}}));
    EXPECT_TRUE(IsSentence(error.message)) << error.message;
    EXPECT_TRUE(Find("OPTIONS", c.path)->is_preflight);
    EXPECT_EQ(Find("OPTIONS", c.path)->allow, allow);
  }
}

TEST(EndpointTest, HeadIsGetWithoutABody) {
  EXPECT_TRUE(Find("HEAD", "/health")->is_head);
  EXPECT_EQ(Find("HEAD", "/v1/chat/completions").error().status, 405);
  EXPECT_EQ(Find("PATCH", "/health").error().status, 405);
  EXPECT_EQ(Find("get", "/health").error().status, 405);
}

TEST(EndpointTest, UnknownPathsAreNotFound) {
  for (const std::string_view path : {"/v1/embeddings", "/v1/models/", "/v1/chat/completions/", "/V1/models", "", "*", "//health",
                                      "/health%", "/health?x=1", "/v1/models/\xff", "/lime.js", "/../health"}) {
    SCOPED_TRACE(path);
    const ApiError error = Find("GET", path).error();
    EXPECT_EQ(error.status, 404);
    EXPECT_EQ(error.code, "unknown_url");
    EXPECT_TRUE(IsSentence(error.message)) << error.message;
  }
}

TEST(EndpointTest, IdsOfModelsMayHoldSlashesAndBlanks) {
  const ApiResult<Route> route = Find("GET", "/v1/models/org/model-1 B");
  ASSERT_TRUE(route.ok());
  EXPECT_EQ(route->endpoint, Endpoint::kModel);
  EXPECT_EQ(route->model, "org/model-1 B");
  EXPECT_EQ(route->pattern, "/v1/models/{id}");
}

TEST(EndpointTest, ErrorsAreJsonOfTheirClients) {
  const ApiError error = InvalidValue("n", "it is \"odd\"");
  EXPECT_EQ(
      OpenAiErrorJson(error),
      R"({"error":{"message":"Invalid value for 'n': it is \"odd\".","type":"invalid_request_error","param":"n","code":"invalid_value"}})");
  EXPECT_EQ(OllamaErrorJson(error), R"({"error":"Invalid value for 'n': it is \"odd\"."})");
  EXPECT_EQ(OpenAiErrorJson(InvalidJson("is empty")),
            R"({"error":{"message":"The body is empty.","type":"invalid_request_error","param":null,"code":"invalid_json"}})");
  for (const char* path : {"/api/chat", "/api/tags", "/api/pull"}) EXPECT_TRUE(IsOllama(path)) << path;
  for (const char* path : {"/v1/chat/completions", "/api", "/"}) EXPECT_FALSE(IsOllama(path)) << path;
}

TEST(EndpointTest, ALongPromptIsNamedAsTheEndpointNamesIt) {
  EXPECT_EQ(PromptField(Endpoint::kChat), "messages");
  EXPECT_EQ(PromptField(Endpoint::kOllamaChat), "messages");
  EXPECT_EQ(PromptField(Endpoint::kCompletions), "prompt");
  EXPECT_EQ(PromptField(Endpoint::kOllamaGenerate), "prompt");
  EXPECT_EQ(PromptField(Endpoint::kResponses), "input");
}

TEST(EndpointTest, ErrorsOfTheServer) {
  struct Case {
    ApiError error;
    int status;
    std::string_view type, code;
  };
  const Case cases[] = {
      {InvalidApiKey(true), 401, "invalid_request_error", "invalid_api_key"},
      {InvalidApiKey(false), 401, "invalid_request_error", "invalid_api_key"},
      {OriginNotAllowed("http://x\n"), 403, "permission_error", "origin_not_allowed"},
      {HostNotAllowed(std::string(500, 'x')), 403, "permission_error", "host_not_allowed"},
      {UnknownUrl("GET", "/x\xff"), 404, "invalid_request_error", "unknown_url"},
      {ModelNotFound("x"), 404, "invalid_request_error", "model_not_found"},
      {RequestTimeout("The headers were not complete after 10 s"), 408, "invalid_request_error", "request_timeout"},
      {RequestTooLarge(16), 413, "invalid_request_error", "request_too_large"},
      {UnsupportedMediaType("text/plain"), 415, "invalid_request_error", "unsupported_media_type"},
      {UnsupportedMediaType(""), 415, "invalid_request_error", "unsupported_media_type"},
      {QueueFull(64, 7.2), 429, "rate_limit_error", "rate_limit_exceeded"},
      {NoSchemaMemory("the schemas of all requests need more than 8 MiB together; try again when other requests have ended", 7.2), 429,
       "rate_limit_error", "rate_limit_exceeded"},
      {HeadersTooLarge(), 431, "invalid_request_error", "headers_too_large"},
      {ServerError("the disk is full"), 500, "server_error", "server_error"},
      {Loading(), 503, "server_error", "loading"},
      {Draining(), 503, "server_error", "draining"},
      {QueueTimeout(600), 503, "server_error", "queue_timeout"},
      {ClusterUnavailable("mini"), 503, "server_error", "cluster_unavailable"},
      {ContextLengthExceeded("messages", 9000, 8192), 400, "invalid_request_error", "context_length_exceeded"},
      {PromptTooLong("input", 9000, 8192), 400, "invalid_request_error", "context_length_exceeded"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(c.error.status, c.status);
    EXPECT_EQ(c.error.type, c.type);
    EXPECT_EQ(c.error.code, c.code);
    EXPECT_TRUE(IsSentence(c.error.message)) << c.error.message;
    EXPECT_LT(c.error.message.size(), 200u);
  }
  EXPECT_EQ(QueueFull(64, 7.2).headers[0].second, "8");
  EXPECT_EQ(QueueFull(64, 0).headers[0].second, "1");
  EXPECT_EQ(QueueFull(64, 1e9).headers[0].second, "60");
  EXPECT_EQ(QueueFull(64, 7.2).message, "The queue is full: 64 requests wait; try again in 8 s.");
  EXPECT_EQ(NoSchemaMemory("x", 7.2).headers[0].second, "8");
  EXPECT_EQ(InvalidApiKey(true).headers[0].first, "WWW-Authenticate");
}

}  // namespace
}  // namespace lime
