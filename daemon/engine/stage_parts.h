// The objects that a stage consists of. They are opened in the order in which memory is taken and
// freed, within the memory that the plan gives the device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "daemon/engine/baselines/sliced_visit.h"
#include "daemon/engine/stage_engine.h"
#include "daemon/engine/stage_weights.h"
#include "daemon/kv/hosting/hosted_kv.h"
#include "daemon/kv/stage_kv.h"
#include "daemon/units/asked_units.h"
#include "daemon/units/hosted_units.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/row_reader.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/plan_rows.h"

namespace lime {

struct StageParts {
  // REQUIRES: the plan in `stage` is valid for `spec`. All three outlive this object.
  StageParts(const Checkpoint& checkpoint, const ModelSpec& spec, const StageEngine::Options& stage);

  struct Owner {
    absl::Mutex* mutex = nullptr;
    std::function<void()> wrote;  // StageKv::Options::wrote
    // Sends a message to a host, or to a device whose host this one is. Called under the lock.
    std::function<void(int32_t to, std::vector<std::byte> message, bool may_wait)> send_to_peer;
    std::function<void(std::span<const int32_t> neurons, const absl::Status& status)> neurons_read;  // StageWeights::Options
  };
  // ResourceExhausted, with the numbers and a remedy, if the process would exceed the device's
  // budget, also while it takes over KV of the previous plan. Other errors as for
  // StageEngine::Install.
  absl::Status Open(const Owner& owner);
  // A reader for rows of the embedding.  Thread: any
  absl::StatusOr<std::unique_ptr<RowReader>> OpenRows() const;
  // Memory of that reader.
  Bytes RowsBytes() const { return RowReader::BytesFor(spec, MaxRows(plan())); }
  // Bytes of a hidden state.
  Bytes RowBytes() const { return spec.config.stream_cols() * ElementBytes(spec.working_dtype); }
  // What the results follow from beside the checkpoint: the kernels' order of sums, and the predictor.
  std::string numerics_id() const;
  // Bytes read from the disk for what streams, without neurons: their small reads say nothing of the
  // disk's rate.  REQUIRES: under the owner's lock
  Bytes BytesStreamed() const { return weights->bytes_streamed() + kv->bytes_read(); }

  const Checkpoint& checkpoint;
  const ModelSpec& spec;
  const StageEngine::Options& stage;
  const std::vector<int32_t> layers;  // whose KV is here
  // True: pages come as sequences grow, and residency may change; false: all at once.
  const bool pages_come;
  std::unique_ptr<Backend> backend;
  std::unique_ptr<SlicedVisit> visit;  // null: nothing is evicted
  std::unique_ptr<RowReader> rows;     // null: the embedding is resident, or on another device
  std::unique_ptr<StageKv> kv;         // used under the lock
  std::unique_ptr<HostedKv> others;    // KV of other devices; used under the lock
  std::unique_ptr<StageWeights> weights;
  std::unique_ptr<AskedUnits> asked_units;    // used under the lock
  std::unique_ptr<HostedUnits> hosted_units;  // used under the lock

 private:
  const Plan& plan() const { return stage.plan; }
  const PlanDevice& device() const { return stage.plan.devices[stage.device]; }
  BackendOptions OptionsOfBackend() const;
  absl::Status MakeRoom(const BackendOptions& options);
  absl::Status OpenTheBackend(const BackendOptions& options);
  // After the weights.
  absl::Status BindPredictors();
  absl::Status OpenKv(const Owner& owner);
  void OpenUnits(const Owner& owner);
  absl::Status TakeOver();
  void KeepWeights();
  Bytes HandoverWeightBytes() const { return stage.takeover == nullptr ? 0 : stage.takeover->weight_bytes(); }
  bool EmbedsByRows() const;
};

}  // namespace lime
