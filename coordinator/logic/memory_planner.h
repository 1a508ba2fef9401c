// Follows the KV pages that running requests really use, for a plan whose KV grows
// (planner/kv/kv_levels.h). Says when devices change to another level: to a higher one before its
// pages are needed, to a lower one after it has been enough for a while.
//
// Pure: orders in, levels out.   Thread: the owner's.   Owner: OrderWriter.
// Time is counted in steps. Devices reach a level within `lead` steps, or within 2 `lead` steps if
// another change is still under way. So the pages that the next 2 `lead` steps write must be
// ordered now.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "planner/plan/model/kv_window.h"

namespace lime {

class MemoryPlanner {
 public:
  struct Options {
    std::vector<int64_t> layer_pages;  // KV pages per layer of each level, ascending
    int32_t sequences = 1;             // slots
    // KV pages that a slot has in a layer, at most. Less than its positions need if all layers have
    // a window and give pages back.
    int64_t most_pages = std::numeric_limits<int64_t>::max();
    int64_t lead = 8;   // steps
    int64_t calm = 64;  // steps in which a lower level must have been enough
  };
  explicit MemoryPlanner(const Options& options);

  // A request gets a slot. It has at most `end` positions when it ends.
  struct Admit {
    int32_t slot = 0;
    int64_t prompt = 0;
    int64_t end = 0;
  };
  // A request leaves its slot, which keeps KV of `kept` positions; 0: it is free.
  struct Retire {
    int32_t slot = 0;
    int64_t kept = 0;
  };
  // A step is ordered. `positions`: of each slot after it; -1: unchanged, or no request.
  struct Step {
    std::vector<int64_t> positions;
  };
  using Event = std::variant<Admit, Retire, Step>;

  // The level to order before the event itself is ordered. Nothing: no change.
  std::optional<int> OnEvent(const Event& event);

  // Whether a request of `end` positions fits beside all running requests until all of them end.
  bool Fits(int64_t end) const;
  // The needs of a request that waits for a slot.
  struct Claim {
    int64_t prompt = 0, end = 0;
  };
  // Whether the pages of its prompt are there at the next step. If not, Want asks for them, and
  // they come some steps later.
  bool HasPages(const Claim& claim) const;
  // Asks for the pages of waiting requests, first come first served, as long as they fit beside the
  // running ones until all end. One change brings all these pages. Later requests do not delay the
  // pages of the first one.
  std::optional<int> Want(std::span<const Claim> waiting);

  // Pages of idle slots that must become free now, for those of running requests. Idle slots never
  // raise the level, and no request waits for their pages.
  int64_t Excess() const;

  int level() const { return level_; }

 private:
  struct Slot {
    int64_t positions = 0, end = 0;  // end 0: free or idle
    int64_t kept = 0;                // of an idle slot
  };
  int64_t PagesOf(int64_t positions) const { return std::min(KvPagesFor(positions), options_.most_pages); }
  int64_t Soon(const Claim& claim) const;  // pages after 2 `lead` steps
  int64_t There() const;
  int64_t Needed() const;
  int64_t AtEnd() const;  // pages of all running requests when they end
  std::optional<int> Raise(int64_t pages);
  std::optional<int> Lower();
  void NoteChange();

  const Options options_;
  std::vector<Slot> slots_;
  int level_ = 0;
  int64_t step_ = 0;           // number of steps ordered
  int64_t present_pages_ = 0;  // of the level before, until the last raise has arrived
  int64_t present_from_ = 0;   // the step from which the level's pages are there
  int64_t busy_until_ = 0;     // until this step, devices may still be changing
  int64_t calm_since_ = 0;
};

}  // namespace lime
