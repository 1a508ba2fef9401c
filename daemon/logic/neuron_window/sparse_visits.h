// What a sparse part reads and computes in a visit: one micro-batch in one layer.
//
//   BeginNeurons(mask) ── rounds of NeuronWindow ── TakeLoads ──► OnNeuronRead ──┐
//                                held neurons ──────────────────► NextReady ◄────┘ ──► OnComputed
//   BeginPieces(count) ── TakePiece ──► OnPieceRead ────────────► NextReady ─────────► OnComputed
//       last masks ────── copies: neurons of the pieces that the next visits will need
//
// A micro-batch of few rows computes its active neurons, in ascending order, when all those before are
// there (Backend::ComputeNeurons): at least an eighth of a round at a time, as each call wakes all
// threads, which take the cores from the reader. A micro-batch of many rows computes all rows, piece by
// piece in order: a piece is read while the one before is computed. The window then has the masks of its
// last rows, as if they had come one by one. The owner copies the neurons that the window wants from the
// pieces, so the visit after a prompt finds them in memory.
//
// Reads are checked, and repeated once, by the owner's reader. One that fails fails the step: the
// device stops.
//
// Thread: the owner's.   Owner: StageLogic.   Pure, deterministic, and allocates nothing after Create.
// Invariants: at most one visit is under way; a row of memory is not read into while a neuron in it is
// needed; every neuron or piece of a visit is ready exactly once, in order.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "daemon/logic/neuron_window/neuron_window.h"
#include "planner/base/status.h"

namespace lime {

class SparseVisits {
 public:
  static constexpr int32_t kPieces = 2;  // in memory
  static constexpr int32_t kShares = 8;  // neurons wait until an eighth of their round is there, or its last ones are

  // A neuron in its row, or a piece in its place.
  struct Unit {
    int32_t unit = 0;
    int32_t place = 0;
    friend bool operator==(const Unit&, const Unit&) = default;
  };
  // The last masks of a micro-batch of many rows. `ages`: by neuron, how many masks before the last one
  // has it, or MaskWindow::kNever.
  struct LastMasks {
    std::span<const int32_t> ages;
    int32_t masks = 0;  // 0: none is known, or the last one does not fit into memory
  };
  // Of all visits by neurons so far.
  struct Counts {
    int64_t visits = 0;
    int64_t rows = 0;
    int64_t active = 0;  // neurons that were computed
    int64_t loaded = 0;  // of them, that were read
    int64_t copied = 0;  // from pieces
    friend bool operator==(const Counts&, const Counts&) = default;
  };

  // One window for each sparse part. InvalidArgument for numbers outside their bounds.
  static absl::StatusOr<std::unique_ptr<SparseVisits>> Create(std::span<const MaskWindow::Options> parts);

  // ---- A visit

  // Computes these neurons of a part for so many rows. InvalidArgument if they do not ascend, or the
  // layer does not have them; nothing has begun then. Without neurons the visit is over at once, and
  // leaves the window as it is.
  // REQUIRES: no visit is under way
  absl::Status BeginNeurons(int32_t part, std::span<const int32_t> mask, int32_t rows);
  // Computes all rows of a part, in so many pieces. copies() of them go into rows of memory.
  // REQUIRES: no visit is under way; at least one piece; `last` is as MaskWindow::Remember needs it
  void BeginPieces(int32_t part, int32_t pieces, const LastMasks& last);
  // The neurons to copy from the pieces of the last such visit, ascending. Valid until its end.
  std::span<const NeuronWindow::Load> copies() const { return copies_; }

  bool IsUnderWay() const { return part_ >= 0; }
  int32_t part() const { return part_; }  // of the visit; -1: none
  bool by_neurons() const { return pieces_ == 0; }

  // The neurons to read now, ascending: once for each round that lacks any. All of them are read
  // before the next ones come. Valid until the next call that is not const.
  std::span<const NeuronWindow::Load> TakeLoads();
  // The next piece to read. Nothing while no place is free.
  std::optional<Unit> TakePiece();

  // A neuron of TakeLoads, or a piece, is in memory.
  void OnNeuronRead(int32_t neuron);
  void OnPieceRead(int32_t piece);

  // The next neuron or piece to compute, in order. Nothing while it is not there, or while too few
  // neurons are (kShares).
  std::optional<Unit> NextReady();
  // The next so many of NextReady are computed.
  void OnComputed(int32_t units);

  // ---- Memory

  // Rows of memory, which are the first ones.
  struct Rows {
    int32_t first = 0;
    int32_t count = 0;
    friend bool operator==(const Rows&, const Rows&) = default;
  };
  // Gives the part this many rows, 1 to those at Create. With fewer: returns the rows whose memory the
  // owner may free now; if a visit of the part is under way, the rest follows by NextGivenBack after it.
  // With more: returns the rows whose memory the owner makes.
  Rows SetRows(int32_t part, int32_t rows);
  int32_t num_rows(int32_t part) const { return parts_[static_cast<size_t>(part)].with_memory; }  // with memory
  // Rows of a part whose memory the owner may free now, after a SetRows that could not take all at once.
  struct GivenBack {
    int32_t part = 0;
    Rows rows;
    friend bool operator==(const GivenBack&, const GivenBack&) = default;
  };
  std::optional<GivenBack> NextGivenBack() { return std::exchange(given_back_, std::nullopt); }

  const Counts& counts(int32_t part) const { return parts_[static_cast<size_t>(part)].counts; }
  // Rows of a part with a neuron.
  int32_t num_used(int32_t part) const { return parts_[static_cast<size_t>(part)].window->num_used(); }

 private:
  struct Part {
    std::unique_ptr<NeuronWindow> window;
    std::vector<bool> reading;  // by neuron
    Counts counts;
    // Rows that the part is to have, and those with memory, which are more while a visit uses them.
    int32_t target = 0, with_memory = 0;
  };

  SparseVisits() = default;
  Part& Current() { return parts_[static_cast<size_t>(part_)]; }
  void BeginRound();
  void End();
  // Whether NextReady may return neurons that it could not return before.
  bool Release();

  std::vector<Part> parts_;
  int32_t part_ = -1;
  std::span<const NeuronWindow::Load> copies_;
  // Of the round, or of all pieces: how many there are, are ready, and are computed.
  int32_t units_ = 0, ready_ = 0, computed_ = 0;
  int32_t arrived_ = 0, released_ = 0;   // of a round, neurons from the first one on: in memory, and enough to compute
  std::optional<GivenBack> given_back_;  // of the last visit
  bool has_loads_ = false;               // TakeLoads has not been called for them
  int32_t pieces_ = 0;                   // of the visit; 0: by neurons
  int32_t next_piece_ = 0;               // to be read
  std::vector<bool> piece_read_ = std::vector<bool>(kPieces);  // by place
};

}  // namespace lime
