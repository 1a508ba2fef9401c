// A chat with a model that this call loads, in this process or on a cluster.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "coordinator/chat/local_chat.h"
#include "coordinator/sessions/opened_model.h"

namespace lime::cli {

class SessionChat final : public ChatBackend {
 public:
  // Loads the model under a progress line.  REQUIRES: flags.Check() was OK
  static absl::StatusOr<std::unique_ptr<ChatBackend>> Open(const PlacingFlags& flags);
  // Frees the devices.
  ~SessionChat() override;

  absl::StatusOr<ChatReply> Ask(const ApiRequest& request, const ChatPieces& pieces, const std::atomic<bool>& stop) override {
    return chat_->Ask(request, pieces, stop);
  }
  const std::string& model() const override { return model_->id(); }
  int64_t context() const override { return model_->context(); }

 private:
  SessionChat() = default;
  void Serve();

  // In the order in which they are needed.
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<OpenedModel> opened_;
  PlanInUse plan_;
  std::unique_ptr<Serving> serving_;
  std::unique_ptr<LocalChat> chat_;
};

}  // namespace lime::cli
