// The KV that ended sequences have left in their slots, by the ids it was computed from. Says how
// much of it a new request can use, and which slot is freed first.
//
// Pure.   Thread: the owner's.   Owner: OrderWriter.
// KV of a position depends on the ids up to that position alone, not on batch, chunk or plan. So no
// bit changes where the ids are equal from the first on. Ids are compared, not hashes of them.
// If the model keeps a state, a sequence can begin only where a snapshot of the states was taken. If
// layers give pages back (KvWindow), it can begin close behind the newest position, or at a snapshot.
// Bounds: at most one idle sequence for each slot, and `most_pages` pages of them together.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <vector>

namespace lime {

class PrefixCache {
 public:
  struct Options {
    int64_t most_pages = 0;       // of each layer, for all idle sequences together; 0: none is kept
    int64_t unit = 0;             // KV is shared in multiples of so many positions; 0: never
    bool needs_snapshot = false;  // the model keeps a state
  };
  // A slot without a running sequence. It has KV of as many positions as there are ids.
  struct Idle {
    int32_t slot = 0;
    int64_t group = 0;  // KV is shared only within a group
    std::vector<int32_t> ids;
    std::vector<int64_t> snapshots = {};  // positions of each of the slot's snapshots; 0: none was taken
    int64_t least = 0;                    // fewer positions are shared only where a snapshot is: layers have given their pages back

    friend bool operator==(const Idle&, const Idle&) = default;
  };
  explicit PrefixCache(const Options& options) : options_(options) {}

  // The first positions that a request with `ids` may use of a sequence with `others`: whole units
  // of equal ids, and at most `most` positions. If snapshots are needed, or these units are fewer than
  // `least`: as many as a snapshot has.
  int64_t Shared(std::span<const int32_t> ids, std::span<const int32_t> others, int64_t most, std::span<const int64_t> snapshots = {},
                 int64_t least = 0) const;
  // The first positions that a request with `ids` has in common with others: whole units of equal ids,
  // at most `most`, whether or not it can begin there. CommonWithIdle: the most with an idle sequence.
  int64_t Common(std::span<const int32_t> ids, std::span<const int32_t> others, int64_t most) const;
  int64_t CommonWithIdle(int64_t group, std::span<const int32_t> ids, int64_t most) const;
  // The snapshot with which a request uses so many positions; -1: it needs none.
  int32_t SnapshotFor(int64_t positions, std::span<const int64_t> snapshots, int64_t least) const;

  struct Match {
    int32_t slot = 0;
    int64_t positions = 0;  // that the request may use; at least one unit
    int32_t snapshot = -1;  // that has them; -1: none is needed
    int64_t lost = 0;       // other positions of the slot, which end if the request takes the slot
  };
  // The idle sequence of which a request can use most; among equals the one that loses least.
  std::optional<Match> Find(int64_t group, std::span<const int32_t> ids, int64_t most) const;

  // How many of a sequence's positions are kept when it ends: whole units. If snapshots are needed, or
  // these units are fewer than `least`: those up to the last one. 0 if they are too many.
  int64_t Kept(int64_t positions, std::span<const int64_t> snapshots = {}, int64_t least = 0) const;
  // A sequence has ended and becomes idle. Returns the slots to free: of sequences that can do no
  // more than this one, then the oldest ones beyond the bound.
  // REQUIRES: the slot is not idle, and Kept(number of ids, snapshots, least) is this number
  std::vector<int32_t> Keep(Idle idle);
  // The oldest idle slot, other than `not_this`, becomes free. Nothing if there is none.
  std::optional<int32_t> Evict(int32_t not_this = -1);
  // A request takes this idle slot.
  Idle Take(int32_t slot);
  // A request begins with a copy of this idle slot's KV: it counts as the newest now.
  void Touch(int32_t slot);

  bool on() const { return options_.unit > 0 && options_.most_pages > 0; }
  int64_t unit() const { return options_.unit; }
  bool empty() const { return idle_.empty(); }
  int64_t pages() const;                                 // of each layer, of all idle sequences
  const std::list<Idle>& idle() const { return idle_; }  // oldest first

 private:
  std::list<Idle>::iterator At(int32_t slot);
  int64_t Usable(int64_t positions, std::span<const int64_t> snapshots, int64_t least) const;

  Options options_;
  std::list<Idle> idle_;
};

}  // namespace lime
