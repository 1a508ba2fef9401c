// One device's part of a plan: its weights, KV pages and backend. The plan's Programs drive it.
//
//   orders, activations, finished reads ──► ProgramRunner ──► compute thread, PartReader, peers
//
// Threads: one thread computes. Orders and activations may come on any thread. The thread that
// brings an event also carries out what follows from it, under one mutex; only computing needs no
// mutex. Peers are called under the mutex: they take their data and return at once.
// Memory: Install allocates and pre-faults everything that steps use, as much as the plan says.
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
#include "daemon/engine/token_sampler.h"
#include "daemon/kv/kv_handover.h"
#include "daemon/logic/route_recorder.h"
#include "daemon/logic/trace_ring.h"
#include "daemon/machine/stall_watch.h"
#include "daemon/pressure/pressure_monitor.h"
#include "daemon/stores/weights_digest.h"
#include "daemon/weights/load_meter.h"
#include "daemon/weights/loader.h"
#include "daemon/weights/loader_choice.h"
#include "daemon/weights/part_reader.h"
#include "planner/base/status.h"
#include "planner/plan/device/backend_names.h"
#include "planner/plan/device/device_profile.h"
#include "planner/plan/plan.h"

namespace lime {

// The coordinator and the other devices, as a stage sees them.
struct StagePeers {
  // Hands an activation, or a message to or from a host, to the link to `device`, in order. Never
  // to itself.
  std::function<void(int32_t device, ActivationMessage activation)> send;
  // Sends tokens that this device has sampled to the coordinator.
  std::function<void(int64_t step, std::span<const SampledToken> tokens)> sampled;
  // A step has ended here.
  std::function<void(int64_t step)> step_ended;
  // The stage has stopped for good: a read keeps failing, or an order or activation is invalid.
  std::function<void(const absl::Status& status)> failed;
};

// One plan's part on a device.
struct StageSetup {
  std::string weights;  // folder of the checkpoint
  Plan plan;
  int32_t device = 0;  // index in the plan
  StagePeers peers;
  std::shared_ptr<KvTakeover> takeover;  // from the previous plan; null: every sequence begins anew
  std::optional<WeightsDigest> digest;   // that the weights must have; nothing: not checked
  TokenSampler* sampler = nullptr;       // for a device with a part of the head; outlives the stage
  LoadOptions load;                      // load.cancelled: loading soon ends with kCancelled
  StallReport report;                    // while the disk delivers nothing, or memory is short
  TraceRing* trace = nullptr;            // receives spans; null: no trace; outlives the stage
};

// Settings for every plan of a process.
struct EngineSettings {
  int num_threads = 0;                // compute threads; 0: one for each usable core
  Cores cores;                        // of the compute threads; empty: any
  std::string backend = kCpuBackend;  // a name in kernels/registry/registry.h
  std::string numerics = "auto";
  LoaderKind loader = LoaderKind::kRead;  // as StageWeights::Options
  // How often the weights will be read, for the loader's choice. 0: once for each position.
  int64_t planned_steps = 0;
  bool grow_kv = false;  // KV takes memory as it is written; the budget still counts all of it
  std::string kv_dir;    // for KV that does not fit in memory; empty: the folder of the weights
  Bytes memory = 0;      // for the process; a plan with a larger budget is refused; 0: not checked
  // Weights are evicted while other programs need the memory, and loaded again afterwards.
  bool follow_memory = false;
  std::optional<PressureMonitor::Options> pressure;  // how the system is watched, for tests
  absl::Duration pressure_hold = absl::Seconds(2);   // how long pressure must be over; less in tests
  std::optional<DeviceProfile> pace;                 // computes no faster (kernels/paced_backend.h)
  std::function<void(const std::string& sentence)> log;
  // Receives the units that layers choose, if some are on demand; null: no record. For one plan.
  std::shared_ptr<RouteRecorder> routes;
};

class StageEngine {
 public:
  struct Options : StageSetup, EngineSettings {
    SampleMemory* samples = nullptr;  // remembers weights that were compared before; may be null
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device = nullptr;  // for tests
  };

  // Checks the plan against the model, allocates, and loads the resident weights. May take minutes.
  // InvalidArgument if the plan is not for this model. FailedPrecondition if the weights do not
  // have the digest. ResourceExhausted, with the numbers, if the process would exceed the device's
  // budget. With a takeover also the errors of StageKv::TakeOver.
  static absl::StatusOr<std::unique_ptr<StageEngine>> Install(Options options);
  virtual ~StageEngine() = default;

  // The next order. InvalidArgument if its number is not the next one, or if it names something
  // that does not exist; nothing has changed then. ResourceExhausted if a sequence does not fit.
  virtual absl::Status OnOrder(const Order& order) = 0;
  // Takes an activation from a peer. InvalidArgument if it does not belong to this plan and step;
  // nothing has changed then.
  virtual absl::Status OnActivation(ActivationMessage activation) = 0;

  // Takes a message about KV or units from a host of this device, or from a device whose host it
  // is. Errors as for OnActivation.
  virtual absl::Status OnHosting(int32_t /*from*/, const std::vector<std::byte>& /*message*/) {
    return Invalid("this device has no host, and is the host of none");
  }

  // Statistics of the stage, without its epoch, links and process. May wait for the disk.
  virtual DeviceStatistics stats() const = 0;
  // Share of the current or last step's computations here that have ended. Never waits.
  // Thread: any
  virtual double StepShare() const { return 0; }
  virtual LoadSummary load() const { return {}; }

  // Stops, and leaves KV, states and resident weights for the next plan. In the middle of a step, KV
  // and states of its rows are unfinished; those of earlier rows, and snapshots, are as they were.
  // FailedPrecondition if the plan evicts KV; the error of the stage if it has failed. Afterwards only
  // the destructor may be called, whatever this returns.
  virtual absl::StatusOr<PlanHandover> HandOver() { return absl::UnimplementedError("this device hands over no KV"); }
  virtual std::string numerics_id() const = 0;
};

// Makes a plan's stage, as StageEngine::Install does; in tests one that computes nothing.
using StageFactory = std::function<absl::StatusOr<std::unique_ptr<StageEngine>>(StageSetup setup)>;
StageFactory MakeEngineStages(const EngineSettings& settings);

}  // namespace lime
