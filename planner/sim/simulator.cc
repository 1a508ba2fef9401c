#include "planner/sim/simulator.h"

#include <algorithm>
#include <deque>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/program/program_runner.h"

namespace lime {
namespace {

using Kind = TimelineSpan::Kind;

// Steps begun before the previous one has ended, so that no device is idle between two.
constexpr int64_t kStepsAhead = 2;

class Simulation {
 public:
  Simulation(const Plan& plan, const SimulatedSteps& script, const SimulateOptions& options)
      : plan_(plan), script_(script), options_(options), times_(prefills() ? plan.prefill : plan.decode) {
    result_.step_ends_ms.assign(script.steps.size(), 0.0);
    result_.devices.resize(plan.devices.size());
    devices_.reserve(plan.devices.size());
    for (int d = 0; d < plan.NumDevices(); ++d) AddDevice(d);
    for (const PlanDevice& device : plan.devices) result_.timeline.devices.push_back(device.name);
    for (int p = 0; options.timeline && p < plan.NumParts(); ++p) result_.timeline.parts.push_back(PartName(plan, p));
  }

  absl::StatusOr<SimulationResult> Run() {
    for (int d = 0; d < plan_.NumDevices(); ++d) Start(d);
    for (const SimulatedChange& change : script_.changes) {
      for (int d = 0; d < plan_.NumDevices(); ++d) After(change.at_ms, d, ApplyChange{&change});
    }
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time_ms;
      ++result_.events;
      std::visit([&](const auto& what) { On(event.device, what); }, event.what);
      if (!status_.ok()) return status_;
    }
    for (const Device& device : devices_) {
      if (device.runner.steps_ended() == NumSteps()) continue;
      return absl::InternalError(absl::StrCat("simulation: device ", device.index, " ended ", device.runner.steps_ended(), " of ",
                                              NumSteps(), " steps; the programs wait for one another"));
    }
    SortSpans(result_.timeline.spans);
    return std::move(result_);
  }

 private:
  // A change of residency; null: the next waiting one.
  struct ApplyChange {
    const SimulatedChange* change;
  };
  using What = std::variant<ProgramRunner::BeginStep, ProgramRunner::Arrived, ProgramRunner::KvArrived, ProgramRunner::UnitsChosen,
                            ProgramRunner::UnitsReady, ProgramRunner::HostAnswered, ProgramRunner::Loaded, ProgramRunner::Computed,
                            ProgramRunner::RoomMade, ApplyChange>;
  struct Event {
    double time_ms;
    int64_t order;  // of creation; decides between equal times
    int device;
    What what;
    bool operator<(const Event& other) const { return std::tie(time_ms, order) > std::tie(other.time_ms, other.order); }
  };
  struct Device {
    int index = 0;
    ProgramRunner runner;
    int64_t steps_begun = 0;
    double egress_free_ms = 0;
    double asked_units_ms = 0;  // the time of the newest AskUnits
    Bytes in_ring = 0;
    Bytes beside_ring = 0;
    ProgramRunner::StartCompute computing;
    std::vector<bool> resident;  // by part
    std::deque<Prefetch> ring;   // begun and not released, oldest first
    std::deque<Prefetch> loading;
    std::vector<int32_t> loaded;  // by part: copies in the ring
    const Plan* plan = nullptr;   // its current residency, or the one it is changing to
    int64_t border = -1;          // the first step of that residency
    Bytes kv_to_grow = 0;         // KV bytes that the border adds
    std::deque<const SimulatedChange*> to_apply;
  };

  bool prefills() const { return script_.kind == StepShape::Kind::kPrefill; }
  int64_t NumSteps() const { return static_cast<int64_t>(script_.steps.size()); }

  void AddDevice(int d) {
    std::vector<const Program*> programs;
    for (const std::vector<Program>& shape : script_.programs) programs.push_back(&shape[d]);
    const int64_t loads =
        // Unlimited if residency changes.
        script_.changes.empty() ? NumSteps() * static_cast<int64_t>(programs.front()->loads.size()) : INT64_MAX;
    const PlanMemory& memory = plan_.devices[d].memory;
    devices_.push_back(
        {.index = d, .runner = ProgramRunner(std::move(programs), loads), .beside_ring = memory.total() - memory.ring - memory.margin});
    result_.devices[d].most_used = devices_.back().beside_ring;
    devices_.back().plan = &plan_;
    devices_.back().loaded.resize(plan_.parts.size());
    for (const PlanPart& part : plan_.parts) devices_.back().resident.push_back(!part.streamed);
  }

  void After(double time_ms, int device, const What& what) { events_.push({time_ms, order_++, device, what}); }

  template <typename T>
  void On(int d, const T& event) {
    if (std::is_same_v<T, ProgramRunner::Computed>) NoteStepEnd(devices_[d]);
    if (std::is_same_v<T, ProgramRunner::Loaded>) NoteLoaded(devices_[d]);
    Post(d, event);
  }

  // ---- Residency

  void On(int d, const ApplyChange& apply) {
    Device& device = devices_[d];
    if (apply.change != nullptr) device.to_apply.push_back(apply.change);
    if (device.to_apply.empty() || !device.runner.settled()) return;
    const SimulatedChange& change = *device.to_apply.front();
    device.to_apply.pop_front();
    const Plan& before = *std::exchange(device.plan, &change.after);
    AddBeside(device, std::min<Bytes>(0, change.after.devices[d].memory.kv - before.devices[d].memory.kv));
    ProgramRunner::Change event;
    for (const std::vector<Program>& shape : change.entering) event.entering.push_back(&shape[d]);
    for (const std::vector<Program>& shape : change.settled) event.settled.push_back(&shape[d]);
    device.kv_to_grow = std::max<Bytes>(0, change.after.devices[d].memory.kv - before.devices[d].memory.kv);
    Post(d, event);
  }

  void Carry(Device& device, const ProgramRunner::Border& border) {
    device.border = result_.devices[device.index].last_border = border.step;
    for (const int p : PartsOn(plan_, device.index)) {
      if (!device.plan->parts[p].streamed || !device.resident[p]) continue;
      device.resident[p] = false;
      AddBeside(device, -plan_.parts[p].bytes);
    }
    AddBeside(device, std::exchange(device.kv_to_grow, 0));
    After(now_, device.index, ProgramRunner::RoomMade{});
  }

  void NoteLoaded(Device& device) {
    const Prefetch load = device.loading.front();
    device.loading.pop_front();
    if (load.becomes_resident) {
      device.resident[load.part] = true;
    } else {
      ++device.loaded[load.part];
    }
  }

  void AddBeside(Device& device, Bytes bytes) {
    device.beside_ring += bytes;
    NoteMemory(device);
  }

  // Everything is idle, rings are empty, and the first tokens are present.
  void Start(int d) {
    std::vector<ProgramRunner::Action> actions;
    devices_[d].runner.Start(actions);
    for (const ProgramRunner::Action& action : actions) Carry(d, action);
    while (devices_[d].steps_begun < std::min(kStepsAhead, NumSteps())) BeginStep(d);
    if (prefills() || d != plan_.stages.front().device) return;
    const Program& first = script_.programs[script_.steps.front()][d];
    for (int m = 0; m < first.microbatches; ++m) After(0, d, ProgramRunner::Arrived{.stage = 0, .microbatch = m});
  }

  void BeginStep(int d) { After(now_, d, ProgramRunner::BeginStep{script_.steps[devices_[d].steps_begun++]}); }

  void Post(int d, const ProgramRunner::Event& event) {
    std::vector<ProgramRunner::Action> actions;
    const absl::Status status = devices_[d].runner.OnEvent(event, now_, actions);
    if (!status.ok()) status_ = absl::InternalError(absl::StrCat("simulation: device ", d, ": ", status.message()));
    for (const ProgramRunner::Action& action : actions) Carry(d, action);
  }

  void Carry(int d, const ProgramRunner::Action& action) {
    std::visit([&](const auto& typed) { Carry(devices_[d], typed); }, action);
  }

  // Proofs count with the units that they leave to be computed.
  void Carry(Device& device, const ProgramRunner::StartCompute& start) {
    const int part = start.what.part;
    const bool proves = part != kEmbeddingPart && plan_.parts[part].has_own_decider();
    StartComputing(device, start, proves ? now_ : now_ + ComputeMs(part), /*units=*/0);
  }

  void StartComputing(Device& device, const ProgramRunner::StartCompute& start, double end_ms, int32_t units) {
    device.computing = start;
    if (const int part = start.what.part; part != kEmbeddingPart && !device.resident[part] && device.loaded[part] == 0) {
      status_ = absl::InternalError(
          absl::StrCat("simulation: device ", device.index, " computes part ", part, " in step ", start.step, ", but it is not in memory"));
    }
    AddSpan({.kind = Kind::kCompute,
             .device = device.index,
             .begin_ms = now_,
             .end_ms = end_ms,
             .step = static_cast<int32_t>(start.step),
             .stage = start.what.stage,
             .microbatch = start.what.microbatch,
             .part = start.what.part});
    After(end_ms, device.index, ProgramRunner::Computed{.units = units});
  }

  void Carry(Device& device, const ProgramRunner::StartLoad& start) {
    const PlanDevice& disk = plan_.devices[device.index];
    const double load_ms = static_cast<double>(start.what.bytes) / 1e6 / disk.disk_mb_per_ms + disk.disk_lat_ms;
    AddSpan({.kind = Kind::kLoad,
             .device = device.index,
             .begin_ms = now_,
             .end_ms = now_ + load_ms,
             .step = StepOf(device, start),
             .part = start.what.part});
    device.loading.push_back(start.what);
    if (!start.what.becomes_resident) device.ring.push_back(start.what);
    (start.what.becomes_resident ? device.beside_ring : device.in_ring) += start.what.bytes;
    NoteMemory(device);
    After(now_ + load_ms, device.index, ProgramRunner::Loaded{start.load});
  }

  void Carry(Device& device, const ProgramRunner::Release& release) {
    device.in_ring -= release.bytes;
    --device.loaded[device.ring.front().part];
    device.ring.pop_front();
  }

  // The step of a load; with changes, the current step.
  int32_t StepOf(const Device& device, const ProgramRunner::StartLoad& start) const {
    if (!script_.changes.empty()) return static_cast<int32_t>(device.runner.steps_ended());
    return static_cast<int32_t>(start.load / static_cast<int64_t>(script_.programs.front()[device.index].loads.size()));
  }

  void Carry(Device& device, const ProgramRunner::StartSend& start) {
    const Send& send = start.what;
    if (send.payload == Payload::kToken) {
      // A prompt ends with its token. The decode step that uses the token is not simulated.
      const double arrival_ms = send.to == device.index ? now_ : now_ + times_.lat_ms;
      if (!prefills()) After(arrival_ms, send.to, ProgramRunner::Arrived{.stage = 0, .microbatch = send.microbatch});
      return;
    }
    const double begin_ms = std::max(now_, device.egress_free_ms);
    device.egress_free_ms = begin_ms + times_.tx_ms;
    AddSpan({.kind = Kind::kSend,
             .device = device.index,
             .begin_ms = begin_ms,
             .end_ms = device.egress_free_ms,
             .step = static_cast<int32_t>(start.step),
             .stage = send.stage,
             .microbatch = send.microbatch,
             .peer = send.to});
    After(device.egress_free_ms + times_.lat_ms, send.to, ProgramRunner::Arrived{.stage = send.stage + 1, .microbatch = send.microbatch});
  }

  // The plan's time assumes all KV: both ways, and the host's attention. Late fetches delay prompts
  // too.
  void Carry(Device& device, const ProgramRunner::StartAskKv& start) {
    const auto& ask = start.what;
    const PlanPart& part = plan_.parts[ask.part];
    const double ms = !HasKvAway(*device.plan, device.index) ? 0
                      : prefills() && plan_.devices[device.index].asks_kv
                          ? part.prefill_ms
                          : WaitMs(*device.plan, ask.part, ResidencyOf(*device.plan).layer_pages);
    After(now_ + ms, device.index, ProgramRunner::KvArrived{.part = ask.part, .microbatch = ask.microbatch});
  }

  // The units of a micro-batch come together, after the expected time to read those that are not in
  // memory.
  void Carry(Device& device, const ProgramRunner::StartAskUnits& start) {
    const auto [stage, microbatch, part] = start.what;
    const double ms = DemandMs(part);
    device.asked_units_ms = now_;
    After(now_, device.index, ProgramRunner::UnitsChosen{.part = part, .microbatch = microbatch, .units = 1});
    After(now_ + ms, device.index, ProgramRunner::UnitsReady{.part = part, .microbatch = microbatch, .units = 1});
  }

  // The plan's time is until the units of all devices are computed.
  void Carry(Device& device, const ProgramRunner::StartAskHost& start) {
    const AskHost& ask = start.what;
    const double ms = prefills() ? plan_.parts[ask.part].prefill_ms : plan_.parts[ask.part].decode_ms;
    After(now_ + ms, device.index, ProgramRunner::HostAnswered{.part = ask.part, .microbatch = ask.microbatch});
  }

  // The device does nothing else between both. Adds up in the order of the Evaluator, which counts
  // reads and computation together.
  void Carry(Device& device, const ProgramRunner::StartComputeUnits& start) {
    const ComputeUnits& what = start.what;
    const double end_ms = device.asked_units_ms + (ComputeMs(what.part) + DemandMs(what.part));
    StartComputing(device, {start.step, Compute{what.stage, what.microbatch, what.part, what.rows, 0}}, end_ms, /*units=*/1);
  }

  void Carry(Device& device, const ProgramRunner::Waited& waited) {
    TimelineSpan span = SpanOf(waited);
    span.device = device.index;
    AddSpan(span);
  }

  void Carry(Device& device, const ProgramRunner::StepEnded& ended) {
    if (device.steps_begun < NumSteps()) BeginStep(device.index);
    // Begins the change that waited for this one to settle.
    if (ended.step == device.border) After(now_, device.index, ApplyChange{nullptr});
  }

  double DemandMs(int part) const { return prefills() ? plan_.parts[part].prefill_demand_ms : plan_.parts[part].demand_ms; }

  double ComputeMs(int part) const {
    if (part == kEmbeddingPart) return plan_.embedding == EmbeddingPlacement::kByRows ? times_.embed_rows_ms : 0;
    if (WaitsForKv(plan_, part) || plan_.parts[part].hosted()) return 0;  // the answer has arrived
    return prefills() ? plan_.parts[part].prefill_ms : plan_.parts[part].decode_ms;
  }

  // All plans of a device have the same budget and the same least margin.
  void NoteMemory(const Device& device) {
    SimulatedMemory& memory = result_.devices[device.index];
    const PlanDevice& planned = plan_.devices[device.index];
    memory.most_in_ring = std::max(memory.most_in_ring, device.in_ring);
    memory.most_used = std::max(memory.most_used, device.beside_ring + device.in_ring);
    if (memory.most_used <= planned.budget - planned.least_margin) return;
    status_ =
        absl::InternalError(absl::StrCat("simulation: device ", device.index, " uses ", FormatBytes(memory.most_used), " of ",
                                         FormatBytes(planned.budget), ", but ", FormatBytes(planned.least_margin), " must stay free"));
  }

  // The last part of the last stage ends a micro-batch. The last micro-batch ends the step.
  void NoteStepEnd(const Device& device) {
    if (device.computing.what.part + 1 != plan_.NumParts()) return;
    double& end_ms = result_.step_ends_ms[device.computing.step];
    end_ms = std::max(end_ms, now_);
  }

  void AddSpan(const TimelineSpan& span) {
    if (options_.timeline && result_.timeline.spans.size() < options_.max_spans) result_.timeline.spans.push_back(span);
  }

  const Plan& plan_;
  const SimulatedSteps& script_;
  const SimulateOptions options_;
  const StepTimes times_;
  std::vector<Device> devices_;
  std::priority_queue<Event> events_;
  double now_ = 0;
  int64_t order_ = 0;
  absl::Status status_;
  SimulationResult result_;
};

}  // namespace

double SimulationResult::MsPerStep() const {
  LIME_CHECK_EQ(step_ends_ms.size(), 48u);
  return (step_ends_ms[47] - step_ends_ms[15]) / 32;
}

absl::StatusOr<SimulationResult> Simulate(const Plan& plan, const SimulatedSteps& script, const SimulateOptions& options) {
  return Simulation(plan, script, options).Run();
}

absl::StatusOr<SimulationResult> SimulateDecode(const Plan& plan, const SimulateOptions& options) {
  LIME_ASSIGN_OR_RETURN(std::vector<Program> programs, Compile(plan, DecodeShape(plan)));
  SimulatedSteps script = {.kind = StepShape::Kind::kDecode, .steps = std::vector<int32_t>(std::max(options.steps, 1), 0)};
  script.programs.push_back(std::move(programs));
  return Simulate(plan, script, options);
}

absl::StatusOr<SimulationResult> SimulatePrefill(const Plan& plan, const SimulateOptions& options) {
  const std::vector<StepShape> shapes = PrefillShapes(plan);
  if (shapes.empty()) return absl::InvalidArgumentError("simulation: the plan has no prompt");
  SimulatedSteps script = {.kind = StepShape::Kind::kPrefill};
  for (const StepShape& shape : shapes) {
    if (script.steps.empty() || !(shape == shapes[script.steps.size() - 1])) {
      LIME_ASSIGN_OR_RETURN(std::vector<Program> programs, Compile(plan, shape));
      script.programs.push_back(std::move(programs));
    }
    script.steps.push_back(static_cast<int32_t>(script.programs.size()) - 1);
  }
  return Simulate(plan, script, options);
}

}  // namespace lime
