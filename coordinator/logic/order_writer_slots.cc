// Slots of an OrderWriter: which request gets which, and with how much KV of earlier requests.
#include <algorithm>
#include <utility>

#include "coordinator/logic/order_writer.h"

namespace lime {
namespace {

// Chat templates write the head of an answer differently once the answer is there, for example
// without the place for its thoughts. The snapshot of a prompt is taken before these ids.
constexpr int64_t kAnswerHead = 8;

// At least so many positions of a prompt are computed from one snapshot to the next.
constexpr int64_t kLeastStride = 1024;

// A snapshot in a prompt that saves the computation of fewer positions is not worth the one before.
constexpr int64_t kWorthASnapshot = 64;

// Snapshots of other positions than the first `positions` are of no use any more.
void CutSnapshots(std::vector<int64_t>& snapshots, int64_t positions) {
  for (int64_t& snapshot : snapshots) snapshot = snapshot > positions ? 0 : snapshot;
}

}  // namespace

// ---- Requests that leave

void OrderWriter::RetireLeaving() {
  for (Leaving& leaving : leaving_) {
    if (!leaving.admitted) {
      PostToPlanner(MemoryPlanner::Retire{.slot = leaving.slot});
      free_slots_.push_back(leaving.slot);
    } else if (leaving.kept.empty()) {
      FreeSlot(leaving.slot);
    } else {
      const int64_t kept = std::ssize(leaving.kept);
      Write(RetireOrder{.sequence = leaving.slot, .kept = kept});
      PostToPlanner(MemoryPlanner::Retire{.slot = leaving.slot, .kept = kept});
      CutSnapshots(leaving.snapshots, kept);
      for (const int32_t slot :
           cache_.Keep({leaving.slot, leaving.group, std::move(leaving.kept), std::move(leaving.snapshots), LeastShared(leaving.slot)}))
        FreeSlot(slot);
    }
  }
  leaving_.clear();
}

void OrderWriter::FreeSlot(int32_t slot) {
  Write(RetireOrder{.sequence = slot});
  PostToPlanner(MemoryPlanner::Retire{.slot = slot});
  free_slots_.push_back(slot);
}

// The idle sequences, newest first, as a cache with these options keeps them.
std::vector<PrefixCache::Idle> OrderWriter::NextIdle(const Options& options) {
  std::vector<PrefixCache::Idle> idle(cache_.idle().begin(), cache_.idle().end());
  for (Leaving& leaving : leaving_)
    idle.push_back({leaving.slot, leaving.group, std::move(leaving.kept), std::move(leaving.snapshots), LeastShared(leaving.slot)});
  PrefixCache next(options.cache);
  for (PrefixCache::Idle& each : idle) {
    if (!options.cache.needs_snapshot) each.snapshots.clear();  // those of windows end with their plan
    each.snapshots.resize(static_cast<size_t>(options.snapshots));
    each.ids.resize(static_cast<size_t>(next.Kept(std::ssize(each.ids), each.snapshots, each.least)));
    CutSnapshots(each.snapshots, std::ssize(each.ids));
    if (!each.ids.empty()) (void)next.Keep(std::move(each));
  }
  return {next.idle().rbegin(), next.idle().rend()};
}

bool OrderWriter::EvictIdle() {
  const std::optional<int32_t> slot = cache_.Evict();
  if (slot) FreeSlot(*slot);
  return slot.has_value();
}

// ---- Requests that join

void OrderWriter::Admit() {
  for (Entry* entry : running_) {
    if (!entry->admitted && !Awaits(*entry)) WriteAdmit(*entry, FindBeginning(*entry));
  }
  while (!waiting_.empty() && HasSlotFor(*waiting_.front()) && MayAdmit(*waiting_.front())) {
    Entry& entry = *waiting_.front();
    waiting_.pop_front();
    AdmitWaiting(entry);
  }
}

void OrderWriter::AdmitWaiting(Entry& entry) {
  Beginning beginning;
  if (entry.slot < 0) {
    entry.snapshots.assign(SnapshotsOf(entry), 0);
    beginning = FindBeginning(entry);
    entry.parts_at = PartsAt(entry, beginning.positions);
    (void)FindAwaited(entry, beginning.positions);
    GiveSlot(entry, beginning);
  } else if (entry.goes_back) {
    beginning.snapshot = cache_.SnapshotFor(entry.ordered, entry.snapshots, /*least=*/0);
  }
  entry.running = true;
  running_.push_back(&entry);
  started_.push_back(entry.id);
  PostToPlanner(MemoryPlanner::Admit{.slot = entry.slot, .prompt = static_cast<int64_t>(entry.tokens.size()), .end = entry.end});
  if (entry.awaited < 0) WriteAdmit(entry, beginning);
}

// The request begins with that KV. If it has taken KV over, it has its own.
void OrderWriter::WriteAdmit(Entry& entry, const Beginning& beginning) {
  if (beginning.positions > 0) entry.ordered = entry.computed = beginning.positions;
  const bool copies = beginning.slot >= 0 && beginning.slot != entry.slot;
  CutSnapshots(entry.snapshots, copies ? 0 : entry.ordered);
  if (beginning.positions > 0) LeastShared(entry.slot) = LeastShared(beginning.slot);
  if (beginning.snapshot >= 0) LeastShared(entry.slot) = options_.window.LeastShared(options_.window.FirstPageTaken(entry.ordered));
  if (entry.ordered == 0) LeastShared(entry.slot) = 0;
  entry.begun = entry.ordered;
  entry.admitted = true;
  if (beginning.idle && beginning.slot != entry.slot) cache_.Touch(beginning.slot);
  Write(AdmitOrder{.sequence = entry.slot,
                   .request = entry.id,
                   .positions = entry.end,
                   .prompt = entry.tokens,
                   .computed = entry.ordered,
                   .source = copies ? beginning.slot : -1,
                   .snapshot = beginning.snapshot,
                   .generated = std::ssize(entry.tokens) - std::ssize(entry.request.prompt)});
}

// ---- KV that requests share

// The most positions that the request may use without computing them: logits need their rows.
int64_t OrderWriter::MostShared(const Entry& entry) {
  return entry.request.cache_prompt ? std::min<int64_t>(std::ssize(entry.tokens), entry.logits_from) - 1 : 0;
}

bool OrderWriter::MayShare(const Entry& one, const Entry& other) {
  return one.request.cache_prompt && other.request.cache_prompt && one.request.cache_group == other.request.cache_group;
}

// The slot with most of the request's KV, by the steps ordered so far. While KV grows, idle slots
// are not copied, because one of both copies would soon give way: the request takes the slot.
OrderWriter::Beginning OrderWriter::FindBeginning(const Entry& entry) const {
  Beginning best;
  const int64_t most = MostShared(entry);
  if (most <= 0) return best;
  if (entry.slot < 0 || !memory_) {
    const std::optional<PrefixCache::Match> idle = cache_.Find(entry.request.cache_group, entry.tokens, most);
    if (idle) best = {idle->slot, idle->positions, idle->snapshot, idle->lost, /*idle=*/true};
  }
  for (const Entry* other : running_) {
    if (!options_.copies_kv || !other->admitted || !MayShare(entry, *other)) continue;
    const int64_t least = LeastShared(other->slot);
    const int64_t positions = cache_.Shared(entry.tokens, other->tokens, std::min(most, other->ordered), other->snapshots, least);
    if (positions <= best.positions) continue;
    best = {.slot = other->slot, .positions = positions, .snapshot = cache_.SnapshotFor(positions, other->snapshots, least)};
  }
  return best;
}

// Whether another request, which got its slot earlier, will compute more of the prompt than is
// there now. The entry names it then.
bool OrderWriter::FindAwaited(Entry& entry, int64_t there) const {
  entry.awaited = -1;
  const int64_t most = MostShared(entry);
  if (!options_.copies_kv || most <= 0) return false;
  for (const Entry* other : running_) {
    if (other == &entry) break;
    const int64_t next = other->ordered < PromptSnapshot(*other) ? PromptSnapshot(*other) : 0;
    const int64_t positions =
        MayShare(entry, *other) ? cache_.Shared(entry.tokens, other->tokens, most, {&next, 1}, LeastShared(other->slot)) : 0;
    if (positions > there) there = entry.awaited_rows = positions, entry.awaited = other->id;
  }
  return entry.awaited >= 0;
}

// The end of the prompt rows that the next step may have. If another request waits for some of them,
// it begins before more rows take pages of a layer with a window.
int64_t OrderWriter::PromptEnd(const Entry& entry) const {
  int64_t end = std::ssize(entry.tokens);
  for (const Entry* other : running_) {
    const bool awaits = !other->admitted && other->awaited == entry.id && other->awaited_rows > entry.ordered;
    if (awaits && options_.window.positions > 0) end = std::min(end, other->awaited_rows);
  }
  return end;
}

bool OrderWriter::Awaits(Entry& entry) {
  const Entry* const awaited = Find(entry.awaited);
  if (awaited == nullptr) return FindAwaited(entry, FindBeginning(entry).positions);  // it has ended
  return awaited->ordered < entry.awaited_rows;
}

// An idle slot with the beginning is used as it is if little else is lost. Else its pages are
// copied to a free slot, or to the oldest idle one.
void OrderWriter::GiveSlot(Entry& entry, const Beginning& beginning) {
  const bool copies = options_.copies_kv && !memory_ && beginning.lost > beginning.positions;
  const bool others = !free_slots_.empty() || cache_.idle().size() > 1;
  if (beginning.idle && entry.awaited < 0 && !(copies && others)) {
    entry.slot = beginning.slot;
    entry.snapshots = cache_.Take(entry.slot).snapshots;
    return;
  }
  if (free_slots_.empty()) {
    std::optional<int32_t> evicted = cache_.Evict(beginning.idle ? beginning.slot : -1);
    if (!evicted) evicted = cache_.Evict();
    FreeSlot(*evicted);
  }
  entry.slot = free_slots_.back();
  free_slots_.pop_back();
}

std::vector<int32_t> OrderWriter::KeptOf(const Entry& entry) const {
  if (!cache_.on() || !entry.admitted || !entry.request.cache_prompt) return {};
  const int64_t known = std::ssize(entry.request.prompt) + std::ssize(entry.generated);
  std::vector<int32_t> ids = entry.request.prompt;
  ids.insert(ids.end(), entry.generated.begin(), entry.generated.end());
  ids.resize(static_cast<size_t>(cache_.Kept(std::min(entry.ordered, known), entry.snapshots, LeastShared(entry.slot))));
  return ids;
}

// ---- Snapshots

// KvSequence::states for the next plan, as far as it has snapshots: `positions` of the states
// themselves, 0 if they do not continue.
std::vector<int64_t> OrderWriter::StatesThatContinue(int64_t positions, const std::vector<int64_t>& snapshots, const Options& options) {
  std::vector<int64_t> states = {positions};
  const auto count = std::min(snapshots.size(), static_cast<size_t>(options.snapshots));
  states.insert(states.end(), snapshots.begin(), snapshots.begin() + static_cast<std::ptrdiff_t>(count));
  while (states.size() > 1 && states.back() == 0) states.pop_back();
  return states;
}

// All that a running request has, for the next plan.
KvSequence OrderWriter::AllOf(const Entry& entry, const Options& next) const {
  KvSequence sequence{.from = entry.slot, .positions = entry.ordered};
  if (options_.cache.needs_snapshot) sequence.states = StatesThatContinue(entry.ordered, entry.snapshots, next);
  return sequence;
}

// The first positions of a running request that every device has: a token came from them, or a step
// with them has ended. 0 positions: none, or none that can be used. A device may be behind with the
// orders, so nothing is known of a request before its first row has been through all of them. A
// snapshot behind these positions may be on some devices only; one of no more is the same on all,
// because no row ordered since overwrites it.
KvSequence OrderWriter::ComputedEverywhere(const Entry& entry, const Options& next) const {
  KvSequence sequence{.from = entry.slot};
  const int64_t known = std::ssize(entry.request.prompt) + std::ssize(entry.generated);
  const int64_t computed = known > std::ssize(entry.tokens) ? known - 1 : entry.computed;
  if (!entry.admitted || computed <= entry.begun) return sequence;
  const int64_t most = std::min(computed, std::min(known, entry.logits_from) - 1);
  int64_t positions = most;
  if (options_.cache.needs_snapshot) {
    sequence.states = StatesThatContinue(0, entry.snapshots, next);
    positions = 0;
    for (int64_t& snapshot : sequence.states) {
      if (snapshot > most) snapshot = 0;
      positions = std::max(positions, snapshot);
    }
  }
  // The next plan may share them up to their last whole page.
  if (positions / kPageTokens * kPageTokens < LeastShared(entry.slot)) return sequence;
  sequence.positions = positions;
  return sequence;
}

// The snapshots of a slot with this request. Those of windows are only for other requests.
size_t OrderWriter::SnapshotsOf(const Entry& entry) const {
  const bool used = options_.cache.needs_snapshot || (cache_.on() && entry.request.cache_prompt);
  return used ? static_cast<size_t>(options_.snapshots) : 0;
}

// Prompts are computed so many positions from one snapshot to the next. Rows of no more positions are
// ordered ahead, so of two snapshots that take turns one is of rows that have been computed.
int64_t OrderWriter::SnapshotStride() const {
  if (options_.rows_ahead == INT64_MAX) return 0;
  const int64_t unit = SnapshotUnit();
  return (std::max(options_.rows_ahead, kLeastStride) + unit - 1) / unit * unit;
}

// The positions of the snapshot for requests whose prompts begin like this one, or that go on from it.
// 0: the prompt is too short for one.
int64_t OrderWriter::PromptSnapshot(const Entry& entry) const {
  if (entry.snapshots.empty()) return 0;
  const int64_t unit = SnapshotUnit();
  return std::max<int64_t>(0, std::ssize(entry.request.prompt) - kAnswerHead) / unit * unit;
}

// The last whole unit that the prompt has in common with another sequence, if that is far behind the
// positions with which the request begins. A third prompt may begin like both.
int64_t OrderWriter::PartsAt(const Entry& entry, int64_t begins) const {
  const int64_t most = MostShared(entry);
  if (options_.cache.needs_snapshot || entry.snapshots.size() < 2 || most <= 0) return 0;
  int64_t common = cache_.CommonWithIdle(entry.request.cache_group, entry.tokens, most);
  for (const Entry* other : running_) {
    if (MayShare(entry, *other)) common = std::max(common, cache_.Common(entry.tokens, other->tokens, most));
  }
  return common >= begins + kWorthASnapshot ? common : 0;
}

// The snapshot that gets the states after the ordered rows; -1: none does. The first one is for the
// prompt. The others take turns at whole units behind it, because rows are ordered before their ids are
// known: the newest one may belong to ids that come after the request's end. Within a long prompt they
// take turns, too, for a failure: the request continues at one of them then.
int32_t OrderWriter::SnapshotOfStates(const Entry& entry) const {
  const int64_t positions = entry.ordered, of_prompt = PromptSnapshot(entry), others = std::ssize(entry.snapshots) - 1;
  if (positions == of_prompt) return 0;
  if (others == 0) return -1;
  const int64_t unit = SnapshotUnit(), known = std::ssize(entry.tokens), stride = SnapshotStride();
  if (positions > of_prompt && positions + unit > known) return 1 + static_cast<int32_t>(positions / unit % others);
  return stride > 0 && positions % stride == 0 ? 1 + static_cast<int32_t>(positions / stride % others) : -1;
}

// The same for the pages of windows. The answer needs none: a sequence can begin close behind the
// newest position. The second one is where the prompt parts from another one.
int32_t OrderWriter::SnapshotOfWindows(const Entry& entry) const {
  if (entry.ordered == PromptSnapshot(entry)) return 0;
  return entry.ordered == entry.parts_at && entry.snapshots.size() > 1 ? 1 : -1;
}

// The snapshot that is taken after the row that was just ordered; -1: none is.
int32_t OrderWriter::SnapshotAfter(Entry& entry) const {
  if (entry.snapshots.empty() || entry.ordered % SnapshotUnit() != 0) return -1;
  const int32_t snapshot = options_.cache.needs_snapshot ? SnapshotOfStates(entry) : SnapshotOfWindows(entry);
  if (snapshot >= 0) entry.snapshots[static_cast<size_t>(snapshot)] = entry.ordered;
  return snapshot;
}

}  // namespace lime
