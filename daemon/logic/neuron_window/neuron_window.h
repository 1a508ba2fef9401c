// In which row of memory each neuron of a layer is, step by step.
//
// A row has the weights of one neuron: its rows of gate and up, its column of down ("LLM in a
// flash", section 3.3, "Optimized Data Management in DRAM": the matrix, pointer, num_used). Which
// neurons leave and come is decided by the window of masks (planner/demand/mask_window.h). The rows
// were allocated with the plan.
//
// A round, in this order:
//   deletes   rows of neurons that leave are free
//   moves     a row is copied to another one; only with kCompact
//   loads     a neuron is read into a free row
//   compute   part(), wherever its neurons are
//
// Thread: the owner's.   Owner: the driver of a stage.   Pure, deterministic, and allocates nothing
// after Create.
// Invariants: a neuron is in one row at most; no more rows are used than there are.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "planner/base/names.h"
#include "planner/base/status.h"
#include "planner/demand/mask_window.h"

namespace lime {

enum class RowPlacement : uint8_t {
  kStable,   // new neurons take the lowest free rows; nothing is copied
  kCompact,  // the paper: rows 0 to num_used - 1 are used. The last rows fill the gaps of deleted ones
};
inline constexpr Names<RowPlacement, 2> kRowPlacementNames{{{RowPlacement::kStable, "stable"}, {RowPlacement::kCompact, "compact"}}};

class NeuronWindow {
 public:
  static constexpr int32_t kNone = -1;

  struct Options {
    MaskWindow::Options window;
    RowPlacement placement = RowPlacement::kStable;
  };

  // The content of row `from` is copied to row `to`. `from` is free afterwards.
  struct Move {
    int32_t from = 0;
    int32_t to = 0;
    friend bool operator==(const Move&, const Move&) = default;
  };

  // A neuron is read into a row.
  struct Load {
    int32_t neuron = 0;
    int32_t row = 0;
    friend bool operator==(const Load&, const Load&) = default;
  };

  // InvalidArgument for numbers outside their bounds.
  static absl::StatusOr<std::unique_ptr<NeuronWindow>> Create(const Options& options);

  // ---- A step

  // As of MaskWindow.
  absl::Status BeginStep(std::span<const int32_t> mask) { return window_.BeginStep(mask); }

  // Goes on to the next round of the step; false if none is left. The owner carries out moves() in
  // order, then loads() in any order, and computes part() before the next call.
  bool NextRound();

  // As of MaskWindow. Afterwards the owner carries out moves() and loads() as in a round.
  void Remember(std::span<const int32_t> ages, int32_t steps);

  // Of the round. Valid until the next call.
  std::span<const int32_t> part() const { return window_.part(); }
  std::span<const int32_t> deletes() const { return window_.leaving(); }  // neurons, ascending
  std::span<const Move> moves() const { return moves_; }
  std::span<const Load> loads() const { return loads_; }  // neurons ascending

  int32_t masks_kept() const { return window_.masks_kept(); }

  // ---- State

  // From now on there are so many rows, the first ones; at most those of the options. Neurons in rows
  // that go leave memory.  REQUIRES: no round is left
  void SetRows(int32_t rows);
  int32_t num_rows() const { return window_.rows(); }
  // Rows with a neuron. With kCompact, they are the first ones.
  int32_t num_used() const { return num_used_; }
  int32_t NeuronIn(int32_t row) const { return pointer_[static_cast<size_t>(row)]; }    // kNone: free
  int32_t RowOf(int32_t neuron) const { return row_of_[static_cast<size_t>(neuron)]; }  // kNone: not in memory

  // Forgets all masks and frees all rows. For a step that has failed: what its reads have left in the
  // rows is never used.
  void Clear();

 private:
  explicit NeuronWindow(const Options& options);

  void Place();
  void Put(int32_t neuron, int32_t row);
  void Delete();
  void FillGaps(int32_t used_before);
  void PlaceLoads();

  const Options options_;
  MaskWindow window_;
  std::vector<int32_t> pointer_;  // by row: its neuron
  std::vector<int32_t> row_of_;   // by neuron
  int32_t num_used_ = 0;
  std::vector<Move> moves_;
  std::vector<Load> loads_;
};

}  // namespace lime
