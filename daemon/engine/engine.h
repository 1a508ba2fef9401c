// One device's engine: weights, KV pages and backend wired together. Takes micro-batches, gives logits.
//
// Thread: one thread at a time; the backend's threads and the disk's are its own.
// A resident model has nothing of loading on the token path: Step calls the backend block by block. Where the budget is too small for that,
// a Streamer takes the step, and reads what is not resident while it computes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "daemon/engine/load_summary.h"
#include "daemon/engine/memory_plan.h"
#include "daemon/engine/residency_control.h"
#include "daemon/engine/streamer.h"
#include "daemon/logic/kv_pages.h"
#include "daemon/weights/weight_store.h"
#include "kernels/backend.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/model_spec.h"

namespace lime {

class Engine {
 public:
  struct Options {
    int num_threads = 0;  // 0: one for every core this process may use
    LoaderKind loader = LoaderKind::kAuto;
    int64_t planned_steps = 1;  // how often the weights will be read, for the choice of the loader
    int64_t max_rows = 512;     // of one micro-batch, where `work` does not leave it open
    Workload work;              // where it says prompt tokens, their chunks are as long as is best for it: max_rows is then chosen
    int64_t max_logit_rows = 1;
    int64_t max_sequences = 1;
    int64_t context = 0;                // positions of one sequence; at most the model's
    int64_t expected_positions = 0;     // of a sequence on average, for predictions; 0: the context
    bool grow_kv = false;               // KV memory comes as it is written, instead of up front; counted in full all the same
    std::string backend = kCpuBackend;  // of kernels/registry/registry.h
    std::string numerics = "auto";
    Bytes memory = 0;  // budget of the whole process; 0: what the machine has
    LoadOptions load;  // progress and cancellation, of steps too

    // What stays in memory where not everything can.
    Placement placement = Placement::kAuto;
    std::optional<Bytes> ring;                            // of the byte ring; else chosen
    std::optional<int64_t> ring_pieces;                   // the same in pieces
    std::optional<double> resident_share;                 // 0 to 1; else as much as fits
    const DeviceProfile* profile = nullptr;               // for these choices
    StallReport report;                                   // while the disk delivers nothing
    bool watch_pressure = false;                          // give blocks back while others need the memory, and take them back afterwards
    std::optional<PressureMonitor::Options> pressure;     // where the system is looked at, for tests
    MemoryPriority priority = MemoryPriority::kBalanced;  // of the budget, where `memory` gives none
    Bytes piece_bytes = kPieceBytes;                      // of streamed pieces
    TraceRing* trace = nullptr;                           // spans of every step, where that is asked for; outlives the engine
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;  // for tests
  };

  // Bytes per second of streaming, where something streams.
  struct DiskRates {
    bool profiled = false;  // else `planned` is an assumption
    double planned = 0;     // before anything was read
    double planned_ms = 0;  // a step, at that rate
    double seen = 0;        // by this process, and predicted with since; 0: nothing yet
  };

  // Opens the checkpoint in `model_dir`, decides what stays in memory, reserves it, and loads. ResourceExhausted, before anything is
  // allocated or loaded and with the numbers by kind, when the budget holds not even KV, activations and two pieces of streamed weights.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const std::string& model_dir, const Options& options);

  const ModelSpec& spec() const { return spec_; }
  const LoadSummary& load() const { return load_; }
  const EngineMemory& memory() const { return memory_; }
  // Its ms_per_step is that of the disk as it was seen last.
  const ResidencyPlan& residency() const { return residency_; }
  const DiskRates& disk_rates() const { return disk_rates_; }
  // How the budget was derived; empty where it was asked for.
  const std::string& budget_text() const { return budget_text_; }
  std::string numerics_id() const { return backend_->numerics_id(); }
  std::string description() const { return backend_->description(); }
  int64_t context() const { return context_; }
  int64_t max_rows() const { return max_rows_; }  // of one micro-batch

  // Reserves the KV pages of `positions` positions for slot `sequence`. ResourceExhausted with the numbers when they are not free.
  absl::Status StartSequence(int32_t sequence, int64_t positions);
  void EndSequence(int32_t sequence);

  // Computes one micro-batch; the logits of the rows that asked, [rows, vocab] fp32 in order, valid until the next Step.
  absl::StatusOr<std::span<const float>> Step(const MicroBatch& batch);

  // Bytes that decoding one token reads from memory: weights once, and the KV of `positions` positions of each of `sequences`.
  Bytes BytesPerStep(int64_t sequences, int64_t positions) const;

  // Takes the rate at which weights have streamed since the last call for that of the disk, where that can be told: the computation waited
  // for it, or it is faster than was thought. Returns whether it could.
  bool LearnDiskRate();

  // Gives blocks back, or takes them back, as the pressure of the machine asks; every Step does so first.
  void FollowPressure();

  // Called before every block of a step with how many of all there are have been computed, until it is set to nothing: for progress.
  void set_on_block(std::function<void(int done, int total)> call);

  // Where something streams, else null.
  Streamer* streamer() { return streamer_.get(); }
  // "memory watched through …", empty where it is not.
  std::string DescribePressure() const { return control_ ? control_->Describe() : ""; }

 private:
  Engine(Checkpoint checkpoint, ModelSpec spec) : checkpoint_(std::move(checkpoint)), spec_(std::move(spec)) {}
  absl::Status Open(const Options& options, const BackendOptions& backend, std::unique_ptr<PieceReader> reader);
  absl::Status LoadWeights(const Options& options);
  absl::StatusOr<std::vector<LoadedBlock>> LoadResident(WeightStore& store, const Options& options);
  bool TakeDiskRate(const SteadyReads& reads);
  absl::Status DecideAgain(std::vector<LoadedBlock>& blocks, Bytes& loaded);
  absl::Status StepResident();
  absl::Status WatchPressure(const PressureMonitor::Options& watching);
  Bytes MatrixBytes() const;
  void FollowBetweenBlocks();
  absl::Status BecomeStreaming(Bytes target);

  Checkpoint checkpoint_;
  ModelSpec spec_;
  std::optional<KvPages> pages_;
  std::unique_ptr<Backend> backend_;
  int64_t context_ = 0;
  int64_t max_rows_ = 0;
  LoadSummary load_;
  EngineMemory memory_;
  Bytes budget_ = 0;
  std::string budget_text_;
  Bytes most_ = 0;     // may be resident without pressure
  bool told_ = false;  // that nothing can be given back
  ResidencyPlan residency_;
  std::optional<ResidencyProblem> problem_;  // that residency_ solves, at the disk's rate as it was seen last
  DiskRates disk_rates_;
  SteadyReads seen_reads_;              // of which the rate seen is
  PieceLoader::Stats learnt_;           // of the streamer, when its rate was looked at last
  Streamer::Options streaming_;         // its trace is that of a resident model too
  int32_t step_ = -1;                   // number of the one begun last
  std::vector<LoadedBlock> blocks_;     // of a resident model
  std::unique_ptr<Streamer> streamer_;  // else
  std::unique_ptr<ResidencyControl> control_;
  std::function<void(int done, int total)> on_block_;
};

}  // namespace lime
