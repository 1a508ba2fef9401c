// A chat that a server answers.
#pragma once

#include <memory>
#include <string>

#include "coordinator/chat/chat_backend.h"
#include "coordinator/client/api_client.h"

namespace lime::cli {

class RemoteChat final : public ChatBackend {
 public:
  // Asks the server for its models. `model`: see ApiClient::Model. `cancel` ends this call.
  static absl::StatusOr<std::unique_ptr<ChatBackend>> Open(std::unique_ptr<ApiClient> client, const std::string& model,
                                                           const std::atomic<bool>* cancel);

  absl::StatusOr<ChatReply> Ask(const ApiRequest& request, const ChatPieces& pieces, const std::atomic<bool>& stop) override;
  const std::string& model() const override { return model_.id; }
  int64_t context() const override { return model_.context; }

 private:
  RemoteChat(std::unique_ptr<ApiClient> client, RemoteModel model) : client_(std::move(client)), model_(std::move(model)) {}

  const std::unique_ptr<ApiClient> client_;
  const RemoteModel model_;
};

}  // namespace lime::cli
