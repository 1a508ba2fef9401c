// One device's part of a plan: its weights, KV pages and backend, driven by the Programs that the plan compiles to.
//
//   orders, activations, reads that ended ──► ProgramRunner ──► compute thread, PieceReader, Peers
//
// Threads: one computes; orders and activations may come on any thread. Whoever brings an event carries out what follows from it, under one
// mutex, but for computing. Peers are called under it: they take what they are given and return at once.
// Memory: everything that steps use is allocated and pre-faulted by Install, and is what the plan says.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/activation.h"
#include "common/order.h"
#include "daemon/engine/cores.h"
#include "daemon/engine/kv_left.h"
#include "daemon/engine/load_summary.h"
#include "daemon/engine/token_sampler.h"
#include "daemon/logic/trace_ring.h"
#include "daemon/pressure/pressure_monitor.h"
#include "daemon/weights/loader.h"
#include "daemon/weights/loader_choice.h"
#include "daemon/weights/piece_reader.h"
#include "daemon/weights/stall_watch.h"
#include "daemon/weights/weights_digest.h"
#include "kernels/backend.h"
#include "planner/base/status.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/plan.h"

namespace lime {

class StageEngine {
 public:
  // The others, as far as the engine is concerned.
  struct Peers {
    // Hands an activation, or a message about KV, to the link to `device`, in order. Never called with this device.
    std::function<void(int32_t device, ActivationMessage activation)> send;
    // Tokens that this device has sampled, for the coordinator.
    std::function<void(int64_t step, std::span<const SampledToken> tokens)> sampled;
    // A step has ended here.
    std::function<void(int64_t step)> step_ended;
    // The engine has stopped for good: a read that keeps failing, an order or activation that cannot be.
    std::function<void(const absl::Status& status)> failed;
  };
  struct Options {
    int num_threads = 0;                // that compute; 0: one for every core this process may use
    Cores cores;                        // that these keep to; empty: any
    std::string backend = kCpuBackend;  // of kernels/registry/registry.h
    std::string numerics = "auto";
    bool grow_kv = false;             // memory of KV comes as it is written, instead of up front; it counts in full all the same
    TokenSampler* sampler = nullptr;  // where the plan gives this device a part of the head; outlives the engine
    Peers peers;
    std::string kv_folder;                 // for KV that memory has no room for; empty: that of the model
    std::shared_ptr<KvTakeover> takeover;  // of the plan before; null: every sequence begins anew
    std::optional<WeightsDigest> digest;   // that the weights must have; nothing: not said
    SampleMemory* samples = nullptr;       // of weights that were compared before; may be null
    LoadOptions load;
    LoaderKind loader = LoaderKind::kRead;  // as StageWeights::Options
    int64_t planned_steps = 0;  // how often the weights will be read, for its choice; 0: as for one request of the whole context
    StallReport report;         // while the disk delivers nothing
    // Pressure: gives weights back while others on the machine need the memory, and takes them back afterwards.
    bool watch_pressure = false;
    std::optional<PressureMonitor::Options> pressure;  // where the system is looked at, for tests
    absl::Duration pressure_hold = absl::Seconds(2);   // how long it has to have passed; shorter for tests
    TraceRing* trace = nullptr;                        // what computes, loads and waits, where that is asked for; outlives the engine
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;                  // for tests
    std::function<std::unique_ptr<Backend>(std::unique_ptr<Backend>, const ModelSpec& spec)> wrap_backend;  // for experiments
  };

  // Validates the plan against the model in `model_dir`, allocates, and loads what is resident on device `device`. InvalidArgument where
  // the plan is not of this model; FailedPrecondition where the weights are not those of Options::digest; ResourceExhausted, with the
  // numbers, where the process would exceed the device's budget. Of KV that is taken over also what StageKv::TakeOver says.
  static absl::StatusOr<std::unique_ptr<StageEngine>> Install(const std::string& model_dir, const Plan& plan, int32_t device,
                                                              Options options);
  virtual ~StageEngine() = default;

  // The next order. InvalidArgument, and nothing has changed, where its number is not the next one or it names what is not there;
  // ResourceExhausted where an admitted sequence does not fit.
  virtual absl::Status OnOrder(const Order& order) = 0;
  // From a peer. InvalidArgument, and nothing has changed, for what does not belong to this plan and step.
  virtual absl::Status OnActivation(ActivationMessage activation) = 0;

  // From the host of this device's KV, or from a device whose host it is (daemon/logic/kv_message.h). As OnActivation.
  virtual absl::Status OnKv(int32_t from, const std::vector<std::byte>& message) = 0;

  struct Stats {
    int64_t steps = 0;  // ended here
    Bytes bytes_read = 0;
    Bytes kv_written = 0;           // to the disk or a host, for want of memory
    Bytes kv_read = 0;              // of them from the disk, again and again; counted in bytes_read too
    Bytes kv_fetched = 0;           // likewise back from the host
    int64_t residency_changes = 0;  // carried out
    Bytes given = 0;                // of weights, back to the machine, as long as others need the memory (Options::watch_pressure)
    double compute_ms = 0;
    double wait_weights_ms = 0;    // the computation stood still for the disk
    double wait_input_ms = 0;      // for a peer
    double decode_ms = 0;          // computing micro-batches that decode: a row of each sequence
    double planned_decode_ms = 0;  // what the plan says of the same
    double disk_ms = 0;            // that the disk was at work, but for beginnings (daemon/logic/disk_meter.h)
    Bytes disk_bytes = 0;          // read in that time
    std::optional<Bytes> kv_room;  // on the disk for KV of another plan beside what this one may still take there; nothing: not known
  };
  virtual Stats stats() const = 0;
  // Of the step under way, or the last one, the share of its computations here that have ended. Waits for nothing.  Thread: any
  virtual double StepShare() const = 0;
  virtual const LoadSummary& load() const = 0;

  // Stops, between two steps, and leaves KV and resident weights for the plan that follows. FailedPrecondition where a step is under way,
  // or the plan evicts KV. Nothing but the destructor is called after it, whatever it answers.
  virtual absl::StatusOr<LeftByPlan> Leave() = 0;
  virtual const std::string& numerics_id() const = 0;
};

}  // namespace lime
