#include "daemon/logic/stage_inbox.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/flow.h"
#include "planner/base/check.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

constexpr int64_t kMaxQueuedOrders = 4096;

// Ids whose logits the device hands on or takes, if it computes a part of the head.
int64_t MostIdsBetween(const Plan& plan, int32_t device) {
  int64_t most = 0;
  for (const Stage& stage : plan.stages) {
    if (stage.device != device) continue;
    most = std::max({most, IdsBefore(plan, stage.lo), stage.hi < plan.NumParts() ? IdsBefore(plan, stage.hi) : 0});
  }
  return most;
}

// Of one message of a decode step with such logits.
Bytes LogitBytesBetween(const Plan& plan, int32_t device) {
  const int64_t ids = MostIdsBetween(plan, device);
  return ids > 0 ? MostLogitBytes(/*messages=*/1, plan.batch, ids) : 0;
}

}  // namespace

StageInbox::StageInbox(const Plan& plan, int32_t device, const Shape& shape)
    : plan_(plan),
      device_(device),
      shape_(shape),
      grows_kv_(GrowsKv(plan)),
      waiting_allowed_(WaitingBytes(plan, device, shape.row_bytes)),
      new_spare_(plan.batch * shape.row_bytes),
      most_spare_(new_spare_ + LogitBytesBetween(plan, device)),
      again_(RowsAgain::For(plan, device)),
      latest_(static_cast<size_t>(plan.sequences)),
      lengths_(static_cast<size_t>(plan.sequences)),
      received_(latest_.size()) {
  const auto reserve = [&](std::vector<MicroBatch>& batches) {
    batches.resize(static_cast<size_t>(shape_.microbatches));
    for (MicroBatch& batch : batches) batch.rows.reserve(static_cast<size_t>(plan_.batch));
  };
  orders_.Reserve(static_cast<size_t>(Flow::kDecodeAhead) + 1,
                  [&](Order& order) { reserve(order.what.emplace<StepOrder>().microbatches); });
  reserve(batches_);
  // Each micro-batch of a decode step is in one place at a time; those of two steps may meet.
  const size_t waiting = 2 * static_cast<size_t>(shape_.microbatches);
  const size_t visits = plan.stages.size() * static_cast<size_t>(shape_.microbatches);
  used_.reserve(visits), came_.reserve(visits), spare_.reserve(waiting), spare_nodes_.reserve(waiting);
  while (spare_nodes_.size() < waiting) spare_nodes_.push_back(arrived_.extract(arrived_.try_emplace({}).first));
}

Bytes StageInbox::WaitingBytes(const Plan& plan, int32_t device, Bytes row_bytes) {
  const bool has_peers = std::ranges::any_of(plan.stages, [&](const Stage& stage) { return stage.device != device; });
  if (!has_peers) return 0;
  const Flow flow = Flow::Of(plan);
  const int64_t rows = flow.WaitingRows(), ids = MostIdsBetween(plan, device);
  return rows * row_bytes + (ids > 0 ? MostLogitBytes(/*messages=*/rows, flow.WaitingLogitRows(), ids) : 0);
}

// ---- Orders

absl::Status StageInbox::AddOrder(const Order& order) {
  LIME_RETURN_IF_ERROR(Check(order));
  ++next_order_;
  orders_.Push() = order;
  return absl::OkStatus();
}

Order& StageInbox::PopOrder() {
  LIME_CHECK(!orders_.empty());
  return orders_.Pop();
}

absl::Status StageInbox::Check(const Order& order) const {
  if (order.number != next_order_) return Invalid("order ", order.number, " arrived, expected order ", next_order_);
  if (static_cast<int64_t>(orders_.size()) >= kMaxQueuedOrders) return Invalid(kMaxQueuedOrders, " orders wait already");
  return std::visit([this](const auto& what) { return Check(what); }, order.what);
}

absl::Status StageInbox::Check(const AdmitOrder& admit) const {
  LIME_RETURN_IF_ERROR(CheckSlot(admit.sequence));
  if (admit.positions < 1 || admit.positions > plan_.context) {
    return Invalid("a sequence has ", admit.positions, " positions, the plan allows 1 to ", plan_.context);
  }
  if (admit.computed < 0 || admit.computed > std::ssize(admit.prompt))
    return Invalid("a sequence continues with KV of ", admit.computed, " positions, but ", admit.prompt.size(), " of its tokens are known");
  if (admit.source != -1) LIME_RETURN_IF_ERROR(CheckSlot(admit.source));
  LIME_RETURN_IF_ERROR(CheckSnapshot(admit.snapshot));
  return CheckIds(admit.prompt);
}

absl::Status StageInbox::Check(const RetireOrder& retire) const {
  LIME_RETURN_IF_ERROR(CheckSlot(retire.sequence));
  if (retire.kept == 0) return absl::OkStatus();
  const int64_t unit = SharedKvUnit(plan_);
  if (HasState(plan_) && plan_.state_snapshots == 0)
    return Invalid("a slot is to keep KV, but the model has a state, and the plan no snapshots of it");
  if (unit == 0) return Invalid("a slot is to keep KV, but the plan evicts it or lends it to a host");
  if (retire.kept < 0 || retire.kept > plan_.context || retire.kept % unit != 0)
    return Invalid("a slot is to keep KV of ", retire.kept, " positions, the plan allows multiples of ", unit, " up to ", plan_.context);
  return absl::OkStatus();
}

absl::Status StageInbox::Check(const ResidencyOrder& residency) const {
  if (!grows_kv_) return Invalid("the plan reserves all KV pages from the start, so its residency cannot change");
  return WithResidency(plan_, residency.to).status();
}

absl::Status StageInbox::Check(const RollbackOrder& back) const {
  LIME_RETURN_IF_ERROR(CheckSlot(back.sequence));
  LIME_RETURN_IF_ERROR(CheckSnapshot(back.snapshot));
  if (!RetainsAllKv(plan_) || SpillsKv(plan_))
    return Invalid("a sequence is to go back, but the plan evicts KV, or moves it to a disk or a host");
  if (back.positions < 1 || back.positions >= plan_.context)
    return Invalid("a sequence is to go back to ", back.positions, " positions, the plan allows 1 to ", plan_.context - 1);
  return absl::OkStatus();
}

absl::Status StageInbox::Check(const StepOrder& step) const {
  if (step.microbatches.empty() || std::ssize(step.microbatches) > shape_.microbatches) {
    return Invalid("a step has ", step.microbatches.size(), " micro-batches, the plan allows 1 to ", shape_.microbatches);
  }
  for (const MicroBatch& batch : step.microbatches) LIME_RETURN_IF_ERROR(CheckBatch(batch));
  return again_ ? again_->Check(step) : absl::OkStatus();
}

absl::Status StageInbox::CheckBatch(const MicroBatch& batch) const {
  if (std::ssize(batch.rows) > OwnRows(plan_)) {
    return Invalid("a micro-batch has ", batch.rows.size(), " rows, the plan allows at most ", OwnRows(plan_));
  }
  int64_t logit_rows = 0;
  for (const BatchRow& row : batch.rows) {
    LIME_RETURN_IF_ERROR(CheckSlot(row.sequence));
    if (row.position < 0 || row.position >= plan_.context)
      return Invalid("position ", row.position, " is outside the context of ", plan_.context);
    if (row.token != kSampledToken) LIME_RETURN_IF_ERROR(CheckIds({&row.token, 1}));
    LIME_RETURN_IF_ERROR(CheckSnapshot(row.snapshot));
    if (row.parent != -1) return absl::UnimplementedError("trees of speculated tokens are not computed yet");
    logit_rows += row.wants_logits ? 1 : 0;
  }
  if (const int64_t most = MostLogitRows(plan_); logit_rows > most)
    return Invalid("a micro-batch asks for logits of ", logit_rows, " rows, the plan allows at most ", most);
  return absl::OkStatus();
}

absl::Status StageInbox::CheckSlot(int32_t sequence) const {
  if (sequence >= 0 && sequence < plan_.sequences) return absl::OkStatus();
  return Invalid("there is no sequence slot ", sequence, ": the plan has ", plan_.sequences, " slots");
}

absl::Status StageInbox::CheckSnapshot(int32_t snapshot) const {
  if (snapshot >= -1 && snapshot < plan_.state_snapshots) return absl::OkStatus();
  return Invalid("there is no snapshot ", snapshot, ": the plan has ", plan_.state_snapshots, " for each slot");
}

absl::Status StageInbox::CheckIds(std::span<const int32_t> ids) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= shape_.vocab_size) return Invalid("token id ", id, " is outside the vocabulary of ", shape_.vocab_size);
  }
  return absl::OkStatus();
}

// ---- From peers

absl::StatusOr<std::optional<StageInbox::Visit>> StageInbox::OnActivation(ActivationMessage activation) {
  const ActivationHeader& header = activation.header;
  LIME_RETURN_IF_ERROR(CheckActivation(activation));
  if (header.payload == Payload::kToken) {
    LIME_RETURN_IF_ERROR(OnTokens(activation));
    AddSpare(std::move(activation.payload));
    return std::nullopt;
  }
  const Visit visit = {header.stage + 1, header.microbatch};
  if (waiting_bytes_ + header.bytes > waiting_allowed_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(waiting_bytes_, " bytes of hidden states wait already, the plan allows ", waiting_allowed_));
  }
  const std::pair key(header.step, visit);
  if (arrived_.contains(key)) return Invalid("stage ", visit.first, " has this micro-batch of step ", header.step, " already");
  MakeRoomFor(header.bytes);
  if (spare_nodes_.empty()) {
    arrived_.emplace(key, std::move(activation.payload));
  } else {
    Arrived::node_type node = std::move(spare_nodes_.back());
    spare_nodes_.pop_back();
    node.key() = key, node.mapped() = std::move(activation.payload);
    arrived_.insert(std::move(node));
  }
  waiting_bytes_ += header.bytes;
  return IsUnderWay(header.step) ? std::optional(visit) : std::nullopt;
}

absl::Status StageInbox::OnTokens(const ActivationMessage& activation) {
  const size_t most = static_cast<size_t>(std::max<int64_t>(plan_.sequences, MostLogitRows(plan_)));
  LIME_ASSIGN_OR_RETURN(tokens_, ParseSampledTokens(activation.payload, most, std::move(tokens_)));
  LIME_RETURN_IF_ERROR(CheckTokens(activation.header.step, tokens_));
  OnTokens(activation.header.step, tokens_);
  return absl::OkStatus();
}

std::vector<std::byte> StageInbox::PopSpare(Bytes bytes) {
  std::vector<std::byte> memory;
  if (bytes <= most_spare_ && !spare_.empty()) memory = TakeSpare();
  if (memory.capacity() == 0 || static_cast<Bytes>(memory.capacity()) < bytes)
    memory.reserve(static_cast<size_t>(std::max(bytes, new_spare_)));
  return memory;
}

std::vector<std::byte> StageInbox::TakeSpare() {
  std::vector<std::byte> memory = std::move(spare_.back());
  spare_.pop_back();
  spare_bytes_ -= static_cast<Bytes>(memory.capacity());
  memory.clear();
  return memory;
}

void StageInbox::AddSpare(std::vector<std::byte> payload) {
  const Bytes bytes = static_cast<Bytes>(payload.capacity());
  if (bytes == 0 || bytes > most_spare_ || spare_.size() == spare_.capacity()) return;
  if (waiting_bytes_ + spare_bytes_ + bytes > waiting_allowed_) return;
  spare_bytes_ += bytes;
  spare_.push_back(std::move(payload));
}

void StageInbox::MakeRoomFor(Bytes bytes) {
  while (!spare_.empty() && waiting_bytes_ + spare_bytes_ + bytes > waiting_allowed_) (void)TakeSpare();
}

absl::Status StageInbox::CheckActivation(const ActivationMessage& activation) {
  const ActivationHeader& header = activation.header;
  const int64_t bytes = std::ssize(activation.payload);
  if (header.epoch != plan_.epoch) return Invalid("the message is of epoch ", header.epoch, ", but epoch ", plan_.epoch, " is installed");
  if (header.bytes != bytes) return Invalid("the payload has ", bytes, " bytes, but its header says ", header.bytes);
  if (header.step > steps_begun_ + MaxEarlySteps()) return Invalid("step ", header.step, " is far beyond step ", steps_begun_);
  if (header.microbatch >= shape_.microbatches) return Invalid("the plan has no micro-batch ", header.microbatch);
  const int32_t stages = static_cast<int32_t>(plan_.stages.size());
  if (header.payload == Payload::kToken) {
    if (!IsFirst() || header.stage + 1 != stages) return Invalid("this device expects no tokens of stage ", header.stage);
    return absl::OkStatus();
  }
  const bool awaited = header.stage + 1 < stages && plan_.stages[header.stage + 1].device == device_;
  if (!awaited || header.payload != PayloadInto(plan_, header.stage + 1))
    return Invalid("this device expects no message of stage ", header.stage);
  if (header.step < steps_ended()) return Invalid("step ", header.step, " has ended");
  if (!IsUnderWay(header.step)) return CheckPayload(header.stage + 1, nullptr, activation.payload);
  LIME_RETURN_IF_ERROR(CheckVisit({header.stage + 1, header.microbatch}));
  return CheckPayload(header.stage + 1, &batch(header.microbatch), activation.payload);
}

// A visit of the current step comes once.
absl::Status StageInbox::CheckVisit(const Visit& visit) const {
  const auto& [stage, microbatch] = visit;
  if (microbatch >= std::ssize(batches_)) return Invalid("this step has no micro-batch ", microbatch);
  if (std::ranges::find(used_, visit) != used_.end())
    return Invalid("stage ", stage, " has used micro-batch ", microbatch, " of this step already");
  return absl::OkStatus();
}

// For the rows of `batch`. If it is null, and so not known yet: for as many rows as any may have.
absl::Status StageInbox::CheckPayload(int32_t stage, const MicroBatch* batch, std::span<const std::byte> payload) {
  const int64_t rows = batch != nullptr ? NumSentRows(plan_, *batch) : -1, most = SentRows(plan_);
  int64_t bytes = std::ssize(payload);
  if (const int64_t ids = IdsBefore(plan_, plan_.stages[stage].lo); ids > 0 && rows != 0 && bytes > 0) {
    LIME_ASSIGN_OR_RETURN(partial_, ParseHeadPartial(payload, ids, plan_.batch, std::move(partial_)));
    bytes = std::ssize(partial_.hidden);
    const int64_t asked = batch != nullptr ? std::ranges::count_if(batch->rows, &BatchRow::wants_logits) : -1;
    if (batch != nullptr && std::ssize(partial_.rows) != asked)
      return Invalid("logits of ", partial_.rows.size(), " rows arrived, but ", asked, " rows need logits");
  }
  if (batch != nullptr && bytes != rows * shape_.row_bytes)
    return Invalid("hidden states of ", bytes, " bytes arrived for ", rows, " rows of ", shape_.row_bytes, " bytes");
  if (bytes > most * shape_.row_bytes || bytes % shape_.row_bytes != 0)
    return Invalid("hidden states of ", bytes, " bytes arrived in rows of ", shape_.row_bytes, ", the limit is ", most);
  return absl::OkStatus();
}

// A sequence's tokens come in the order of their positions, each once.
absl::Status StageInbox::CheckTokens(int64_t step, std::span<const SampledToken> tokens) {
  if (step >= steps_begun_) return Invalid("tokens of step ", step, " arrived, but that step has not begun");
  for (const SampledToken& token : tokens) {
    LIME_RETURN_IF_ERROR(CheckSlot(token.sequence));
    LIME_RETURN_IF_ERROR(CheckIds({&token.token, 1}));
    received_[static_cast<size_t>(token.sequence)] = latest_[static_cast<size_t>(token.sequence)].position;
  }
  for (const SampledToken& token : tokens) {
    if (!Counts(latest_[static_cast<size_t>(token.sequence)], step, token.position)) continue;
    int32_t& before = received_[static_cast<size_t>(token.sequence)];
    if (token.position <= before || token.position > plan_.context)
      return Invalid("sequence ", token.sequence, " got its token at position ", token.position,
                     ", but it already has the token at position ", before);
    before = token.position;
  }
  return absl::OkStatus();
}

// Whether a token is one of the sequence that has the slot now, as far as it has not gone back.
bool StageInbox::Counts(const Latest& latest, int64_t step, int32_t position) {
  return step >= latest.from_step && (step >= latest.back_step || position <= latest.back_position);
}

void StageInbox::OnTokens(int64_t step, std::span<const SampledToken> tokens) {
  for (const SampledToken& token : tokens) {
    Latest& latest = latest_[static_cast<size_t>(token.sequence)];
    if (!Counts(latest, step, token.position)) continue;
    latest.position = token.position, latest.token = token.token;
    if (again_) again_->Add(token);
  }
}

// A peer's orders may be ahead of the orders here by as many steps again.
int64_t StageInbox::MaxEarlySteps() const {
  return 2 * std::max(Flow::kDecodeAhead, Flow::Of(plan_).PromptsAhead());
}

// ---- Steps

void StageInbox::Admit(const AdmitOrder& admit) {
  latest_[static_cast<size_t>(admit.sequence)] = {.from_step = steps_begun_};
  lengths_[static_cast<size_t>(admit.sequence)] = admit.positions;
  if (again_) again_->Admit(admit);
}

void StageInbox::RollBack(const RollbackOrder& back) {
  Latest& latest = latest_[static_cast<size_t>(back.sequence)];
  latest.back_step = steps_begun_, latest.back_position = static_cast<int32_t>(back.positions);
  if (latest.position > latest.back_position) latest.position = -1;
}

std::span<const StageInbox::Visit> StageInbox::BeginStep(std::vector<MicroBatch>&& batches) {
  LIME_CHECK(!step_under_way_);
  batches_.swap(batches);
  for (MicroBatch& batch : batches_) {
    for (BatchRow& row : batch.rows) row.length = lengths_[static_cast<size_t>(row.sequence)];
  }
  step_under_way_ = true;
  tokens_awaited_ = 0;
  ++steps_begun_;
  came_.clear();
  for (auto it = arrived_.begin(); it != arrived_.end() && it->first.first < steps_begun_;) {
    const Visit visit = it->first.second;
    const bool awaited = visit.second < std::ssize(batches_);
    if (awaited) came_.push_back(visit);
    if (!awaited) waiting_bytes_ -= std::ssize(it->second);
    it = awaited ? std::next(it) : arrived_.erase(it);
  }
  return came_;
}

void StageInbox::EndStep() {
  step_under_way_ = false;
  used_.clear();
}

std::optional<int32_t> StageInbox::NextWithTokens() {
  if (!step_under_way_ || tokens_awaited_ >= std::ssize(batches_)) return std::nullopt;
  if (!FillTokens(batches_[static_cast<size_t>(tokens_awaited_)])) return std::nullopt;
  return tokens_awaited_++;
}

bool StageInbox::FillTokens(MicroBatch& batch) const {
  for (BatchRow& row : batch.rows) {
    if (row.token != kSampledToken) continue;
    const Latest& latest = latest_[static_cast<size_t>(row.sequence)];
    if (latest.position != row.position) return false;
    row.token = latest.token;
  }
  return true;
}

std::vector<std::byte> StageInbox::PopInput(const Visit& visit) {
  const auto found = arrived_.find({steps_begun_ - 1, visit});
  if (found == arrived_.end()) return {};
  std::vector<std::byte> input = std::move(found->second);
  used_.push_back(visit);
  waiting_bytes_ -= std::ssize(input);
  spare_nodes_.push_back(arrived_.extract(found));
  return input;
}

}  // namespace lime
