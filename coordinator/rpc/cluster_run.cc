#include "coordinator/rpc/cluster_run.h"

#include "absl/strings/str_cat.h"

namespace lime {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);  // how often a wait looks for Ctrl-C

}  // namespace

ClusterRun::ClusterRun(ClusterClient& client, const OrderWriter::Options& orders)
    : client_(client), head_(client.plan().stages.back().device), writer_(orders), inbox_(std::make_shared<Inbox>()) {}

absl::StatusOr<RequestId> ClusterRun::Add(Request request, const RequestSampling& sampling) {
  LIME_ASSIGN_OR_RETURN(const RequestId id, writer_.Add(std::move(request)));
  sampling_.push_back(sampling);
  return id;
}

absl::Status ClusterRun::Run(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel) {
  if (!open_) {
    LIME_RETURN_IF_ERROR(client_.Open([inbox = inbox_](int32_t device, FromDevice what) {
      absl::MutexLock lock(&inbox->mutex);
      inbox->news.emplace_back(device, std::move(what));
    }));
    open_ = true;
  }
  SendOrders();
  while (!writer_.idle() && !(cancel != nullptr && cancel->load(std::memory_order_relaxed))) {
    for (const News& news : AwaitNews()) LIME_RETURN_IF_ERROR(OnNews(news, on_token));
    SendOrders();
  }
  return absl::OkStatus();
}

std::deque<ClusterRun::News> ClusterRun::AwaitNews() {
  absl::MutexLock lock(&inbox_->mutex);
  const auto has_news = +[](Inbox* inbox) ABSL_NO_THREAD_SAFETY_ANALYSIS { return !inbox->news.empty(); };
  inbox_->mutex.AwaitWithTimeout(absl::Condition(has_news, inbox_.get()), kLook);
  return std::exchange(inbox_->news, {});
}

absl::Status ClusterRun::OnNews(const News& news, const std::function<bool(const Token&)>& on_token) {
  const auto& [device, what] = news;
  if (const auto* failed = std::get_if<FailedNews>(&what)) return failed->status;
  if (device != head_) return absl::OkStatus();
  if (const auto* sampled = std::get_if<SampledNews>(&what)) return OnSampled(*sampled, on_token);
  if (const auto* ended = std::get_if<StepEndedNews>(&what)) {
    ++steps_;
    return writer_.OnStepEnded(ended->step);
  }
  return absl::OkStatus();
}

absl::Status ClusterRun::OnSampled(const SampledNews& news, const std::function<bool(const Token&)>& on_token) {
  LIME_ASSIGN_OR_RETURN(const std::vector<OrderWriter::Token> tokens, writer_.OnTokens(news.step, news.tokens));
  for (const OrderWriter::Token& token : tokens) {
    const bool go_on = on_token({.request = token.request,
                                 .token = news.tokens[token.index].token,
                                 .logits_hash = news.logits_hashes[token.index],
                                 .reason = token.reason});
    if (!go_on && token.reason == FinishReason::kNone) writer_.Stop(token.request);
  }
  return absl::OkStatus();
}

void ClusterRun::SendOrders() {
  for (Order& order : writer_.NextOrders()) {
    OrderMessage message{.order = std::move(order)};
    if (const auto* admit = std::get_if<AdmitOrder>(&message.order.what)) message.sampling = sampling_[static_cast<size_t>(admit->request)];
    client_.Send(message);
  }
}

}  // namespace lime
