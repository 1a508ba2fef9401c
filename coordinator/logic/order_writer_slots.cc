// Slots of an OrderWriter: which request gets which, and with how much KV of earlier requests.
#include <algorithm>
#include <utility>

#include "coordinator/logic/order_writer.h"

namespace lime {

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
      for (const int32_t slot : cache_.Keep({leaving.slot, leaving.group, std::move(leaving.kept), LeastShared(leaving.slot)}))
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
std::vector<PrefixCache::Idle> OrderWriter::NextIdle(const PrefixCache::Options& options) {
  std::vector<PrefixCache::Idle> idle(cache_.idle().begin(), cache_.idle().end());
  for (Leaving& leaving : leaving_) idle.push_back({leaving.slot, leaving.group, std::move(leaving.kept), LeastShared(leaving.slot)});
  PrefixCache next(options);
  for (PrefixCache::Idle& each : idle) {
    each.ids.resize(static_cast<size_t>(next.Kept(std::ssize(each.ids))));
    if (!each.ids.empty() && std::ssize(each.ids) >= each.least) (void)next.Keep(std::move(each));
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
    beginning = FindBeginning(entry);
    (void)FindAwaited(entry, beginning.positions);
    GiveSlot(entry, beginning);
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
  if (beginning.positions > 0) LeastShared(entry.slot) = LeastShared(beginning.slot);
  if (entry.ordered == 0) LeastShared(entry.slot) = 0;
  entry.admitted = true;
  if (beginning.idle && beginning.slot != entry.slot) cache_.Touch(beginning.slot);
  Write(AdmitOrder{.sequence = entry.slot,
                   .request = entry.id,
                   .positions = entry.end,
                   .prompt = entry.tokens,
                   .computed = entry.ordered,
                   .source = beginning.slot == entry.slot ? -1 : beginning.slot,
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
    if (idle) best = {.slot = idle->slot, .positions = idle->positions, .lost = idle->lost, .idle = true};
  }
  for (const Entry* other : running_) {
    if (!options_.copies_kv || !other->admitted || !MayShare(entry, *other)) continue;
    const int64_t positions = cache_.Shared(entry.tokens, other->tokens, std::min(most, other->ordered));
    if (positions > best.positions && positions >= LeastShared(other->slot)) best = {.slot = other->slot, .positions = positions};
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
    const int64_t positions = MayShare(entry, *other) ? cache_.Shared(entry.tokens, other->tokens, most) : 0;
    if (positions > there && positions >= LeastShared(other->slot)) there = entry.awaited_rows = positions, entry.awaited = other->id;
  }
  return entry.awaited >= 0;
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
    return cache_.Take(entry.slot);
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
  ids.resize(static_cast<size_t>(cache_.Kept(std::min(entry.ordered, known))));
  if (std::ssize(ids) < LeastShared(entry.slot)) ids.clear();  // nobody could begin with it
  return ids;
}

}  // namespace lime
