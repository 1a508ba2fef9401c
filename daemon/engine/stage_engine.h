// One device's part of a plan: its weights, KV pages and backend, driven by the Programs that the plan compiles to.
//
//   orders, activations, reads that ended ──► ProgramRunner ──► compute thread, PieceReader, peers
//
// Threads: one computes; orders and activations may come on any thread. Whoever brings an event carries out what follows from it, under one
// mutex, but for computing. Peers are called under it: they take what they are given and return at once.
// Memory: everything that steps use is allocated and pre-faulted by Install, and is what the plan says.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/activation.h"
#include "common/device_report.h"
#include "common/order.h"
#include "daemon/engine/cores.h"
#include "daemon/engine/kv_left.h"
#include "daemon/engine/token_sampler.h"
#include "daemon/logic/trace_ring.h"
#include "daemon/pressure/pressure_monitor.h"
#include "daemon/weights/load_meter.h"
#include "daemon/weights/loader.h"
#include "daemon/weights/loader_choice.h"
#include "daemon/weights/piece_reader.h"
#include "daemon/weights/stall_watch.h"
#include "daemon/weights/weights_digest.h"
#include "planner/base/status.h"
#include "planner/plan/backend_names.h"
#include "planner/plan/device_profile.h"
#include "planner/plan/plan.h"

namespace lime {

// The others, as far as a stage is concerned.
struct StagePeers {
  // Hands an activation, or a message about KV, to the link to `device`, in order. Never called with this device.
  std::function<void(int32_t device, ActivationMessage activation)> send;
  // Tokens that this device has sampled, for the coordinator.
  std::function<void(int64_t step, std::span<const SampledToken> tokens)> sampled;
  // A step has ended here.
  std::function<void(int64_t step)> step_ended;
  // The stage has stopped for good: a read that keeps failing, an order or activation that cannot be.
  std::function<void(const absl::Status& status)> failed;
};

// What one plan's part of a device is made from.
struct StageSetup {
  std::string weights;  // folder
  Plan plan;
  int32_t device = 0;  // of the plan
  StagePeers peers;
  std::shared_ptr<KvTakeover> takeover;  // of the plan before; null: every sequence begins anew
  std::optional<WeightsDigest> digest;   // that the weights must have; nothing: not said
  TokenSampler* sampler = nullptr;       // where this device has a part of the head; outlives the stage
  LoadOptions load;                      // kCancelled within moments after load.cancelled is set
  StallReport report;                    // while the disk delivers nothing, or memory is short
  TraceRing* trace = nullptr;            // what computes, loads and waits, where that is asked for; outlives the stage
};

// What holds for every plan of a process.
struct EngineSettings {
  int num_threads = 0;                // that compute; 0: one for every core this process may use
  Cores cores;                        // that these keep to; empty: any
  std::string backend = kCpuBackend;  // of kernels/registry/registry.h
  std::string numerics = "auto";
  LoaderKind loader = LoaderKind::kRead;  // as StageWeights::Options
  int64_t planned_steps = 0;              // how often the weights will be read, for its choice; 0: as for one request of the whole context
  bool grow_kv = false;                   // memory of KV comes as it is written, instead of up front; it counts in full all the same
  std::string kv_dir;                     // for KV that memory has no room for; empty: the folder of the weights
  Bytes memory = 0;                       // that the process may use; a plan that takes more is refused; 0: not said
  bool follow_memory = false;             // give weights back while others on the machine need the memory, and take them back afterwards
  std::optional<PressureMonitor::Options> pressure;  // where the system is looked at, for tests
  absl::Duration pressure_hold = absl::Seconds(2);   // how long it has to have passed; shorter for tests
  std::optional<DeviceProfile> pace;                 // compute no faster than this device would (kernels/paced_backend.h)
  std::function<void(const std::string& sentence)> log;
};

class StageEngine {
 public:
  struct Options : StageSetup, EngineSettings {
    SampleMemory* samples = nullptr;  // of weights that were compared before; may be null
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device = nullptr;  // for tests
  };

  // Validates the plan against the model, allocates, and loads what is resident on the device; may take minutes. InvalidArgument where
  // the plan is not of this model; FailedPrecondition where the weights are not those of the digest; ResourceExhausted, with the numbers,
  // where the process would exceed the device's budget. Of KV that is taken over also what StageKv::TakeOver says.
  static absl::StatusOr<std::unique_ptr<StageEngine>> Install(Options options);
  virtual ~StageEngine() = default;

  // The next order. InvalidArgument, and nothing has changed, where its number is not the next one or it names what is not there;
  // ResourceExhausted where an admitted sequence does not fit.
  virtual absl::Status OnOrder(const Order& order) = 0;
  // From a peer. InvalidArgument, and nothing has changed, for what does not belong to this plan and step.
  virtual absl::Status OnActivation(ActivationMessage activation) = 0;

  // From the host of this device's KV, or from a device whose host it is (daemon/logic/kv_message.h). As OnActivation.
  virtual absl::Status OnKv(int32_t /*from*/, const std::vector<std::byte>& /*message*/) {
    return Invalid("this device has no KV with others");
  }

  // What there is to say of a stage: nothing of its epoch, links and process. May wait for the disk.
  virtual DeviceStatistics stats() const = 0;
  // Of the step under way, or the last one, the share of its computations here that have ended. Waits for nothing.  Thread: any
  virtual double StepShare() const { return 0; }
  virtual LoadSummary load() const { return {}; }

  // Stops, between two steps, and leaves KV and resident weights for the plan that follows. FailedPrecondition where a step is under way,
  // or the plan evicts KV. Nothing but the destructor is called after it, whatever it answers.
  virtual absl::StatusOr<LeftByPlan> Leave() { return absl::UnimplementedError("this device leaves no KV"); }
  virtual std::string numerics_id() const = 0;
};

// What a plan runs on: the engine, or in tests something that computes nothing. As StageEngine::Install.
using StageFactory = std::function<absl::StatusOr<std::unique_ptr<StageEngine>>(StageSetup setup)>;
StageFactory MakeEngineStages(const EngineSettings& settings);

}  // namespace lime
