// The sliding window of one layer with sparse neurons: which neurons stay in memory, and which come.
//
// A step of such a layer has a mask: the neurons that it computes. The window has the last masks,
// the step's own included. A step deletes the neurons that are in no mask of the window, and loads
// the neurons of its mask that are not in memory ("LLM in a flash", Alizadeh et al. 2023, section
// 3.1: sliding window).
//
//   memory before the step ──► neurons in no mask of the window leave
//                          ──► neurons of the step's mask that are not there come
//
// Readings, where the paper leaves room:
// - If the union of the masks has more neurons than memory has rows, the oldest masks do not count,
//   for this step only. Neurons that left do not come back before a mask has them again.
// - A mask larger than memory is computed in rounds: its neurons in ascending order, as many at once
//   as there are rows. A round keeps only its own neurons.
//
// Only sets are decided here. Rows of memory are given in daemon/logic/neuron_window. Predictions
// (planner/demand/mask_statistics.h) run this code too, so they count the loads that a device makes.
//
// Pure, deterministic, and allocates nothing after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "planner/base/status.h"

namespace lime {

inline constexpr int32_t kMostWindowMasks = 4096;

class MaskWindow {
 public:
  static constexpr int32_t kNever = -1;

  struct Options {
    int32_t neurons = 0;  // of the layer
    int32_t rows = 0;     // neurons that memory has room for; at most all
    int32_t masks = 1;    // of the window (k of the paper), the step's own included
  };

  // InvalidArgument for numbers outside their bounds.
  static absl::Status Check(const Options& options);

  // REQUIRES: Check accepts the options.
  explicit MaskWindow(const Options& options);

  // ---- A step

  // Begins a step with this mask, which may be empty. InvalidArgument if its neurons do not ascend,
  // or the layer does not have them; nothing has changed then.
  // REQUIRES: no round of the step before is left.
  absl::Status BeginStep(std::span<const int32_t> mask);

  // Goes on to the next round of the step, and changes memory. A step has one round, or more if its
  // mask is larger than memory. False if no round is left.
  bool NextRound();

  // Of the round. Valid until the next call.
  std::span<const int32_t> part() const { return part_; }        // neurons to compute, ascending
  std::span<const int32_t> leaving() const { return leaving_; }  // neurons that leave memory, ascending
  std::span<const int32_t> coming() const { return coming_; }    // neurons of `part` to load, ascending

  // As if so many steps had passed: `ages` says, by neuron, how many steps before the last of them a
  // mask had it, or kNever. Neurons that the window wants and that are not in memory are coming().
  // Nothing is to be computed: part() is empty.
  // REQUIRES: no round is left; 1 to as many steps as the window has masks; all ages are below
  // `steps`; their neurons are at most as many as memory has rows
  void Remember(std::span<const int32_t> ages, int32_t steps);

  // Masks that count in this step; at least 1 once a step has begun.
  int32_t masks_kept() const { return kept_; }

  // ---- State

  bool InMemory(int32_t neuron) const { return in_memory_[static_cast<size_t>(neuron)]; }
  int32_t rows() const { return rows_; }  // that memory has room for now
  // Neurons that any of the last `masks` masks has. Of all masks of the window it is known; of fewer, a sum
  // over them.  REQUIRES: 1 <= masks <= those of the window
  int64_t UnionOf(int32_t masks) const;
  const Options& options() const { return options_; }

  // From now on memory has room for so many neurons, at most those of the options. REQUIRES: no round
  // is left; no more neurons are in memory
  void SetRows(int32_t rows);
  // The neuron is no longer in memory, whatever the window wants. It comes back when a mask has it.
  // REQUIRES: no round is left
  void Drop(int32_t neuron);

  // Forgets all masks, and empties memory: a step has failed.
  void Clear();

 private:
  int64_t& NewestAt(int64_t step) { return newest_[static_cast<size_t>(step % options_.masks)]; }
  void NextMask();
  void NoteUse(int32_t neuron, int64_t step);
  void ChooseWindow();
  void LetGo();
  void Hold(int32_t neuron);
  bool Stays(int32_t neuron) const;

  const Options options_;
  int32_t rows_ = 0;
  int64_t step_ = kNever;          // counts steps, from 0
  std::vector<int64_t> last_use_;  // by neuron: the last step whose mask has it
  // By step of the window: neurons whose last use it is. So the union of the last masks is a sum.
  std::vector<int64_t> newest_;
  int64_t union_ = 0;            // their sum
  std::vector<bool> in_memory_;  // by neuron
  std::vector<int32_t> held_;    // the neurons in memory, in any order, and those that were dropped since the last round
  int32_t kept_ = 0;
  std::vector<int32_t> mask_;
  bool has_round_ = false;  // a round of the step is left
  size_t next_ = 0;         // the first neuron of `mask_` in it
  std::span<const int32_t> part_;
  std::vector<int32_t> leaving_, coming_;
};

}  // namespace lime
