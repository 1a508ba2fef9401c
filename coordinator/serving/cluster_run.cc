#include "coordinator/serving/cluster_run.h"

#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/flow.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

constexpr absl::Duration kLook = absl::Milliseconds(100);  // how often a wait looks for Ctrl-C

bool IsSet(const std::atomic<bool>* cancel) {
  return cancel != nullptr && cancel->load(std::memory_order_relaxed);
}

}  // namespace

ClusterRun::ClusterRun(Devices& devices, std::optional<Survival> survival, LevelsOf levels, Owner owner, Bytes prompt_cache)
    : devices_(devices),
      survival_(std::move(survival)),
      levels_(std::move(levels)),
      prompt_cache_(prompt_cache),
      writer_(OrdersFor(devices.plan(), nullptr)),
      owner_(std::move(owner)),
      border_at_(owner_.at_border ? absl::InfinitePast() : absl::InfiniteFuture()) {
  CompareKernels();
  if (!survival_) return;
  first_ = newest_ = devices.plan();
  recovery_.emplace(survival_->recovery, DevicesUsed(devices.plan()));
}

OrderWriter::Logits ClusterRun::LogitsFor(const RequestSampling& sampling) {
  return sampling.score_top ? OrderWriter::Logits::kAll : sampling.hash_logits ? OrderWriter::Logits::kAgain : OrderWriter::Logits::kNewest;
}

absl::StatusOr<RequestId> ClusterRun::Add(Request request, const RequestSampling& sampling, std::optional<RequestId> id) {
  LIME_ASSIGN_OR_RETURN(const RequestId added, writer_.Add(std::move(request), LogitsFor(sampling), id));
  asked_.emplace(added, Asked{.sampling = sampling, .hash_begins = sampling.hash_state});
  return added;
}

void ClusterRun::Stop(RequestId request) {
  writer_.Stop(request);
  asked_.erase(request);
  if (writer_.idle()) change_began_ = absl::InfiniteFuture(), goes_on_in_prompt_ = false;  // no request pauses
}

void ClusterRun::Wake() {
  absl::MutexLock lock(&inbox_->mutex);
  inbox_->woken = true;
}

bool ClusterRun::Over(const std::atomic<bool>* cancel) const {
  return IsSet(cancel) || (!owner_.at_border && writer_.idle());
}

absl::Status ClusterRun::Run(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel) {
  while (true) {
    absl::Status status = RunPlan(on_token, cancel);
    if (!status.ok()) change_.reset(), change_began_ = absl::InfiniteFuture(), goes_on_in_prompt_ = false;
    if (status.ok() && change_ && !IsSet(cancel))
      status = ChangePlan(cancel);
    else if (status.ok() && Over(cancel))
      return status;
    if (!status.ok()) {
      if (!recovery_ || IsSet(cancel)) return status;
      LIME_RETURN_IF_ERROR(Recover(status, cancel));
    }
    if (IsSet(cancel)) return absl::OkStatus();
  }
}

absl::Status ClusterRun::RunPlan(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel) {
  if (!open_) LIME_RETURN_IF_ERROR(Open());
  SendOrders();
  while (!Over(cancel)) {
    LIME_RETURN_IF_ERROR(OnNextNews(on_token, cancel));
    ReportPrompts();
    if (survival_ && survival_->change && !writer_.idle()) change_ = survival_->change(writer_.remaining());
    if (change_) return Drain(on_token, cancel);
    SendOrders();
  }
  return absl::OkStatus();
}

absl::Status ClusterRun::Open() {
  ReserveNews(news_);
  int64_t opened = 0;
  {
    absl::MutexLock lock(&inbox_->mutex);
    ReserveNews(inbox_->news);
    opened = ++inbox_->opened;
  }
  LIME_RETURN_IF_ERROR(devices_.Open([inbox = inbox_, opened](int32_t device, const FromDevice& what) {
    absl::MutexLock lock(&inbox->mutex);
    if (inbox->opened != opened) return;
    News& news = inbox->news.Push();
    const auto* tokens = std::get_if<SampledNews>(&what);
    news.device = device, news.sampled = tokens != nullptr;
    if (tokens != nullptr) {
      news.tokens = *tokens;
    } else {
      news.other = what;
    }
  }));
  open_ = true;
  return absl::OkStatus();
}

absl::Status ClusterRun::Drain(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel) {
  while (writer_.steps_under_way() > 0 && !IsSet(cancel)) LIME_RETURN_IF_ERROR(OnNextNews(on_token, cancel));
  if (writer_.idle()) change_.reset();  // no request is left to gain from it
  return absl::OkStatus();
}

// Reserves for all news that may wait while requests decode. Then memory does not grow later when a
// thread is slow.
void ClusterRun::ReserveNews(RecycledQueue<News>& news) const {
  const Plan& plan = devices_.plan();
  const auto rows = static_cast<size_t>(plan.sequences);
  const auto of_a_step = static_cast<size_t>(plan.microbatches) + plan.devices.size();  // tokens, and the step's end on each device
  news.clear();
  news.Reserve((static_cast<size_t>(Flow::kDecodeAhead) + 1) * of_a_step, [&](News& place) {
    place.tokens.tokens.reserve(rows), place.tokens.logits_hashes.reserve(rows);
    place.tokens.hash_states.reserve(rows), place.tokens.scores.reserve(rows);
  });
}

void ClusterRun::AwaitNews(absl::Time until) {
  news_.clear();
  const bool looks = !owner_.at_border || (owner_.on_prompt && !writer_.in_prompt().empty());
  until = std::min({until, border_at_, looks ? absl::Now() + kLook : absl::InfiniteFuture()});
  bool woken = false;
  {
    absl::MutexLock lock(&inbox_->mutex);
    const auto has_news = +[](Inbox* inbox) ABSL_EXCLUSIVE_LOCKS_REQUIRED(inbox->mutex) { return inbox->woken || !inbox->news.empty(); };
    inbox_->mutex.AwaitWithDeadline(absl::Condition(has_news, inbox_.get()), until);
    std::swap(inbox_->news, news_);
    woken = std::exchange(inbox_->woken, false);
  }
  AskAtBorder(woken);
}

void ClusterRun::AskAtBorder(bool woken) {
  if (owner_.at_border && (woken || absl::Now() >= border_at_)) border_at_ = owner_.at_border();
}

template <typename Work>
auto ClusterRun::Beside(const Work& work) {
  if (!owner_.at_border) return work();
  std::optional<decltype(work())> answer;
  std::atomic<bool> done = false;
  std::thread thread([&] {
    answer.emplace(work());
    done = true;
    Wake();
  });
  while (!done) AwaitNews(absl::InfiniteFuture());
  thread.join();
  return *std::move(answer);
}

absl::Status ClusterRun::OnNextNews(const std::function<bool(const Token&)>& on_token, const std::atomic<bool>* cancel) {
  AwaitNews(absl::InfiniteFuture());
  for (size_t i = 0; i < news_.size(); ++i) {
    const bool ends_step = news_[i].sampled ? news_[i].tokens.ends_step : std::holds_alternative<StepEndedNews>(news_[i].other);
    if (ends_step && pace_ > absl::ZeroDuration()) AwaitPace(cancel);
    LIME_RETURN_IF_ERROR(OnNews(news_[i], on_token));
  }
  return absl::OkStatus();
}

// Leaves the news of the devices where they are.
void ClusterRun::AwaitPace(const std::atomic<bool>* cancel) {
  while (absl::Now() < step_due_ && !IsSet(cancel)) {
    bool woken = false;
    {
      absl::MutexLock lock(&inbox_->mutex);
      inbox_->mutex.AwaitWithDeadline(absl::Condition(&inbox_->woken), std::min(step_due_, border_at_));
      woken = std::exchange(inbox_->woken, false);
    }
    AskAtBorder(woken);
  }
  step_due_ = absl::Now() + pace_;
}

absl::Status ClusterRun::OnNews(const News& news, const std::function<bool(const Token&)>& on_token) {
  if (const auto* failed = std::get_if<FailedNews>(&news.other); failed != nullptr && !news.sampled)
    return WithDevice(failed->status, devices_.plan().devices[news.device].name);
  if (news.device != head()) return absl::OkStatus();
  if (news.sampled) {
    LIME_RETURN_IF_ERROR(OnSampled(news.tokens, on_token));
    return news.tokens.ends_step ? OnStepEnded(news.tokens.step) : absl::OkStatus();
  }
  if (const auto* ended = std::get_if<StepEndedNews>(&news.other)) return OnStepEnded(ended->step);
  return absl::OkStatus();
}

absl::Status ClusterRun::OnStepEnded(int64_t step) {
  ++steps_;
  if (goes_on_in_prompt_) ReportPause();
  return writer_.OnStepEnded(step);
}

absl::Status ClusterRun::OnSampled(const SampledNews& news, const std::function<bool(const Token&)>& on_token) {
  LIME_ASSIGN_OR_RETURN(const std::span<const OrderWriter::Token> tokens, writer_.OnTokens(news.step, news.tokens));
  for (const OrderWriter::Token& token : tokens) {
    const SampledToken& sampled = news.tokens[token.index];
    const uint64_t logits_hash = news.logits_hashes[token.index];
    const auto found = asked_.find(token.request);
    if (found == asked_.end()) continue;  // an earlier token ended it
    Asked& asked = found->second;
    if (token.again && (!asked.sampling.score_top || sampled.position <= asked.position)) {
      CompareLogits(token.request, sampled.position, logits_hash);
      continue;
    }
    const cpu::RowScore* const score = news.scores[token.index] ? &*news.scores[token.index] : nullptr;
    asked.position = sampled.position, asked.logits_hash = logits_hash;
    if (!token.again) asked.reported_share = 1;
    if (recovery_) (void)recovery_->OnEvent(Recovery::NewToken{}, absl::Now());
    ReportPause();
    const bool go_on = on_token({.request = token.request,
                                 .token = sampled.token,
                                 .known = token.again,
                                 .logits_hash = logits_hash,
                                 .hash_state = news.hash_states[token.index],
                                 .score = score,
                                 .reason = token.reason});
    if (token.reason != FinishReason::kNone) {
      asked_.erase(token.request);
    } else if (!go_on) {
      Stop(token.request);
    }
  }
  return absl::OkStatus();
}

void ClusterRun::SendOrders() {
  const std::vector<Order>& orders = writer_.NextOrders();
  for (const RequestId request : writer_.started()) {
    if (owner_.on_start) owner_.on_start(request);
  }
  for (const Order& order : orders) {
    message_.order = order;
    if (const auto* admit = std::get_if<AdmitOrder>(&order.what)) {
      message_.sampling = asked_.at(admit->request).sampling;
      if (owner_.on_admit) owner_.on_admit(admit->request, admit->computed);
    }
    devices_.Send(message_);
    message_.sampling = {};  // steps need none
  }
  cached_pages_ = writer_.cache().pages();
}

void ClusterRun::ReportPrompts() {
  if (!owner_.on_prompt) return;
  const std::span<const OrderWriter::InPromptOf> prompts = writer_.in_prompt();
  if (prompts.empty()) return;
  const double in_step = devices_.StepShare();
  for (const OrderWriter::InPromptOf& of : prompts) {
    const double computed = static_cast<double>(of.computed) + static_cast<double>(of.under_way) * in_step;
    Asked& asked = asked_.at(of.request);
    const double share = std::min(1.0, computed / static_cast<double>(of.rows));
    if (share > asked.reported_share) owner_.on_prompt(of.request, asked.reported_share = share);
  }
}

// ---- Change of plans while all devices work

// KV moves with its layers. If that is impossible, the new plan computes the known tokens again.
// Each sentence to the user states an upper bound on the pause that follows.
absl::Status ClusterRun::ChangePlan(const std::atomic<bool>* cancel) {
  const Change change = *std::exchange(change_, std::nullopt);
  change_began_ = absl::Now();
  goes_on_in_prompt_ = !writer_.decodes();
  const absl::Status status = change.taking_over ? ChangeTakingOver(change, cancel) : ChangeComputingAgain(change, cancel);
  const bool lost = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) || absl::IsAborted(status);
  if (lost) change_began_ = absl::InfiniteFuture();  // recovery has no stated bound
  if (!status.ok() && !lost && !IsSet(cancel))
    StatePause("continues with the previous plan and computes the KV so far again", change.going_back);
  LIME_RETURN_IF_ERROR(status);
  ++changes_;
  first_ = newest_ = devices_.plan();
  recovery_.emplace(survival_->recovery, DevicesUsed(devices_.plan()));
  return absl::OkStatus();
}

absl::Status ClusterRun::ChangeTakingOver(const Change& change, const std::atomic<bool>* cancel) {
  StatePause(absl::StrCat(change.why, "; changes to another plan"), *change.taking_over);
  const absl::StatusOr<Devices::Handover> handover = devices_.HandOver();
  open_ = false;
  LIME_RETURN_IF_ERROR(handover.status());
  absl::Status status = InstallTakingOver(change, *handover, cancel);
  if (status.ok() || IsSet(cancel)) return status;
  goes_on_in_prompt_ = false;
  StatePause(absl::StrCat("the KV so far cannot be taken over (", status.message(), "), so it is computed again"), change.computing_again);
  return InstallAgain(change.plan, cancel);
}

absl::Status ClusterRun::ChangeComputingAgain(const Change& change, const std::atomic<bool>* cancel) {
  goes_on_in_prompt_ = false;
  StatePause(absl::StrCat(change.why, "; changes to another plan and computes the KV so far again"), change.computing_again);
  const absl::Status unloaded = devices_.Unload();
  open_ = false;
  LIME_RETURN_IF_ERROR(unloaded);
  return InstallAgain(change.plan, cancel);
}

void ClusterRun::StatePause(const std::string& what, absl::Duration most) {
  const absl::Duration stated = absl::Ceil(most, absl::Milliseconds(100));
  stated_pause_ = absl::Now() - change_began_ + stated;
  Say(absl::StrCat(what, ", which takes at most ", absl::FormatDuration(stated)));
}

absl::Status ClusterRun::InstallTakingOver(const Change& change, const Devices::Handover& handover, const std::atomic<bool>* cancel) {
  if (!handover.all) return absl::FailedPreconditionError("not every device handed over its KV");
  const OrderWriter::Options orders = NextOrdersFor(change.plan, cancel);
  const bool computed = writer_.remaining().pages > 0;
  LIME_ASSIGN_OR_RETURN(const std::vector<OrderWriter::Continued> continued, writer_.GoOn(orders, change.most_pages));
  const auto is_request = [](const OrderWriter::Continued& each) { return each.request.has_value(); };
  if (computed && std::ranges::none_of(continued, is_request))
    return absl::FailedPreconditionError("no request can continue with its KV: the plan begins with too little");
  ForgetHashes();
  std::vector<KvSequence> sequences;
  for (const OrderWriter::Continued& each : continued) {
    sequences.push_back(each.sequence);
    if (!each.request) continue;
    RequestSampling& sampling = asked_.at(*each.request).sampling;
    const auto state = handover.hashes.find(each.sequence.from);
    if (sampling.hash_logits && state == handover.hashes.end())
      return absl::FailedPreconditionError("no device handed over the hash of the logits");
    if (sampling.hash_logits) sampling.hash_state = state->second;
  }
  return Install(change.plan, sequences);
}

void ClusterRun::ReportPause() {
  const absl::Time began = std::exchange(change_began_, absl::InfiniteFuture());
  goes_on_in_prompt_ = false;
  if (began == absl::InfiniteFuture()) return;
  const absl::Duration pause = absl::Now() - began;
  Say(absl::StrCat("continues after ", absl::FormatDuration(absl::Floor(pause, absl::Milliseconds(1))),
                   pause > stated_pause_ ? ", which is longer than stated" : ""));
}

// ---- After a failure

absl::Status ClusterRun::Recover(const absl::Status& failure, const std::atomic<bool>* cancel) {
  devices_.Abandon();
  may_have_kv_ = open_;
  open_ = false;
  ++recoveries_;
  if (writer_.idle()) (void)recovery_->OnEvent(Recovery::NewToken{}, absl::Now());  // no token was due
  Recovery::Event event = Recovery::Failed{DeviceOf(failure), failure};
  while (!IsSet(cancel)) {
    const Recovery::Answer answer = recovery_->OnEvent(event, absl::Now());
    Say(answer.say);
    if (std::holds_alternative<Recovery::GoOn>(answer.action)) return absl::OkStatus();
    if (const auto* end = std::get_if<Recovery::GiveUp>(&answer.action)) {
      absl::Status why = WithDevice(end->why, end->device);
      if (end->for_good || !owner_.on_give_up) return why;
      owner_.on_give_up(why);
      event = Recovery::TryAgain{};
    }
    if (const auto* ask = std::get_if<Recovery::Ask>(&answer.action)) event = Do(*ask, cancel);
    if (const auto* make = std::get_if<Recovery::MakePlan>(&answer.action)) event = Do(*make, cancel);
    if (const auto* install = std::get_if<Recovery::Install>(&answer.action)) event = Do(*install, cancel);
  }
  return absl::OkStatus();
}

Recovery::Event ClusterRun::Do(const Recovery::Ask& ask, const std::atomic<bool>* cancel) {
  // No news comes. Only the owner is asked.
  for (const absl::Time until = absl::Now() + ask.after; absl::Now() < until && !IsSet(cancel);) AwaitNews(until);
  answered_ = devices_.Free();
  return Recovery::Answered{answered_};
}

Recovery::Event ClusterRun::Do(const Recovery::MakePlan& make, const std::atomic<bool>* cancel) {
  if (!survival_->plan) return Recovery::NoPlan{absl::UnimplementedError("this run cannot plan")};
  absl::StatusOr<Plan> plan = Beside([&] { return survival_->plan(make.devices, cancel); });
  if (!plan.ok()) return Recovery::NoPlan{plan.status()};
  // If a request does not fit this plan, the missing device may still come back.
  if (const absl::Status fit = writer_.CheckAll(NextOrdersFor(*plan, cancel)); !fit.ok()) return Recovery::NoPlan{fit};
  newest_ = *std::move(plan);
  return Recovery::Planned{DevicesUsed(*newest_)};
}

Recovery::Event ClusterRun::Do(const Recovery::Install& install, const std::atomic<bool>* cancel) {
  if (install.first) newest_ = first_;
  const absl::Status status = KvIsLeft(*newest_) ? InstallInterrupted(*newest_, cancel) : InstallAgain(*newest_, cancel);
  if (!status.ok()) return Recovery::InstallFailed{DeviceOf(status), status};
  return Recovery::Installed{};
}

// A device that is missing has lost its KV. KV that is on hosts is not taken over: a piece may be on
// its way. Nor is KV whose pages behind a window are gone, by a plan that keeps all pages.
bool ClusterRun::KvIsLeft(const Plan& next) {
  if (!std::exchange(may_have_kv_, false) || writer_.idle()) return false;
  const Plan& failed = devices_.plan();
  if (std::ranges::any_of(failed.devices, HasKvOnHost) || std::ranges::any_of(next.devices, HasKvOnHost)) return false;
  if (WindowOf(failed).positions != WindowOf(next).positions) return false;
  if (survival_->takes_over && !survival_->takes_over(failed, next, writer_.remaining().pages)) return false;
  return std::ranges::includes(answered_, DevicesUsed(failed)) && devices_.HaveKeptKv();
}

absl::Status ClusterRun::InstallInterrupted(const Plan& plan, const std::atomic<bool>* cancel) {
  LIME_ASSIGN_OR_RETURN(const std::vector<OrderWriter::Continued> continued, writer_.GoOnInterrupted(NextOrdersFor(plan, cancel)));
  ForgetHashes();
  for (auto& [id, asked] : asked_) asked.reported_share = 0;
  std::vector<KvSequence> sequences;
  int64_t positions = 0;
  for (const OrderWriter::Continued& each : continued) {
    sequences.push_back(each.sequence);
    positions += each.sequence.positions;
  }
  const absl::Status status = Install(plan, sequences);
  if (status.ok() && !sequences.empty())
    Say(absl::StrCat("the devices have kept the KV of ", positions, " tokens, which are not computed again"));
  if (status.ok() || sequences.empty() || IsSet(cancel)) return status;
  Say(absl::StrCat("the KV so far cannot be taken over (", status.message(), "), so it is computed again"));
  return InstallAgain(plan, cancel);
}

// Checks that the requests fit, and computes the levels, before a device loads anything.
absl::Status ClusterRun::InstallAgain(const Plan& plan, const std::atomic<bool>* cancel) {
  LIME_RETURN_IF_ERROR(writer_.Restart(NextOrdersFor(plan, cancel)));
  ForgetHashes();
  for (auto& [id, asked] : asked_) asked.reported_share = 0;
  return Install(plan, {});
}

absl::Status ClusterRun::Install(const Plan& plan, const std::vector<KvSequence>& kv) {
  Devices::InstallOptions options = survival_->install;
  options.kv = kv;
  if (IsSet(options.cancelled)) return absl::CancelledError("interrupted");
  LIME_RETURN_IF_ERROR(Beside([&] { return devices_.Install(plan, options); }));
  if (survival_->in_use) survival_->in_use(devices_.plan());
  if (owner_.on_plan) owner_.on_plan();
  CompareKernels();
  return absl::OkStatus();
}

OrderWriter::Options ClusterRun::NextOrdersFor(const Plan& plan, const std::atomic<bool>* cancel) {
  return Beside([&] { return OrdersFor(plan, cancel); });
}

OrderWriter::Options ClusterRun::OrdersFor(const Plan& plan, const std::atomic<bool>* cancel) const {
  OrderWriter::Options orders = OrderWriter::For(plan, prompt_cache_);
  const std::vector<Residency> levels = levels_ ? levels_(plan, cancel) : orders.levels;
  if (GrowsKv(plan)) orders.levels = levels;
  return orders;
}

// Equal bits need the same order of every sum. Says once if other kernels may compute a layer from
// now on.
void ClusterRun::CompareKernels() {
  const size_t before = numerics_.size();
  for (const InstalledPlan& installed : devices_.installed()) {
    if (!installed.numerics_id.empty()) numerics_.insert(installed.numerics_id);
  }
  const bool moved = first_ && DevicesUsed(devices_.plan()) != DevicesUsed(*first_);
  const bool same = before == 0 || numerics_.size() == 1 || (numerics_.size() == before && !moved);
  if (same || std::exchange(reported_bits_, true)) return;
  Say("the devices' kernels add up in different orders, so logits may differ in their last bits from now on; --numerics portable on every "
      "limed gives them one order");
}

void ClusterRun::CompareLogits(RequestId request, int32_t position, uint64_t logits_hash) {
  const Asked& asked = asked_.at(request);
  if (position != asked.position || logits_hash == asked.logits_hash || std::exchange(reported_bits_, true)) return;
  Say(absl::StrCat("request ", request, ": the logits computed again differ from the earlier ones in some bits"));
}

void ClusterRun::ForgetHashes() {
  for (auto& [id, asked] : asked_) asked.sampling.hash_state = asked.hash_begins;
}

void ClusterRun::Say(const std::string& sentence) const {
  if (survival_ && survival_->say && !sentence.empty()) survival_->say(sentence);
}

}  // namespace lime
