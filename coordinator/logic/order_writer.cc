#include "coordinator/logic/order_writer.h"

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/flow.h"
#include "planner/base/check.h"
#include "planner/plan/kv_eviction.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

int64_t LogitRows(const MicroBatch& batch) {
  return std::ranges::count_if(batch.rows, &BatchRow::wants_logits);
}

}  // namespace

OrderWriter::Options OrderWriter::For(const Plan& plan) {
  Options options;
  options.sequences = plan.sequences;
  options.context = plan.context;
  options.batch = plan.batch;
  options.logit_rows = MostLogitRows(plan);
  options.microbatches = plan.reads == ReadsPerStep::kOnce ? std::max(plan.microbatches, plan.chunks_per_sweep) : plan.microbatches;
  options.max_rows = OwnRows(plan);
  options.chunk = options.max_rows;
  options.chunks = std::max(1, plan.chunks_per_sweep);
  options.look_ahead = Flow::kDecodeAhead;
  options.prompts_ahead = static_cast<int32_t>(Flow::Of(plan).PromptsAhead());
  if (IdsBefore(plan, plan.stages.back().lo) > 0) options.prompt_logits = plan.batch;
  if (GrowsKv(plan)) options.levels = {ResidencyOf(plan)};
  options.kept_positions = plan.kept_positions;
  options.evicting_ahead = static_cast<int32_t>(Flow::Of(plan).EvictingAhead());
  return options;
}

OrderWriter::OrderWriter(const Options& options) : options_(options) {
  LIME_CHECK_GE(options.sequences, 1);
  LIME_CHECK_GE(options.max_rows, options.batch);
  LIME_CHECK_GE(int64_t{options.batch} * options.microbatches, options.sequences);
  LIME_CHECK(options.prompt_logits >= 1 && options.chunk >= 1 && options.chunks >= 1 && options.look_ahead >= 1 &&
             options.prompts_ahead >= 1 && options.evicting_ahead >= 1);
  BeginPlan();
}

void OrderWriter::BeginPlan() {
  ReserveMemory();
  free_slots_.clear();
  for (int32_t slot = options_.sequences; slot-- > 0;) free_slots_.push_back(slot);
  memory_.reset();
  if (options_.levels.empty()) return;
  MemoryPlanner::Options memory{.sequences = options_.sequences, .lead = kResidencyLead};
  for (const Residency& level : options_.levels) memory.layer_pages.push_back(level.layer_pages);
  memory_.emplace(memory);
}

// For as many steps as decode at a time, so that it does not depend on who is late when memory is taken.
void OrderWriter::ReserveMemory() {
  const auto batches = static_cast<size_t>(options_.microbatches), batch = static_cast<size_t>(options_.batch);
  const auto steps = static_cast<size_t>(options_.look_ahead) + 1;
  under_way_.Reserve(steps, [&](UnderWay& step) { step.awaited.reserve(batches * batch); });
  awaited_.reserve(batches * batch), requests_.reserve(batches * batch), tokens_.reserve(batches * batch);
  orders_.reserve(steps), spare_orders_.reserve(steps);
  while (spare_orders_.size() < steps) spare_orders_.push_back({.what = StepOrder{std::vector<MicroBatch>(batches)}});
  for (Order& order : spare_orders_) {
    for (MicroBatch& rows : std::get<StepOrder>(order.what).microbatches) rows.rows.reserve(batch);
  }
}

absl::Status OrderWriter::CheckFits(const Request& request, const Options& options) {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (request.max_new_tokens > options.context - prompt) {
    return absl::ResourceExhaustedError(absl::StrCat("the request needs ", prompt, " prompt + ", request.max_new_tokens,
                                                     " new tokens and the plan has ", options.context,
                                                     " positions for one; plan with more --tokens, or shorten the prompt or --max-tokens"));
  }
  const int64_t pages = (prompt + request.max_new_tokens + kPageTokens - 1) / kPageTokens;
  if (!options.levels.empty() && pages > options.levels.back().layer_pages) {
    return absl::ResourceExhaustedError(absl::StrCat("the request needs KV for ", prompt, " prompt + ", request.max_new_tokens,
                                                     " new tokens, and the plan comes to have ", options.levels.back().layer_pages,
                                                     " pages of 16; plan with more --kv-tokens or memory, or shorten the prompt or "
                                                     "--max-tokens"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RequestId> OrderWriter::Add(Request request, Logits logits) {
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens and the model no BOS token; give a prompt");
  if (request.max_new_tokens < (logits == Logits::kAll ? 0 : 1)) return absl::InvalidArgumentError("max-tokens must be at least 1");
  LIME_RETURN_IF_ERROR(CheckFits(request, options_));
  Entry entry;
  entry.tokens = request.prompt;
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  entry.logits_from = logits == Logits::kAll ? 1 : logits == Logits::kAgain ? prompt : std::numeric_limits<int64_t>::max();
  entry.end = prompt + request.max_new_tokens;
  entry.generated.reserve(static_cast<size_t>(request.max_new_tokens));
  entry.request = std::move(request);
  entries_.push_back(std::move(entry));
  const RequestId id = static_cast<RequestId>(entries_.size()) - 1;
  waiting_.push_back(id);
  return id;
}

absl::Status OrderWriter::Restart(const Options& options) {
  std::deque<RequestId> again(running_.begin(), running_.end());
  again.insert(again.end(), waiting_.begin(), waiting_.end());
  for (const RequestId id : again) LIME_RETURN_IF_ERROR(CheckFits(entries_[id].request, options));
  for (const RequestId id : again) {
    Entry& entry = entries_[id];
    entry.state = State::kWaiting;
    entry.slot = -1;
    entry.ordered = 0;
    entry.tokens = entry.request.prompt;
    entry.tokens.insert(entry.tokens.end(), entry.generated.begin(), entry.generated.end());
  }
  options_ = options;
  waiting_ = std::move(again);
  running_.clear(), to_retire_.clear(), under_way_.clear();
  BeginPlan();
  next_order_ = next_step_ = rows_computed_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<OrderWriter::Kept>> OrderWriter::GoOn(const Options& options) {
  LIME_CHECK(under_way_.empty());
  std::vector<Kept> kept;
  int64_t pages = options.levels.empty() ? std::numeric_limits<int64_t>::max() : options.levels.front().layer_pages;
  for (const RequestId id : running_) {
    const Entry& entry = entries_[id];
    pages -= (entry.ordered + kPageTokens - 1) / kPageTokens;
    if (pages < 0 || std::ssize(kept) == options.sequences) break;
    if (entry.ordered > 0) kept.push_back({id, {.from = entry.slot, .to = static_cast<int32_t>(kept.size()), .positions = entry.ordered}});
  }
  LIME_RETURN_IF_ERROR(Restart(options));
  for (const Kept& each : kept) {
    entries_[each.request].slot = each.sequence.to;
    entries_[each.request].ordered = each.sequence.positions;
    rows_computed_ += each.sequence.positions;
    std::erase(free_slots_, each.sequence.to);
  }
  // Who has a slot waits for nobody's.
  std::stable_partition(waiting_.begin(), waiting_.end(), [this](RequestId id) { return entries_[id].slot >= 0; });
  return kept;
}

const std::vector<Order>& OrderWriter::NextOrders() {
  for (Order& order : orders_) {
    if (std::holds_alternative<StepOrder>(order.what)) spare_orders_.push_back(std::move(order));
  }
  orders_.clear();
  for (const int32_t slot : to_retire_) {
    Write(RetireOrder{slot});
    Tell(MemoryPlanner::Retire{slot});
    free_slots_.push_back(slot);
  }
  to_retire_.clear();
  do {
    Admit();
  } while (MayOrderStep() && WriteStep());
  return orders_;
}

void OrderWriter::Tell(const MemoryPlanner::Event& event) {
  if (memory_) TakeLevel(memory_->OnEvent(event));
}

void OrderWriter::TakeLevel(std::optional<int> level) {
  if (level) Write(ResidencyOrder{options_.levels[static_cast<size_t>(*level)]});
}

MemoryPlanner::Claim OrderWriter::ClaimOf(const Entry& entry) {
  return {.prompt = static_cast<int64_t>(entry.tokens.size()), .end = entry.end};
}

bool OrderWriter::MayAdmit(const Entry& entry) {
  if (!memory_) return true;
  if (!memory_->Fits(entry.end)) return false;
  if (memory_->HasPages(ClaimOf(entry))) return true;
  std::vector<MemoryPlanner::Claim> claims;
  size_t free = free_slots_.size();
  for (const RequestId id : waiting_) {
    if (entries_[id].slot < 0 && free-- == 0) break;
    claims.push_back(ClaimOf(entries_[id]));
  }
  TakeLevel(memory_->Want(claims));
  return false;
}

// The next request waits for pages alone.
bool OrderWriter::AwaitsPages() const {
  return memory_ && !waiting_.empty() && HasSlotFor(entries_[waiting_.front()]) && memory_->Fits(entries_[waiting_.front()].end);
}

void OrderWriter::Write(decltype(Order::what) what) {
  orders_.push_back({.number = next_order_++, .what = std::move(what)});
}

// Those that have rows; one without any where none has.
void OrderWriter::WriteBatches() {
  if (spare_orders_.empty()) {
    Write(StepOrder{});
  } else {
    orders_.push_back(std::move(spare_orders_.back()));
    spare_orders_.pop_back();
    orders_.back().number = next_order_++;
  }
  std::vector<MicroBatch>& written = std::get<StepOrder>(orders_.back().what).microbatches;
  const auto with_rows = [](const MicroBatch& batch) { return !batch.rows.empty(); };
  written.resize(static_cast<size_t>(std::max<std::ptrdiff_t>(1, std::ranges::count_if(batches_, with_rows))));
  written.front().rows.clear();
  size_t next = 0;
  for (const MicroBatch& batch : batches_) {
    if (with_rows(batch)) written[next++] = batch;
  }
}

void OrderWriter::Admit() {
  while (!waiting_.empty() && HasSlotFor(entries_[waiting_.front()]) && MayAdmit(entries_[waiting_.front()])) {
    const RequestId id = waiting_.front();
    waiting_.pop_front();
    Entry& entry = entries_[id];
    entry.state = State::kRunning;
    if (entry.slot < 0) {
      entry.slot = free_slots_.back();
      free_slots_.pop_back();
    }
    running_.push_back(id);
    Tell(MemoryPlanner::Admit{.slot = entry.slot, .prompt = static_cast<int64_t>(entry.tokens.size()), .end = entry.end});
    Write(AdmitOrder{.sequence = entry.slot, .request = id, .positions = entry.end, .prompt = entry.tokens, .computed = entry.ordered});
  }
}

bool OrderWriter::MayOrderStep() const {
  const bool decodes = std::ranges::any_of(running_, [&](RequestId id) { return Decodes(entries_[id]); });
  const int32_t ahead = decodes ? options_.look_ahead : options_.prompts_ahead;
  return static_cast<int32_t>(under_way_.size()) < (Evicts() ? std::min(ahead, options_.evicting_ahead) : ahead);
}

// Whether the next step may have rows of a sequence of which not all is kept.
bool OrderWriter::Evicts() const {
  if (options_.kept_positions == 0) return false;
  return std::ranges::any_of(running_, [&](RequestId id) { return entries_[id].ordered + options_.chunk > options_.kept_positions; });
}

bool OrderWriter::WriteStep() {
  batches_.resize(static_cast<size_t>(options_.microbatches));
  for (MicroBatch& batch : batches_) batch.Clear();
  UnderWay& step = under_way_.Push();
  step.step = next_step_, step.prompt_logits = 0, step.awaited.clear();
  AddDecodeRows(step);
  AddPromptRows(step, options_.chunk * (step.awaited.empty() ? options_.chunks : 1));
  const bool computes = std::ranges::any_of(batches_, [](const MicroBatch& batch) { return !batch.rows.empty(); });
  if (!computes && !AwaitsPages()) {
    under_way_.Unpush();
    return false;
  }
  if (memory_) {
    MemoryPlanner::Step positions{.positions = std::vector<int64_t>(static_cast<size_t>(options_.sequences), -1)};
    for (const RequestId id : running_) positions.positions[static_cast<size_t>(entries_[id].slot)] = entries_[id].ordered;
    Tell(positions);
  }
  step.rows = 0;
  for (const MicroBatch& batch : batches_) step.rows += std::ssize(batch.rows);
  WriteBatches();
  ++next_step_;
  return true;
}

// A slot keeps its micro-batch, so that the tokens that one waits for were made together.
void OrderWriter::AddDecodeRows(UnderWay& step) {
  for (const RequestId id : running_) {
    const Entry& entry = entries_[id];
    if (Decodes(entry)) AddRow(id, kSampledToken, /*wants_logits=*/true, batches_[static_cast<size_t>(entry.slot / options_.batch)], step);
  }
}

void OrderWriter::AddPromptRows(UnderWay& step, int64_t room) {
  for (const RequestId id : running_) {
    // One that decodes in this step already is not in its prompt; one whose prompt ends in it decodes in the next.
    if (room > 0 && InPrompt(entries_[id])) room -= AddPrompt(id, step, room);
  }
}

// Of its next row.
bool OrderWriter::WantsLogits(const Entry& entry) const {
  if (entry.ordered + 1 == static_cast<int64_t>(entry.tokens.size())) return true;
  return entry.ordered + 1 >= entry.logits_from;
}

// Fills what is free of the micro-batches in order; rows that want logits go where they are to be had. Where evicted positions go ahead of
// a sequence's rows, they do so once in a step: all rows are in the micro-batch of its slot.
int64_t OrderWriter::AddPrompt(RequestId id, UnderWay& step, int64_t room) {
  Entry& entry = entries_[id];
  const int64_t before = entry.ordered;
  std::span<MicroBatch> free = batches_;
  if (options_.kept_positions > 0) free = free.subspan(static_cast<size_t>(entry.slot / options_.batch), 1);
  const int64_t most_logits = std::max<int64_t>(options_.batch, options_.logit_rows);
  for (MicroBatch& batch : free) {
    int64_t logits = LogitRows(batch);
    while (InPrompt(entry) && entry.ordered - before < room && static_cast<int64_t>(batch.rows.size()) < options_.max_rows) {
      const bool wants_logits = WantsLogits(entry);
      if (wants_logits && (logits >= most_logits || step.prompt_logits >= options_.prompt_logits)) break;
      if (wants_logits) ++step.prompt_logits, ++logits;
      AddRow(id, entry.tokens[static_cast<size_t>(entry.ordered)], wants_logits, batch, step);
    }
  }
  return entry.ordered - before;
}

void OrderWriter::AddRow(RequestId id, int32_t token, bool wants_logits, MicroBatch& batch, UnderWay& step) {
  Entry& entry = entries_[id];
  const int32_t position = static_cast<int32_t>(entry.ordered++);
  batch.rows.push_back({.sequence = entry.slot, .token = token, .position = position, .wants_logits = wants_logits});
  if (wants_logits) step.awaited.push_back({.request = id, .slot = entry.slot, .position = position + 1});
}

absl::StatusOr<std::span<const OrderWriter::Token>> OrderWriter::OnTokens(int64_t step, std::span<const SampledToken> tokens) {
  UnderWay* found = nullptr;
  for (size_t i = 0; i < under_way_.size() && found == nullptr; ++i) found = under_way_[i].step == step ? &under_way_[i] : nullptr;
  if (found == nullptr) return absl::InvalidArgumentError(absl::StrCat("tokens of step ", step, ", which is not under way"));
  awaited_ = found->awaited;
  requests_.clear();
  for (const SampledToken& token : tokens) {
    const auto sampling =
        std::ranges::find_if(awaited_, [&](const Sampling& s) { return s.slot == token.sequence && s.position == token.position; });
    if (sampling == awaited_.end()) {
      return absl::InvalidArgumentError(absl::StrCat("step ", step, " makes no token of sequence ", token.sequence, " at position ",
                                                     token.position, ", or has made it already"));
    }
    requests_.push_back(sampling->request);
    awaited_.erase(sampling);
  }
  found->awaited.swap(awaited_);
  tokens_.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    Entry& entry = entries_[requests_[i]];
    if (entry.state != State::kRunning) continue;
    if (tokens[i].position < static_cast<int32_t>(entry.tokens.size())) {
      tokens_.push_back({.request = requests_[i], .index = i, .again = true});
      continue;
    }
    entry.generated.push_back(tokens[i].token);
    const std::vector<int32_t>& ends = entry.request.end_tokens;
    const FinishReason reason = std::ranges::find(ends, tokens[i].token) != ends.end()                         ? FinishReason::kEndToken
                                : static_cast<int64_t>(entry.generated.size()) >= entry.request.max_new_tokens ? FinishReason::kLength
                                                                                                               : FinishReason::kNone;
    if (reason != FinishReason::kNone) Finish(entry);
    tokens_.push_back({.request = requests_[i], .index = i, .reason = reason});
  }
  return tokens_;
}

absl::Status OrderWriter::OnStepEnded(int64_t step) {
  if (under_way_.empty() || under_way_.front().step != step)
    return absl::InvalidArgumentError(absl::StrCat("step ", step, " is said to have ended, and is not the oldest under way"));
  if (const size_t missing = under_way_.front().awaited.size(); missing > 0)
    return absl::InvalidArgumentError(absl::StrCat("step ", step, " has ended without ", missing, " of its tokens"));
  rows_computed_ += under_way_.Pop().rows;
  return absl::OkStatus();
}

void OrderWriter::Stop(RequestId request) {
  Entry& entry = entries_.at(request);
  LIME_CHECK(entry.state != State::kFinished) << "request " << request;
  Finish(entry);
}

void OrderWriter::Finish(Entry& entry) {
  const RequestId id = static_cast<RequestId>(&entry - entries_.data());
  if (entry.state == State::kRunning) {
    std::erase(running_, id);
    to_retire_.push_back(entry.slot);
  } else {
    std::erase(waiting_, id);
    if (entry.slot >= 0) to_retire_.push_back(entry.slot);  // with KV that was taken over for it
  }
  entry.state = State::kFinished;
}

bool OrderWriter::decodes() const {
  return std::ranges::any_of(running_, [&](RequestId id) { return !entries_[id].generated.empty() && Decodes(entries_[id]); });
}

OrderWriter::Prompts OrderWriter::prompts() const {
  Prompts prompts{.computed = rows_computed_, .under_way = under_way_.empty() ? 0 : under_way_.front().rows};
  int32_t slots = options_.sequences;
  for (const Entry& entry : entries_) {
    if (entry.state == State::kFinished) continue;
    if (slots-- == 0) break;
    prompts.rows += std::ssize(entry.tokens);
  }
  return prompts;
}

OrderWriter::Left OrderWriter::left() const {
  Left left;
  int64_t tokens = 0;
  for (const Entry& entry : entries_) {
    if (entry.state == State::kFinished) continue;
    const int64_t made = static_cast<int64_t>(entry.generated.size());
    const int64_t to_make = std::max<int64_t>(entry.request.max_new_tokens - made, 0);
    tokens += to_make;
    left.steps = std::max(left.steps, to_make);
    const int64_t known = static_cast<int64_t>(entry.request.prompt.size()) + made;
    left.known = std::max(left.known, known);
    left.again = std::max(left.again, known - entry.logits_from);
    if (entry.state != State::kRunning) continue;
    left.pages += (known + kPageTokens - 1) / kPageTokens, left.pages_at_end += (entry.end + kPageTokens - 1) / kPageTokens;
  }
  left.steps = std::max(left.steps, tokens / options_.sequences);
  if (memory_) left.level_pages = options_.levels[static_cast<size_t>(memory_->level())].layer_pages;
  left.decodes = decodes();
  return left;
}

}  // namespace lime
