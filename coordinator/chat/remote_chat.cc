#include "coordinator/chat/remote_chat.h"

#include <utility>

#include "coordinator/client/request_body.h"

namespace lime::cli {

absl::StatusOr<std::unique_ptr<ChatBackend>> RemoteChat::Open(std::unique_ptr<ApiClient> client, const std::string& model,
                                                              const std::atomic<bool>* cancel) {
  LIME_ASSIGN_OR_RETURN(RemoteModel served, client->Model(model, cancel));
  return std::unique_ptr<ChatBackend>(new RemoteChat(std::move(client), std::move(served)));
}

absl::StatusOr<ChatReply> RemoteChat::Ask(const ApiRequest& request, const ChatPieces& pieces, const std::atomic<bool>& stop) {
  ChatReply reply;
  const auto take = [&](const AnswerChunk& chunk) {
    if (chunk.has_usage || chunk.has_lime) {
      reply.has_counts = true;
      reply.report = chunk.report;
    }
    for (const ChoicePart& part : chunk.choices) {
      if (!part.reasoning.empty()) pieces.on_reasoning(part.reasoning);
      if (!part.content.empty()) pieces.on_content(part.content);
      reply.reasoning += part.reasoning;
      reply.content += part.content;
      if (!part.finish.empty()) reply.finish = part.finish;
    }
    return absl::OkStatus();
  };
  ApiRequest named = request;
  named.model = model_.id;
  const absl::Status status = client_->Generate("/v1/chat/completions", ChatBody(named), take, &stop);
  if (absl::IsCancelled(status)) {
    reply.finish.clear();
    return reply;
  }
  LIME_RETURN_IF_ERROR(status);
  if (reply.finish.empty()) reply.finish = "stop";  // a server that does not say how it ended
  return reply;
}

}  // namespace lime::cli
