#include "daemon/logic/kv_fetcher.h"

#include <limits>

#include "planner/base/check.h"
#include "planner/plan/kv_fetching.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

constexpr int64_t kAtOnce = -1;                                  // ahead of every layer
constexpr int64_t kNever = std::numeric_limits<int64_t>::max();  // behind every layer

template <typename... What>
absl::Status WrongFetched(const What&... what) {
  return Invalid("fetched KV: ", what...);
}

}  // namespace

KvFetcher::KvFetcher(const Shape& shape)
    : shape_(shape), sequences_(static_cast<size_t>(shape.sequences)), slots_(static_cast<size_t>(shape.slots)) {
  LIME_CHECK(shape.layers > 0 && shape.sequences > 0 && shape.piece_bytes > 0 && shape.slots > 0);
  where_.reserve(slots_.size());
}

void KvFetcher::SetSequence(int32_t sequence, int64_t life, int64_t first, int64_t end) {
  Sequence& what = sequences_.at(static_cast<size_t>(sequence));
  const Sequence now{.life = life, .first = first, .end = end};
  all_there_ = all_there_ && what == now;
  what = now;
}

void KvFetcher::SetLayers(int64_t count) {
  LIME_CHECK(count >= 0 && count <= shape_.layers) << count << " of " << shape_.layers;
  all_there_ = all_there_ && count == fetched_layers_;
  fetched_layers_ = count;
}

void KvFetcher::SetAwaited(std::optional<int32_t> layer) {
  all_there_ = all_there_ && (!layer || Fetches(*layer));
  awaited_ = layer;
}

bool KvFetcher::Fetches(int32_t layer) const {
  return IsAmong(layer, fetched_layers_, shape_.layers);
}

// Layers that are used before this one.
int64_t KvFetcher::Distance(int32_t layer) const {
  if (layer == awaited_) return kAtOnce;
  return (layer - next_ + shape_.layers) % shape_.layers;
}

bool KvFetcher::IsWanted(const KvFetch& what) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(what.sequence)];
  return what.life == sequence.life && what.piece >= sequence.first && what.piece < sequence.end &&
         (Fetches(what.layer) || what.layer == awaited_);
}

// For what is used after so many layers: a free slot, else that of what is used the latest, if it is used later.
std::optional<int64_t> KvFetcher::SlotFor(int64_t distance) const {
  std::optional<int64_t> best;
  int64_t latest = distance;
  for (int64_t i = 0; i < shape_.slots; ++i) {
    const Slot& slot = slots_[static_cast<size_t>(i)];
    if (!slot.taken) return i;
    if (slot.there < shape_.piece_bytes || slot.what.layer == in_use_) continue;
    const int64_t later = IsWanted(slot.what) ? Distance(slot.what.layer) : kNever;
    if (later > latest) best = i, latest = later;
  }
  return best;
}

std::optional<KvFetch> KvFetcher::Begin() {
  if (all_there_ || std::ssize(under_way_) >= kKvFetchesUnderWay) return std::nullopt;
  for (int64_t turn = awaited_ ? kAtOnce : 0; turn < shape_.layers; ++turn) {
    const int32_t layer = turn == kAtOnce ? *awaited_ : static_cast<int32_t>((next_ + turn) % shape_.layers);
    if (turn != kAtOnce && (!Fetches(layer) || layer == awaited_)) continue;
    for (int32_t s = 0; s < shape_.sequences; ++s) {
      const Sequence& sequence = sequences_[static_cast<size_t>(s)];
      for (int64_t piece = sequence.first; piece < sequence.end; ++piece) {
        const KvFetch what{.sequence = s, .life = sequence.life, .layer = layer, .piece = piece};
        if (where_.contains(KeyOf(what))) continue;
        const std::optional<int64_t> slot = SlotFor(turn);
        return slot ? std::optional(Take(*slot, what)) : std::nullopt;
      }
    }
  }
  all_there_ = true;
  return std::nullopt;
}

KvFetch KvFetcher::Take(int64_t i, const KvFetch& what) {
  Slot& slot = slots_[static_cast<size_t>(i)];
  if (slot.taken) where_.erase(KeyOf(slot.what));
  slot = {.taken = true, .what = what};
  slot.what.number = next_number_++;
  where_[KeyOf(what)] = i;
  under_way_.push_back(i);
  return slot.what;
}

absl::StatusOr<KvFetcher::Placed> KvFetcher::On(const KvFetched& fetched) {
  if (under_way_.empty()) return WrongFetched("bytes of fetch ", fetched.number, ", and none is under way");
  const int64_t i = under_way_.front();
  Slot& slot = slots_[static_cast<size_t>(i)];
  if (fetched.number != slot.what.number)
    return WrongFetched("bytes of fetch ", fetched.number, " come where ", slot.what.number, " is the next");
  if (fetched.offset != slot.there || fetched.bytes.empty() || std::ssize(fetched.bytes) > shape_.piece_bytes - slot.there)
    return WrongFetched(fetched.bytes.size(), " bytes at ", fetched.offset, " behind ", slot.there, " of ", shape_.piece_bytes);
  const Placed placed{.offset = i * shape_.piece_bytes + slot.there,
                      .ends_piece = slot.there + std::ssize(fetched.bytes) == shape_.piece_bytes};
  slot.there += std::ssize(fetched.bytes);
  if (placed.ends_piece) under_way_.pop_front();
  return placed;
}

std::optional<Bytes> KvFetcher::Find(int32_t layer, int32_t sequence, int64_t life, int64_t piece) const {
  const auto found = where_.find(Key{layer, sequence, life, piece});
  if (found == where_.end() || slots_[static_cast<size_t>(found->second)].there < shape_.piece_bytes) return std::nullopt;
  return found->second * shape_.piece_bytes;
}

Bytes KvFetcher::Missing(int32_t layer, int32_t sequence, int64_t life, int64_t first, int64_t end) const {
  Bytes missing = 0;
  for (int64_t piece = first; piece < end; ++piece) {
    const auto found = where_.find(Key{layer, sequence, life, piece});
    missing += shape_.piece_bytes - (found == where_.end() ? 0 : slots_[static_cast<size_t>(found->second)].there);
  }
  return missing;
}

}  // namespace lime
