// Calls the endpoints of a server that commands use: models, chat, completions, tokenize.
//
// Thread: any; see HttpCaller.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/client/answer_chunk.h"
#include "coordinator/client/http_caller.h"
#include "nlohmann/json.hpp"
#include "planner/base/status.h"

namespace lime {

// A model that a server lists.
struct RemoteModel {
  std::string id;
  int64_t context = 0;  // positions of a request; 0: the server does not say
};

// Every call ends soon after `cancel` is set, with Cancelled. An error is one sentence with the URL.
// Errors of the server have these codes: InvalidArgument (400 and the like), PermissionDenied (401,
// 403), NotFound (404), ResourceExhausted (the prompt leaves no room in the context), Unavailable
// (429, 5xx); in a stream, Unavailable.
class ApiClient {
 public:
  explicit ApiClient(std::unique_ptr<HttpCaller> http) : http_(std::move(http)) {}

  absl::StatusOr<std::vector<RemoteModel>> Models(const std::atomic<bool>* cancel) const;
  // The model `wanted`. If it is empty, the first one of the server.
  absl::StatusOr<RemoteModel> Model(std::string_view wanted, const std::atomic<bool>* cancel) const;

  // Posts a request and gives out the chunks of the stream, or the whole answer as one chunk if the
  // server sends it so. An error of `on_chunk` ends the call with it. Chunks have no errors.
  using OnChunk = std::function<absl::Status(const AnswerChunk&)>;
  absl::Status Generate(std::string_view path, std::string body, const OnChunk& on_chunk, const std::atomic<bool>* cancel) const;

  // Posts an object to `path` and returns the object of the answer.
  absl::StatusOr<nlohmann::json> Post(std::string_view path, const nlohmann::json& body, const std::atomic<bool>* cancel) const;

  // "http://127.0.0.1:5463"
  std::string Url() const { return http_->url().Text(); }

 private:
  absl::Status ErrorOf(const ApiError& error) const;
  absl::StatusOr<nlohmann::json> ObjectOf(const absl::StatusOr<HttpReply>& reply) const;

  const std::unique_ptr<HttpCaller> http_;
};

}  // namespace lime
