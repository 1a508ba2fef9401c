// The sparse parts of a stage: asks which neurons a micro-batch needs, and starts the reads that its
// StageLogic decides.
//
//   decider's rows ──► Ask ──► StageLogic ──► StartNeuronReads, StartPieceRead ──► Carry ──► the disk
//                                  ▲                                                           │
//                                  └───────────── OnNeuronsRead, OnPieceRead ◄─────────────────┘
//
// Thread: any, under the owner's lock, except OnNeuronsRead.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "daemon/engine/stage_compute.h"
#include "daemon/engine/stage_parts.h"
#include "daemon/logic/rates/disk_meter.h"
#include "daemon/logic/stage_logic.h"
#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/plan.h"

namespace lime {

class StageNeurons {
 public:
  struct Owner {
    absl::Mutex* mutex = nullptr;
    // All of the following under the lock. `actions`: the StageLogic's, which `carry_out` carries out.
    StageLogic::Actions* actions = nullptr;
    DiskMeter* disk = nullptr;
    std::function<void()> carry_out;
    std::function<void(const absl::Status& status)> refuse;  // an action could not be carried out
  };

  // REQUIRES: `parts` are open. They, `compute` and everything that the owner points to outlive this
  // object
  StageNeurons(const StageParts& parts, StageCompute& compute, Owner owner)
      : parts_(parts), plan_(parts.stage.plan), compute_(compute), owner_(std::move(owner)) {}

  // Steps begin. REQUIRES: `logic` outlives this object
  void Start(StageLogic& logic);

  // Tells the logic what a micro-batch needs of a sparse part. Follows directly after the decider's
  // rows.
  void Ask(int part, int32_t microbatch, const MicroBatch& batch);
  void Carry(const StageLogic::StartNeuronReads& start);
  void Carry(const StageLogic::StartPieceRead& start);
  // Of StageWeights::Options.  Thread: the reader's, without the lock
  void OnNeuronsRead(std::span<const int32_t> neurons, const absl::Status& status);

  // In which any read of a neuron was under way, since the start.
  double io_ms() const { return owner_.mutex->AssertHeld(), io_ms_; }

 private:
  void OnPieceRead(int32_t piece, const absl::Status& status);

  const StageParts& parts_;
  const Plan& plan_;
  StageCompute& compute_;
  const Owner owner_;
  StageLogic* logic_ ABSL_GUARDED_BY(owner_.mutex) = nullptr;
  // Neurons of the burst under way that have not come, and when it began.
  int64_t reads_left_ ABSL_GUARDED_BY(owner_.mutex) = 0;
  double reads_begun_ms_ ABSL_GUARDED_BY(owner_.mutex) = 0;
  double io_ms_ ABSL_GUARDED_BY(owner_.mutex) = 0;
};

}  // namespace lime
