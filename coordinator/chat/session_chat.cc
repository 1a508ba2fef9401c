#include "coordinator/chat/session_chat.h"

#include <limits>
#include <utility>

#include "coordinator/cli/model_files.h"
#include "coordinator/cli/model_weights.h"
#include "coordinator/cli/served_model_files.h"
#include "coordinator/reports/screen.h"

namespace lime::cli {

absl::StatusOr<std::unique_ptr<ChatBackend>> SessionChat::Open(const PlacingFlags& flags) {
  std::unique_ptr<SessionChat> chat(new SessionChat());
  LIME_ASSIGN_OR_RETURN(ModelFiles files, ModelFiles::Open(flags.model.model));
  LIME_ASSIGN_OR_RETURN(const ModelWeights weights, LookAtWeights(flags.model.model));
  LIME_ASSIGN_OR_RETURN(chat->model_, OpenServedModel(weights, files, {}));
  LIME_ASSIGN_OR_RETURN(chat->opened_,
                        OpenedModel::Open({.flags = flags, .spec = files.spec, .parallel = 1, .keeps_prompts = true, .progress = nullptr}));
  if (chat->model_->is_plain()) Screen::Say("the model has no chat template: the texts of messages are joined by line feeds");
  chat->Serve();
  return std::unique_ptr<ChatBackend>(std::move(chat));
}

void SessionChat::Serve() {
  model_->SetPlan(opened_->context(), opened_->numerics_ids());
  plan_.Set(opened_->Served(opened_->devices().plan()));
  Serving::Options options = opened_->HowToServe([this](const Plan& plan) { plan_.Set(opened_->Served(plan)); });
  options.prompt_cache = std::numeric_limits<Bytes>::max();  // in the slot of the plan: the next turn computes its new tokens alone
  serving_ = std::make_unique<Serving>(opened_->devices(), std::move(options));
  chat_ = std::make_unique<LocalChat>(*model_, *serving_, plan_);
}

SessionChat::~SessionChat() {
  chat_.reset();
  if (serving_ == nullptr) return;
  serving_.reset();
  if (const absl::Status closed = opened_->Close(); !closed.ok()) Screen::Say(std::string(closed.message()));
}

}  // namespace lime::cli
