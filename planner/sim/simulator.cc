#include "planner/sim/simulator.h"

#include <algorithm>
#include <queue>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"
#include "planner/program_runner.h"

namespace lime {
namespace {

using Kind = TimelineSpan::Kind;

constexpr int64_t kStepsAhead = 2;  // begun before the one before has ended, so that no device stands still between two

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
    while (!events_.empty()) {
      const Event event = events_.top();
      events_.pop();
      now_ = event.time_ms;
      ++result_.events;
      if (std::holds_alternative<ProgramRunner::Computed>(event.what)) NoteStepEnd(devices_[event.device]);
      Post(event.device, event.what);
      if (!status_.ok()) return status_;
    }
    for (const Device& device : devices_) {
      if (device.runner.steps_ended() == NumSteps()) continue;
      return absl::InternalError(absl::StrCat("simulation: device ", device.index, " ended ", device.runner.steps_ended(), " of ",
                                              NumSteps(), " steps; the programs wait for one another"));
    }
    SortSpans();
    return std::move(result_);
  }

 private:
  struct Event {
    double time_ms;
    int64_t order;  // of announcement: who was first at one time
    int device;
    ProgramRunner::Event what;
    bool operator<(const Event& other) const { return std::tie(time_ms, order) > std::tie(other.time_ms, other.order); }
  };
  struct Device {
    int index = 0;
    ProgramRunner runner;
    int64_t steps_begun = 0;
    double egress_free_ms = 0;
    double bulk_free_ms = 0;  // pages travel beside activations
    Bytes in_ring = 0;
    Bytes beside_ring = 0;
    ProgramRunner::StartCompute computing;
  };

  bool prefills() const { return script_.kind == StepShape::Kind::kPrefill; }
  int64_t NumSteps() const { return static_cast<int64_t>(script_.steps.size()); }

  void AddDevice(int d) {
    std::vector<const Program*> programs;
    for (const std::vector<Program>& shape : script_.programs) programs.push_back(&shape[d]);
    const int64_t loads = NumSteps() * static_cast<int64_t>(programs.front()->loads.size());
    const PlanMemory& memory = plan_.devices[d].memory;
    devices_.push_back(
        {.index = d, .runner = ProgramRunner(std::move(programs), loads), .beside_ring = memory.total() - memory.ring - memory.margin});
    result_.devices[d].most_used = devices_.back().beside_ring;
  }

  void After(double time_ms, int device, const ProgramRunner::Event& what) { events_.push({time_ms, order_++, device, what}); }

  // Everything is idle, rings are empty, and the first tokens are there.
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

  void Carry(Device& device, const ProgramRunner::StartCompute& start) {
    device.computing = start;
    const double end_ms = now_ + ComputeMs(start.what.part);
    AddSpan({.kind = Kind::kCompute,
             .device = device.index,
             .begin_ms = now_,
             .end_ms = end_ms,
             .step = static_cast<int32_t>(start.step),
             .stage = start.what.stage,
             .microbatch = start.what.microbatch,
             .part = start.what.part});
    After(end_ms, device.index, ProgramRunner::Computed{});
  }

  void Carry(Device& device, const ProgramRunner::StartLoad& start) {
    const PlanDevice& disk = plan_.devices[device.index];
    const double load_ms = static_cast<double>(start.what.bytes) / 1e6 / disk.disk_mb_per_ms + disk.disk_lat_ms;
    AddSpan({.kind = Kind::kLoad,
             .device = device.index,
             .begin_ms = now_,
             .end_ms = now_ + load_ms,
             .step = static_cast<int32_t>(start.load / static_cast<int64_t>(script_.programs.front()[device.index].loads.size())),
             .part = start.what.part});
    TakeRoom(device, start.what.bytes);
    After(now_ + load_ms, device.index, ProgramRunner::Loaded{start.load});
  }

  void Carry(Device& device, const ProgramRunner::Release& release) { TakeRoom(device, -release.bytes); }

  void Carry(Device& device, const ProgramRunner::StartSend& start) {
    const Send& send = start.what;
    if (send.payload == Payload::kToken) {
      // A prompt ends with its token: the step of decoding that takes it is not part of this.
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

  // On the bulk channel, at the rate of a hidden state.
  void Carry(Device& device, const ProgramRunner::StartSendKv& start) {
    const double begin_ms = std::max(now_, device.bulk_free_ms);
    device.bulk_free_ms = begin_ms + static_cast<double>(start.what.pages) * times_.page_tx_ms;
    AddSpan({.kind = Kind::kSendKv,
             .device = device.index,
             .begin_ms = begin_ms,
             .end_ms = device.bulk_free_ms,
             .step = static_cast<int32_t>(start.step),
             .peer = start.what.to});
    After(device.bulk_free_ms + times_.lat_ms, start.what.to, ProgramRunner::KvArrived{start.what.layer});
  }

  void Carry(Device& device, const ProgramRunner::Waited& waited) {
    TimelineSpan span = {
        .device = device.index, .begin_ms = waited.begin_ms, .end_ms = waited.end_ms, .step = static_cast<int32_t>(waited.step)};
    if (const auto* recv = std::get_if<Recv>(&waited.what)) {
      span.kind = Kind::kWaitInput, span.stage = recv->stage, span.microbatch = recv->microbatch, span.peer = recv->from;
    } else if (const auto* await = std::get_if<AwaitWeights>(&waited.what)) {
      span.kind = Kind::kWaitWeights, span.part = script_.programs.front()[device.index].loads[await->load].part;
    } else if (const auto* await = std::get_if<AwaitKv>(&waited.what)) {
      span.kind = Kind::kWaitKv, span.peer = await->from;
    }
    AddSpan(span);
  }

  void Carry(Device& device, const ProgramRunner::StepEnded&) {
    if (device.steps_begun < NumSteps()) BeginStep(device.index);
  }

  double ComputeMs(int part) const {
    if (part == kEmbeddingPart) return plan_.embedding == EmbeddingPlacement::kByRows ? times_.embed_rows_ms : 0;
    return prefills() ? plan_.parts[part].prefill_ms : plan_.parts[part].decode_ms;
  }

  void TakeRoom(Device& device, Bytes bytes) {
    device.in_ring += bytes;
    SimulatedMemory& memory = result_.devices[device.index];
    memory.most_in_ring = std::max(memory.most_in_ring, device.in_ring);
    memory.most_used = std::max(memory.most_used, device.beside_ring + device.in_ring);
  }

  // The last part of the last stage ends a micro-batch, the last micro-batch the step.
  void NoteStepEnd(const Device& device) {
    if (device.computing.what.part + 1 != plan_.NumParts()) return;
    double& end_ms = result_.step_ends_ms[device.computing.step];
    end_ms = std::max(end_ms, now_);
  }

  void AddSpan(const TimelineSpan& span) {
    if (options_.timeline && result_.timeline.spans.size() < options_.max_spans) result_.timeline.spans.push_back(span);
  }

  void SortSpans() {
    std::ranges::stable_sort(result_.timeline.spans, {},
                             [](const TimelineSpan& span) { return std::tuple(span.device, span.kind, span.begin_ms); });
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

absl::Status CheckScript(const Plan& plan, const SimulatedSteps& script) {
  LIME_RETURN_IF_ERROR(plan.Validate());
  const auto wrong = [](const char* what) { return absl::InvalidArgumentError(absl::StrCat("simulation: ", what)); };
  if (script.steps.empty() || script.programs.empty()) return wrong("no step");
  for (const int32_t shape : script.steps) {
    if (shape < 0 || shape >= static_cast<int32_t>(script.programs.size())) return wrong("a step of no shape");
  }
  for (const std::vector<Program>& programs : script.programs) {
    if (programs.size() != plan.devices.size()) return wrong("a program is needed for each device");
    for (size_t d = 0; d < programs.size(); ++d) {
      LIME_RETURN_IF_ERROR(programs[d].Validate());
      if (programs[d].loads != script.programs.front()[d].loads) return wrong("the loads of a device differ from step to step");
    }
  }
  return absl::OkStatus();
}

}  // namespace

double SimulationResult::MsPerStep() const {
  LIME_CHECK_EQ(step_ends_ms.size(), 48u);
  return (step_ends_ms[47] - step_ends_ms[15]) / 32;
}

absl::StatusOr<SimulationResult> Simulate(const Plan& plan, const SimulatedSteps& script, const SimulateOptions& options) {
  LIME_RETURN_IF_ERROR(CheckScript(plan, script));
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
  if (shapes.empty()) return absl::InvalidArgumentError("simulation: the plan is for no prompt");
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
