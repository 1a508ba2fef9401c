// One device's engine: weights, KV pages and backend wired together. Takes micro-batches, gives logits.
//
// Thread: one thread at a time; the backend's threads are its own.
// A resident model has nothing of loading on the token path: Step calls the backend block by block.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "daemon/logic/kv_pages.h"
#include "daemon/weights/weight_store.h"
#include "kernels/backend.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/model_spec.h"

namespace lime {

class Engine {
 public:
  struct Options {
    int num_threads = 0;  // 0: one for every core this process may use
    LoaderKind loader = LoaderKind::kAuto;
    int64_t planned_steps = 1;  // how often the weights will be read, for the choice of the loader
    int64_t max_rows = 512;     // of one micro-batch
    int64_t max_logit_rows = 1;
    int64_t max_sequences = 1;
    int64_t context = 0;   // positions of one sequence; at most the model's
    bool grow_kv = false;  // KV memory comes as it is written, instead of up front; counted in full all the same
    std::string numerics = "auto";
    Bytes memory = 0;  // budget of the whole process; 0: what the machine has
    LoadOptions load;  // progress and cancellation
  };

  // What a resident model needs, by kind.
  struct Memory {
    Bytes weights = 0;
    Bytes kv = 0;
    Bytes activations = 0;
    Bytes runtime = 0;  // resident beside those: the process and its libraries, before weights are loaded
  };

  struct LoadSummary {
    std::string loader;  // which one, and why
    Bytes bytes = 0;
    double seconds = 0;
  };

  // Opens the checkpoint in `model_dir`, reserves KV, activations and weights, and loads. ResourceExhausted, before anything is allocated
  // or loaded and with the numbers by kind, when the budget cannot hold it.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(const std::string& model_dir, const Options& options);

  const ModelSpec& spec() const { return spec_; }
  const LoadSummary& load() const { return load_; }
  const Memory& memory() const { return memory_; }
  std::string numerics_id() const { return backend_->numerics_id(); }
  std::string description() const { return backend_->description(); }
  int64_t context() const { return context_; }

  // Reserves the KV pages of `positions` positions for slot `sequence`. ResourceExhausted with the numbers when they are not free.
  absl::Status StartSequence(int32_t sequence, int64_t positions);
  void EndSequence(int32_t sequence);

  // Computes one micro-batch; the logits of the rows that asked, [rows, vocab] fp32 in order, valid until the next Step.
  absl::StatusOr<std::span<const float>> Step(const MicroBatch& batch);

  // Bytes that decoding one token reads: weights once, and the KV of `positions` positions of each of `sequences`.
  Bytes BytesPerStep(int64_t sequences, int64_t positions) const;

 private:
  Engine(ModelSpec spec, const KvPages::Options& pages) : spec_(std::move(spec)), pages_(pages) {}
  absl::Status Open(const Checkpoint& checkpoint, const Options& options, const BackendOptions& backend, Bytes budget);
  absl::Status LoadWeights(const Checkpoint& checkpoint, const Options& options);

  ModelSpec spec_;
  KvPages pages_;
  std::unique_ptr<Backend> backend_;
  int64_t context_ = 0;
  LoadSummary load_;
  Memory memory_;
};

}  // namespace lime
