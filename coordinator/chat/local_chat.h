// A chat that this process or a cluster answers, without HTTP: generation over a Serving.
#pragma once

#include <string>

#include "coordinator/chat/chat_backend.h"
#include "coordinator/generation/generation.h"
#include "coordinator/generation/served_model.h"
#include "coordinator/server/served_plan.h"
#include "coordinator/serving/serving.h"

namespace lime::cli {

class LocalChat final : public ChatBackend {
 public:
  // REQUIRES: `model` and `plan` have a plan; all arguments outlive this object
  LocalChat(const ServedModel& model, Serving& serving, const PlanInUse& plan) : model_(model), serving_(serving), plan_(plan) {}

  absl::StatusOr<ChatReply> Ask(const ApiRequest& request, const ChatPieces& pieces, const std::atomic<bool>& stop) override;
  const std::string& model() const override { return model_.id(); }
  int64_t context() const override { return model_.context(); }

 private:
  absl::StatusOr<ChatReply> Generate(const Generation& generation, const ChatPieces& pieces, const std::atomic<bool>& stop);

  const ServedModel& model_;
  Serving& serving_;
  const PlanInUse& plan_;
};

}  // namespace lime::cli
