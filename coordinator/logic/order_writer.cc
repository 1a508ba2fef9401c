#include "coordinator/logic/order_writer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/flow.h"
#include "planner/base/check.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/plan_rows.h"

namespace lime {
OrderWriter::Options OrderWriter::For(const Plan& plan, Bytes prompt_cache) {
  Options options;
  options.sequences = plan.sequences;
  options.context = plan.context;
  options.batch = plan.batch;
  options.logit_rows = MostLogitRows(plan);
  options.microbatches = MostMicrobatches(plan);
  options.max_rows = OwnRows(plan);
  options.chunk = options.max_rows;
  options.chunks = std::max(1, plan.chunks_per_sweep);
  options.look_ahead = Flow::kDecodeAhead;
  options.prompts_ahead = static_cast<int32_t>(Flow::Of(plan).PromptsAhead());
  options.rows_ahead = Flow::Of(plan).RowsAhead();
  if (IdsBefore(plan, plan.stages.back().lo) > 0) options.prompt_logits = plan.batch;
  if (GrowsKv(plan)) options.levels = {ResidencyOf(plan)};
  options.retained_positions = plan.retained_positions;
  options.again_ahead = AgainAhead(plan);
  options.cache.needs_snapshot = HasState(plan);
  options.snapshots = plan.state_snapshots;
  options.window = WindowOf(plan);
  options.slot_pages = FullLayerPages(plan) / plan.sequences;
  if (prompt_cache == 0) return options;
  Bytes page_bytes = 0;  // of a page of every layer
  for (int d = 0; d < plan.NumDevices(); ++d) page_bytes += std::ssize(LayersOn(plan, d)) * plan.page_bytes;
  options.cache = {
      .most_pages = prompt_cache / std::max<Bytes>(page_bytes, 1), .unit = SharedKvUnit(plan), .needs_snapshot = HasState(plan)};
  options.copies_kv = CopiesKv(plan);
  return options;
}

OrderWriter::OrderWriter(const Options& options) : options_(options) {
  LIME_CHECK_GE(options.sequences, 1);
  LIME_CHECK_GE(options.max_rows, options.batch);
  LIME_CHECK_GE(int64_t{options.batch} * options.microbatches, options.sequences);
  LIME_CHECK(options.prompt_logits >= 1 && options.chunk >= 1 && options.chunks >= 1 && options.look_ahead >= 1 &&
             options.prompts_ahead >= 1 && options.again_ahead >= 1);
  BeginPlan();
}

void OrderWriter::BeginPlan() {
  ReserveMemory();
  free_slots_.clear();
  for (int32_t slot = options_.sequences; slot-- > 0;) free_slots_.push_back(slot);
  least_shared_.assign(static_cast<size_t>(options_.sequences), 0);
  cache_ = PrefixCache(options_.cache);
  memory_.reset();
  if (options_.levels.empty()) return;
  MemoryPlanner::Options memory{.sequences = options_.sequences, .most_pages = options_.slot_pages, .lead = kResidencyLead};
  for (const Residency& level : options_.levels) memory.layer_pages.push_back(level.layer_pages);
  memory_.emplace(memory);
}

// Reserves for the most decode steps that are under way together. Then memory does not grow later
// when a device is slow.
void OrderWriter::ReserveMemory() {
  const auto batches = static_cast<size_t>(options_.microbatches), batch = static_cast<size_t>(options_.batch);
  const auto steps = static_cast<size_t>(options_.look_ahead) + 1;
  under_way_.Reserve(steps, [&](UnderWay& step) { step.awaited.reserve(batches * batch); });
  awaited_.reserve(batches * batch), requests_.reserve(batches * batch), tokens_.reserve(batches * batch);
  orders_.reserve(steps), spare_orders_.reserve(steps), spare_batches_.reserve(steps * batches);
  while (spare_orders_.size() < steps) spare_orders_.push_back({.what = StepOrder{std::vector<MicroBatch>(batches)}});
  for (Order& order : spare_orders_) {
    for (MicroBatch& rows : std::get<StepOrder>(order.what).microbatches) rows.rows.reserve(batch);
  }
}

OrderWriter::RequestLimits OrderWriter::LimitsOf(const Options& options) {
  RequestLimits limits{.context = options.context, .slot_pages = options.slot_pages};
  if (!options.levels.empty()) limits.layer_pages = options.levels.back().layer_pages;
  return limits;
}

absl::Status OrderWriter::CheckFits(const Request& request, const RequestLimits& limits) {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  if (request.max_new_tokens > limits.context - prompt) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the request needs ", prompt, " prompt + ", request.max_new_tokens, " new tokens, but the plan has ", limits.context,
                     " positions for a request; plan with more --tokens, or shorten the prompt or --max-tokens"));
  }
  const int64_t pages = std::min(KvPagesFor(prompt + request.max_new_tokens), limits.slot_pages);
  if (pages > limits.layer_pages) {
    return absl::ResourceExhaustedError(absl::StrCat("the request needs KV for ", prompt, " prompt + ", request.max_new_tokens,
                                                     " new tokens, but the plan has at most ", limits.layer_pages,
                                                     " pages of 16; plan with more --kv-tokens or memory, or shorten the prompt or "
                                                     "--max-tokens"));
  }
  return absl::OkStatus();
}

absl::Status OrderWriter::Check(const Request& request, Logits logits, const RequestLimits& limits) {
  if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt has no tokens, and the model has no BOS token; give a prompt");
  if (request.max_new_tokens < (logits == Logits::kAll ? 0 : 1)) return absl::InvalidArgumentError("max-tokens must be at least 1");
  return CheckFits(request, limits);
}

absl::StatusOr<RequestId> OrderWriter::Add(Request request, Logits logits, std::optional<RequestId> id) {
  LIME_RETURN_IF_ERROR(Check(request, logits, limits()));
  LIME_CHECK_GE(id.value_or(next_id_), next_id_);
  Entry entry{.id = id.value_or(next_id_)};
  next_id_ = entry.id + 1;
  entry.tokens = request.prompt;
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  entry.logits_from = logits == Logits::kAll ? 1 : logits == Logits::kAgain ? prompt : std::numeric_limits<int64_t>::max();
  entry.end = prompt + request.max_new_tokens;
  entry.generated.reserve(static_cast<size_t>(request.max_new_tokens));
  entry.request = std::move(request);
  waiting_.push_back(&entries_.emplace(entry.id, std::move(entry)).first->second);
  return waiting_.back()->id;
}

OrderWriter::Entry* OrderWriter::Find(RequestId request) {
  const auto found = entries_.find(request);
  return found == entries_.end() ? nullptr : &found->second;
}

absl::Status OrderWriter::CheckAll(const Options& options) const {
  for (const auto& [id, entry] : entries_) LIME_RETURN_IF_ERROR(CheckFits(entry.request, LimitsOf(options)));
  return absl::OkStatus();
}

absl::Status OrderWriter::Restart(const Options& options) {
  LIME_RETURN_IF_ERROR(CheckAll(options));
  std::deque<Entry*> again(running_.begin(), running_.end());
  again.insert(again.end(), waiting_.begin(), waiting_.end());
  for (Entry* entry : again) {
    entry->running = entry->admitted = false;
    entry->slot = -1;
    entry->awaited = -1;
    entry->snapshots.clear();
    entry->goes_back = false;
    entry->ordered = entry->computed = 0;
    entry->tokens = entry->request.prompt;
    entry->tokens.insert(entry->tokens.end(), entry->generated.begin(), entry->generated.end());
  }
  options_ = options;
  waiting_ = std::move(again);
  running_.clear(), leaving_.clear(), started_.clear(), under_way_.clear();
  BeginPlan();
  next_order_ = next_step_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<OrderWriter::Continued>> OrderWriter::GoOn(const Options& options, int64_t most_pages) {
  LIME_CHECK(under_way_.empty());
  std::vector<Continued> continued;
  int64_t pages = options.levels.empty() ? std::numeric_limits<int64_t>::max() : options.levels.front().layer_pages;
  for (const Entry* entry : running_) {
    const int64_t computed = PagesOf(entry->ordered);
    pages -= computed, most_pages -= computed;
    if (pages < 0 || std::ssize(continued) == options.sequences) break;
    if (entry->ordered == 0) continue;
    continued.push_back({entry->id, AllOf(*entry, options)});
  }
  std::vector<PrefixCache::Idle> idle = NextIdle(options);
  pages = std::min(pages, most_pages);
  const auto stays = [&](const PrefixCache::Idle& each) { return (pages -= std::ssize(each.ids) / kPageTokens) >= 0; };
  const size_t room = static_cast<size_t>(options.sequences) - continued.size();
  idle.resize(std::min<size_t>(room, static_cast<size_t>(std::ranges::find_if_not(idle, stays) - idle.begin())));
  return ContinueWith(options, std::move(continued), std::move(idle));
}

absl::StatusOr<std::vector<OrderWriter::Continued>> OrderWriter::GoOnInterrupted(const Options& options) {
  std::vector<Continued> continued;
  int64_t pages = options.levels.empty() ? std::numeric_limits<int64_t>::max() : options.levels.front().layer_pages;
  for (const Entry* entry : running_) {
    KvSequence sequence = ComputedEverywhere(*entry, options);
    if (sequence.positions == 0) continue;
    pages -= PagesOf(sequence.positions);
    if (pages < 0 || std::ssize(continued) == options.sequences) break;
    continued.push_back({entry->id, std::move(sequence)});
  }
  return ContinueWith(options, std::move(continued), {});
}

// `continued`: their new slots are not set yet. `idle`: newest first.
absl::StatusOr<std::vector<OrderWriter::Continued>> OrderWriter::ContinueWith(const Options& options, std::vector<Continued> continued,
                                                                              std::vector<PrefixCache::Idle> idle) {
  for (PrefixCache::Idle& each : idle) {
    continued.push_back({std::nullopt, {.from = each.slot, .positions = std::ssize(each.ids)}});
    if (options_.cache.needs_snapshot) continued.back().sequence.states = StatesThatContinue(0, each.snapshots, options);
    each.slot = static_cast<int32_t>(continued.size()) - 1;
  }
  for (size_t slot = 0; slot < continued.size(); ++slot) continued[slot].sequence.to = static_cast<int32_t>(slot);
  LIME_RETURN_IF_ERROR(Restart(options));
  for (const Continued& each : continued) {
    std::erase(free_slots_, each.sequence.to);
    LeastShared(each.sequence.to) = options_.window.LeastShared(options_.window.FirstPageTaken(each.sequence.positions));
    if (!each.request) continue;
    Entry& entry = entries_.at(*each.request);
    const std::vector<int64_t>& states = each.sequence.states;
    entry.slot = each.sequence.to;
    entry.ordered = entry.computed = each.sequence.positions;
    entry.snapshots.assign(SnapshotsOf(entry), 0);
    if (states.empty()) continue;
    std::copy(states.begin() + 1, states.end(), entry.snapshots.begin());
    entry.goes_back = states.front() == 0;
  }
  for (; !idle.empty(); idle.pop_back()) {
    PrefixCache::Idle& oldest = idle.back();
    oldest.least = LeastShared(oldest.slot);
    if (memory_) (void)memory_->OnEvent(MemoryPlanner::Retire{.slot = oldest.slot, .kept = std::ssize(oldest.ids)});
    (void)cache_.Keep(std::move(oldest));
  }
  // A request that has a slot does not wait for other requests.
  std::stable_partition(waiting_.begin(), waiting_.end(), [](const Entry* entry) { return entry->slot >= 0; });
  return continued;
}

const std::vector<Order>& OrderWriter::NextOrders() {
  for (Order& order : orders_) {
    if (std::holds_alternative<StepOrder>(order.what)) spare_orders_.push_back(std::move(order));
  }
  orders_.clear(), started_.clear();
  RetireLeaving();
  do {
    Admit();
  } while (MayOrderStep() && WriteStep());
  return orders_;
}

// Idle slots give way before the level's pages are short. A lower level takes away the last pages,
// which an idle slot may hold for as long as it likes.
void OrderWriter::PostToPlanner(const MemoryPlanner::Event& event) {
  if (!memory_) return;
  const int before = memory_->level();
  const std::optional<int> level = memory_->OnEvent(event);
  while ((level.value_or(before) < before || memory_->Excess() > 0) && EvictIdle()) {
  }
  OrderLevel(level);
}

void OrderWriter::OrderLevel(std::optional<int> level) {
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
  size_t free = free_slots_.size() + cache_.idle().size();
  for (const Entry* waiting : waiting_) {
    if (waiting->slot < 0 && free-- == 0) break;
    claims.push_back(ClaimOf(*waiting));
  }
  OrderLevel(memory_->Want(claims));
  return false;
}

// Whether the next request waits only for pages.
bool OrderWriter::AwaitsPages() const {
  return memory_ && !waiting_.empty() && HasSlotFor(*waiting_.front()) && memory_->Fits(waiting_.front()->end);
}

void OrderWriter::Write(decltype(Order::what) what) {
  orders_.push_back({.number = next_order_++, .what = std::move(what)});
}

// Copies the micro-batches that have rows; one empty micro-batch if none has.
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
  const auto count = static_cast<size_t>(std::max<std::ptrdiff_t>(1, std::ranges::count_if(batches_, with_rows)));
  for (; written.size() > count; written.pop_back()) spare_batches_.push_back(std::move(written.back()));
  for (; written.size() < count && !spare_batches_.empty(); spare_batches_.pop_back()) written.push_back(std::move(spare_batches_.back()));
  written.resize(count);
  written.front().rows.clear();
  size_t next = 0;
  for (const MicroBatch& batch : batches_) {
    if (with_rows(batch)) written[next++] = batch;
  }
}

bool OrderWriter::MayOrderStep() const {
  const bool decodes = std::ranges::any_of(running_, [&](const Entry* entry) { return Decodes(*entry); });
  const int32_t ahead = decodes ? options_.look_ahead : options_.prompts_ahead;
  if (static_cast<int32_t>(under_way_.size()) >= (ComputesAgain() ? std::min(ahead, options_.again_ahead) : ahead)) return false;
  // After requests began to decode or ended, steps of both kinds are under way.
  int64_t rows = decodes ? std::ssize(running_) + options_.chunk : options_.chunk * options_.chunks;
  for (size_t i = 0; i < under_way_.size(); ++i) rows += under_way_[i].rows;
  return under_way_.empty() || rows <= options_.rows_ahead;
}

// Whether the next step may compute rows of a sequence again.
bool OrderWriter::ComputesAgain() const {
  if (options_.retained_positions == 0) return false;
  return std::ranges::any_of(running_, [&](const Entry* entry) { return entry->ordered + options_.chunk > options_.retained_positions; });
}

bool OrderWriter::WriteStep() {
  batches_.resize(static_cast<size_t>(options_.microbatches));
  for (MicroBatch& batch : batches_) batch.Clear();
  UnderWay& step = under_way_.Push();
  step.step = next_step_, step.prompt_logits = 0, step.awaited.clear(), step.chunks.clear();
  AddDecodeRows(step);
  AddPromptRows(step, options_.chunk * (step.awaited.empty() ? options_.chunks : 1));
  step.rows = 0;
  for (const MicroBatch& batch : batches_) step.rows += std::ssize(batch.rows);
  if (step.rows == 0 && !AwaitsPages()) {
    under_way_.Unpush();
    return false;
  }
  if (memory_) {
    MemoryPlanner::Step positions{.positions = std::vector<int64_t>(static_cast<size_t>(options_.sequences), -1)};
    for (const Entry* entry : running_) positions.positions[static_cast<size_t>(entry->slot)] = entry->ordered;
    PostToPlanner(positions);
  }
  WriteBatches();
  ++next_step_;
  return true;
}

// A slot always uses the same micro-batch, so the tokens that a micro-batch waits for come
// together.
void OrderWriter::AddDecodeRows(UnderWay& step) {
  for (Entry* entry : running_) {
    if (!Decodes(*entry)) continue;
    AddRow(*entry, kSampledToken, /*wants_logits=*/true, batches_[static_cast<size_t>(entry->slot / options_.batch)], step);
  }
}

void OrderWriter::AddPromptRows(UnderWay& step, int64_t room) {
  for (Entry* entry : running_) {
    // A request that decodes in this step is past its prompt. If its prompt ends in this step, it
    // decodes in the next.
    if (room > 0 && entry->admitted && InPrompt(*entry)) room -= AddPrompt(*entry, step, room);
  }
}

// For the next row of `entry`.
bool OrderWriter::WantsLogits(const Entry& entry) const {
  return entry.ordered + 1 >= std::min<int64_t>(std::ssize(entry.tokens), entry.logits_from);
}

// Fills the free rows of the micro-batches in order. Rows that want logits go to a micro-batch that
// has room for logits. If rows that are computed again precede a sequence's
// own, all its rows go into the micro-batch of its slot, so that this happens once in a step.
int64_t OrderWriter::AddPrompt(Entry& entry, UnderWay& step, int64_t room) {
  const int64_t before = entry.ordered, end = PromptEnd(entry);
  std::span<MicroBatch> free = batches_;
  if (options_.retained_positions > 0) free = free.subspan(static_cast<size_t>(entry.slot / options_.batch), 1);
  const int64_t most_logits = std::max<int64_t>(options_.batch, options_.logit_rows);
  for (MicroBatch& batch : free) {
    int64_t logits = std::ranges::count_if(batch.rows, &BatchRow::wants_logits);
    while (entry.ordered < end && entry.ordered - before < room && static_cast<int64_t>(batch.rows.size()) < options_.max_rows) {
      const bool wants_logits = WantsLogits(entry);
      if (wants_logits && (logits >= most_logits || step.prompt_logits >= options_.prompt_logits)) break;
      if (wants_logits) ++step.prompt_logits, ++logits;
      AddRow(entry, entry.tokens[static_cast<size_t>(entry.ordered)], wants_logits, batch, step);
    }
  }
  if (entry.ordered > before) step.chunks.push_back({entry.id, entry.ordered - before});
  return entry.ordered - before;
}

void OrderWriter::AddRow(Entry& entry, int32_t token, bool wants_logits, MicroBatch& batch, UnderWay& step) {
  const int32_t position = static_cast<int32_t>(entry.ordered++);
  LeastShared(entry.slot) = std::max(LeastShared(entry.slot), options_.window.LeastSharedAt(entry.ordered));
  batch.rows.push_back(
      {.sequence = entry.slot, .token = token, .position = position, .wants_logits = wants_logits, .snapshot = SnapshotAfter(entry)});
  if (wants_logits) step.awaited.push_back({.request = entry.id, .slot = entry.slot, .position = position + 1});
}

absl::StatusOr<std::span<const OrderWriter::Token>> OrderWriter::OnTokens(int64_t step, std::span<const SampledToken> tokens) {
  UnderWay* found = nullptr;
  for (size_t i = 0; i < under_way_.size() && found == nullptr; ++i) found = under_way_[i].step == step ? &under_way_[i] : nullptr;
  if (found == nullptr) return Invalid("tokens of step ", step, " arrived, but that step is not under way");
  awaited_ = found->awaited;
  requests_.clear();
  for (const SampledToken& token : tokens) {
    const auto sampling =
        std::ranges::find_if(awaited_, [&](const Sampling& s) { return s.slot == token.sequence && s.position == token.position; });
    if (sampling == awaited_.end()) {
      return Invalid("step ", step, " makes no token of sequence ", token.sequence, " at position ", token.position,
                     ", or has made it already");
    }
    requests_.push_back(sampling->request);
    awaited_.erase(sampling);
  }
  found->awaited.swap(awaited_);
  tokens_.clear();
  for (size_t i = 0; i < tokens.size(); ++i) {
    Entry* const found_entry = Find(requests_[i]);
    if (found_entry == nullptr) continue;
    Entry& entry = *found_entry;
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
    return Invalid("step ", step, " is reported as ended, but it is not the oldest step under way");
  if (const size_t missing = under_way_.front().awaited.size(); missing > 0)
    return Invalid("step ", step, " has ended without ", missing, " of its tokens");
  for (const UnderWay::Chunk& chunk : under_way_.Pop().chunks) {
    if (Entry* const entry = Find(chunk.request)) entry->computed += chunk.rows;
  }
  return absl::OkStatus();
}

void OrderWriter::Stop(RequestId request) {
  Entry* const entry = Find(request);
  LIME_CHECK(entry != nullptr) << "request " << request;
  Finish(*entry);
}

void OrderWriter::Finish(Entry& entry) {
  // Devices know of a request that waits with its KV.
  if (entry.slot >= 0)
    leaving_.push_back({.slot = entry.slot,
                        .admitted = entry.admitted || !entry.running,
                        .group = entry.request.cache_group,
                        .kept = KeptOf(entry),
                        .snapshots = std::move(entry.snapshots)});
  if (entry.running) {
    std::erase(running_, &entry);
  } else {
    std::erase(waiting_, &entry);
  }
  entries_.erase(entry.id);
}

bool OrderWriter::decodes() const {
  return std::ranges::any_of(running_, [&](const Entry* entry) { return !entry->generated.empty() && Decodes(*entry); });
}

std::span<const OrderWriter::InPromptOf> OrderWriter::in_prompt() {
  in_prompt_.clear();
  for (const Entry* entry : running_) {
    const int64_t rows = std::ssize(entry->tokens);
    if (entry->computed < rows) in_prompt_.push_back({.request = entry->id, .computed = entry->computed, .rows = rows});
  }
  if (in_prompt_.empty() || under_way_.empty()) return in_prompt_;
  for (const UnderWay::Chunk& chunk : under_way_.front().chunks) {
    const auto of = std::ranges::find(in_prompt_, chunk.request, &InPromptOf::request);
    if (of != in_prompt_.end()) of->under_way = chunk.rows;
  }
  return in_prompt_;
}

OrderWriter::Remaining OrderWriter::remaining() const {
  Remaining remaining;
  int64_t tokens = 0;
  for (const auto& [id, entry] : entries_) {
    const int64_t made = static_cast<int64_t>(entry.generated.size());
    const int64_t to_make = std::max<int64_t>(entry.request.max_new_tokens - made, 0);
    tokens += to_make;
    remaining.steps = std::max(remaining.steps, to_make);
    const int64_t known = static_cast<int64_t>(entry.request.prompt.size()) + made;
    remaining.known = std::max(remaining.known, known);
    remaining.again = std::max(remaining.again, known - entry.logits_from);
    if (!entry.running) continue;
    remaining.pages += PagesOf(known), remaining.pages_at_end += PagesOf(entry.end);
  }
  remaining.steps = std::max(remaining.steps, tokens / options_.sequences);
  if (memory_) remaining.level_pages = options_.levels[static_cast<size_t>(memory_->level())].layer_pages;
  remaining.decodes = decodes();
  return remaining;
}

}  // namespace lime
