#include "daemon/engine/stage_neurons.h"

#include "common/steady_clock.h"
#include "planner/plan/sparse_parts.h"

namespace lime {

void StageNeurons::Start(StageLogic& logic) {
  owner_.mutex->AssertHeld();
  logic_ = &logic;
}

void StageNeurons::Ask(int part, int32_t microbatch, const MicroBatch& batch) {
  owner_.mutex->AssertHeld();
  if (!ComputesNeurons(plan_, std::ssize(batch.rows))) {
    const absl::StatusOr<SparseVisits::LastMasks> last = compute_.LastMasks(part, batch, logic_->NumPlaces(part));
    if (!last.ok()) return owner_.refuse(last.status());
    logic_->OnPiecesChosen(part, microbatch, parts_.weights->NumUnits(part), *last, SteadyMs(), *owner_.actions);
    return compute_.CopyNeurons(logic_->neuron_copies());
  }
  const absl::StatusOr<std::span<const int32_t>> neurons = compute_.DecideNeurons(part, batch);
  if (!neurons.ok()) return owner_.refuse(neurons.status());
  logic_->OnUnitsChosen(part, microbatch, *neurons, SteadyMs(), *owner_.actions);
}

void StageNeurons::Carry(const StageLogic::StartNeuronReads& start) {
  owner_.mutex->AssertHeld();
  reads_left_ = std::ssize(start.loads), reads_begun_ms_ = SteadyMs();
  parts_.weights->StartNeuronReads(start.part, start.loads);
}

void StageNeurons::OnNeuronsRead(std::span<const int32_t> neurons, const absl::Status& status) {
  const double end_ms = SteadyMs();  // before waiting for the lock
  absl::MutexLock lock(owner_.mutex);
  if (!logic_->health().ok()) return;  // the memory it was for may be gone
  reads_left_ -= std::ssize(neurons);
  if (reads_left_ == 0) io_ms_ += end_ms - reads_begun_ms_;
  logic_->OnNeuronsRead(neurons, status, SteadyMs(), *owner_.actions);
  owner_.carry_out();
}

void StageNeurons::Carry(const StageLogic::StartPieceRead& start) {
  owner_.mutex->AssertHeld();
  owner_.disk->LoadBegun(SteadyMs());
  parts_.weights->StartPieceRead(start.part, start.piece, start.place,
                                 [this, piece = start.piece](const absl::Status& status) { OnPieceRead(piece, status); });
}

// Thread: the reader's.
void StageNeurons::OnPieceRead(int32_t piece, const absl::Status& status) {
  const double end_ms = SteadyMs();  // before waiting for the lock
  absl::MutexLock lock(owner_.mutex);
  if (!logic_->health().ok()) return;  // the memory it was for may be gone
  owner_.disk->LoadEnded(end_ms, parts_.BytesStreamed());
  logic_->OnPieceRead(piece, status, SteadyMs(), *owner_.actions);
  owner_.carry_out();
}

}  // namespace lime
