// Follows the KV pages that running requests really use, and says when the devices of a plan whose KV grows take up another level
// (planner/kv_levels.h): a higher one before its pages are needed, a lower one once it has been enough for a while.
//
// Pure: what is ordered in, levels out.   Thread: the owner's.   Owner: OrderWriter.
// Time is counted in steps: devices take up a level within `lead` steps, or twice as many where they are at another one still. So whatever
// the next 2 `lead` steps write has its pages ordered now.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <variant>
#include <vector>

namespace lime {

class MemoryPlanner {
 public:
  struct Options {
    std::vector<int64_t> layer_pages;  // of the levels, ascending: KV pages of every layer, all sequences together
    int32_t sequences = 1;             // slots
    int64_t lead = 8;                  // steps
    int64_t calm = 64;                 // steps for which a lower level has to have been enough
  };
  explicit MemoryPlanner(const Options& options);

  // A request takes a slot; it ends at `end` positions at the latest.
  struct Admit {
    int32_t slot = 0;
    int64_t prompt = 0;
    int64_t end = 0;
  };
  struct Retire {
    int32_t slot = 0;
  };
  // A step is ordered, after which the slots have so many positions; -1: as before, or none.
  struct Step {
    std::vector<int64_t> positions;
  };
  using Event = std::variant<Admit, Retire, Step>;

  // The level to take up before what the event says is ordered; nothing where it stays.
  std::optional<int> OnEvent(const Event& event);

  // Whether all running requests and this one could come to their ends together. False for ever where not even one alone could.
  bool EverFits(int64_t end) const { return PagesOf(end) <= options_.layer_pages.back(); }
  bool Fits(int64_t end) const;
  // What a request comes with that is to take a slot.
  struct Claim {
    int64_t prompt = 0, end = 0;
  };
  // Whether a prompt has its pages by the time of the next step. Where not, they are to be asked for with Want, and come some steps later.
  bool HasPages(const Claim& claim) const;
  // For all that wait, first come first, as far as they could come to their ends together with those that run: they come with one change.
  // Those behind the first one do not put its pages off.
  std::optional<int> Want(std::span<const Claim> waiting);

  int level() const { return level_; }

 private:
  struct Slot {
    int64_t positions = 0, end = 0;  // end 0: free
  };
  static int64_t PagesOf(int64_t positions) { return (positions + 15) / 16; }
  int64_t Soon(const Claim& claim) const;  // pages after 2 `lead` steps
  int64_t Needed() const;
  int64_t AtEnd() const;  // pages of all that run, when they end
  std::optional<int> Raise(int64_t pages);
  std::optional<int> Lower();
  void NoteChange();

  const Options options_;
  std::vector<Slot> slots_;
  int level_ = 0;
  int64_t step_ = 0;           // ordered so far
  int64_t present_pages_ = 0;  // of the level before, until the last one raised has come
  int64_t present_from_ = 0;   // the step from which on the level's pages are there
  int64_t busy_until_ = 0;     // devices may be at a change until then
  int64_t calm_since_ = 0;
};

}  // namespace lime
