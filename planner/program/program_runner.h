// Interprets the Programs of one device: events in, actions out. Used by the daemon and the
// simulator.
//
// Pure: it reads no clock. The owner passes `now_ms`, which only serves to report waiting times.
// Thread: the owner's.   Owner: the simulator, or a daemon's event loop.
//
// Two activities run in parallel, and each has one current place:
//   computation  Instructions of a step in order, then those of the next begun step. It is at a
//                running Compute, at an instruction that waits, or between steps.
//   disk         Loads begin in order, load k after load k - loads_in_ring was evicted. Up to
//                loads_under_way are in flight, so that a real disk never idles between two.
// A message that a peer sends too often or at the wrong time is an error. It changes nothing.
//
// A Change of the streamed parts stops nothing. Steps with a load that has begun continue as
// before. The next step is the border.
//
//   Change ──► steps before it ──► Border: evicted parts are unused ──► first step ──► settled
//                                     └─► RoomMade: their memory is free
//
// In the first step, the parts that become resident are loaded to stay.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/program.h"
#include "planner/plan/timeline_span.h"

namespace lime {

class ProgramRunner {
 public:
  // ---- Events

  // Begins a step of `program` (index) after the steps begun before.
  struct BeginStep {
    int32_t program = 0;
  };
  // A micro-batch for `stage` has arrived. Messages of later steps may come early, but in order of
  // the steps.
  struct Arrived {
    int32_t stage = 0;
    int32_t microbatch = 0;
  };
  // The host has answered.
  struct KvArrived {
    int32_t part = 0;
    int32_t microbatch = 0;
  };
  // The host of a part's units has sent all results.
  struct HostAnswered {
    int32_t part = 0;
    int32_t microbatch = 0;
  };
  // The oldest load in flight has ended.
  struct Loaded {
    int64_t load = 0;
  };
  // The running Compute has ended, or this many units of the running ComputeUnits.
  struct Computed {
    int32_t units = 0;
  };
  // The answer to StartAskUnits: how many units the micro-batch has chosen.
  struct UnitsChosen {
    int32_t part = 0;
    int32_t microbatch = 0;
    int32_t units = 0;
  };
  // This many more of them are in memory.
  struct UnitsReady {
    int32_t part = 0;
    int32_t microbatch = 0;
    int32_t units = 0;
  };
  // Changes the streamed parts. The border is the first step that has not begun and has no load
  // begun. `entering` are its Programs (CompileChange); `settled` are those of all later steps.
  // Each has as many Programs as before. The ring stays, or appears if there was none, or goes if
  // nothing streams any more. The Programs must not change and must outlive this, or the next
  // Change. InvalidArgument while another change is not settled.
  struct Change {
    std::vector<const Program*> entering, settled;
  };
  // Memory for the new resident parts and the ring is free: after a Border, or at once if no part
  // leaves.
  struct RoomMade {};
  using Event = std::variant<BeginStep, Arrived, KvArrived, UnitsChosen, UnitsReady, HostAnswered, Loaded, Computed, Change, RoomMade>;

  // ---- Actions, to be done in order. Steps and loads are counted from 0 over the runner's life.

  struct StartCompute {
    int64_t step = 0;
    Compute what;
  };
  struct StartLoad {
    int64_t load = 0;
    Prefetch what;
  };
  // The ring memory of a load is free. This action precedes the StartLoad that uses the memory.
  struct Release {
    int64_t load = 0;
    Bytes bytes = 0;
  };
  struct StartSend {
    int64_t step = 0;
    Send what;
  };
  struct StartAskKv {
    int64_t step = 0;
    AskKv what;
  };
  // Its answer is UnitsChosen.
  struct StartAskUnits {
    int64_t step = 0;
    AskUnits what;
  };
  // Its answer is HostAnswered.
  struct StartAskHost {
    int64_t step = 0;
    AskHost what;
  };
  // Computes units that are in memory: at least one, and as many as Computed says.
  struct StartComputeUnits {
    int64_t step = 0;
    ComputeUnits what;
  };
  // The computation waited. Not reported between steps.
  struct Waited {
    int64_t step = 0;
    Instruction what;   // one that may wait
    int32_t part = -1;  // AwaitWeights, ComputeUnits: the part it waited for
    double begin_ms = 0;
    double end_ms = 0;
  };
  // The last instruction of a step is done.
  struct StepEnded {
    int64_t step = 0;
  };
  // All steps before `step` have ended. From `step` on, the new residency is in use.
  struct Border {
    int64_t step = 0;
  };
  template <typename... More>
  using ActionOr = std::variant<StartCompute, StartLoad, Release, StartSend, StartAskKv, StartAskUnits, StartAskHost, StartComputeUnits,
                                Waited, StepEnded, Border, More...>;
  using Action = ActionOr<>;

  // Limit for steps begun but not ended, and for early messages of one kind.
  static constexpr int64_t kMaxAhead = 1 << 16;

  // `programs`: the Programs that a step may use, for one device of one plan, all with the same
  // loads. `loads_limit`: the load of this number and later loads never begin; without a limit,
  // loads continue cyclically while there is room. `loads_under_way`: most loads in flight; they
  // end in order. REQUIRES: at least one Program, all valid and unchanged while this lives.
  explicit ProgramRunner(std::vector<const Program*> programs, int64_t loads_limit = INT64_MAX, int loads_under_way = 1);

  // Appends the first actions. Call it once, before any event.
  void Start(std::vector<Action>& actions) { TryLoad(actions); }
  // Appends the actions that follow. InvalidArgument for an impossible event, which changes
  // nothing.
  absl::Status OnEvent(const Event& event, double now_ms, std::vector<Action>& actions);

  // ---- Its state, for logs and tests

  bool computing() const { return computing_; }
  // The instruction that waits; null while it computes or between steps.
  const Instruction* waiting() const;
  // The part whose load or units it waits for, if any.
  std::optional<int> awaited_part() const;
  // When the wait began; negative if it does not wait.
  double waiting_since_ms() const { return waiting_since_ms_; }
  int64_t steps_ended() const { return step_; }
  // Whether no change is in progress.
  bool settled() const { return generations_.size() == 1; }
  // The first step of the new residency.  REQUIRES: !settled()
  int64_t border() const { return generations_[1].first_step; }

 private:
  // Messages that arrived and were not used yet, by (stage, micro-batch).
  using Arrivals = std::map<std::pair<int32_t, int32_t>, int64_t>;

  absl::Status On(const BeginStep& event);
  absl::Status On(const Arrived& event);
  absl::Status On(const KvArrived& event);
  absl::Status On(const UnitsChosen& event);
  absl::Status On(const UnitsReady& event);
  absl::Status On(const HostAnswered& event);
  absl::Status On(const Loaded& event);
  absl::Status On(const Computed& event);
  absl::Status On(const Change& event);
  absl::Status On(const RoomMade& event);

  void Advance(double now_ms, std::vector<Action>& actions);
  void NoteWaited(const Instruction& instruction, double now_ms, size_t before, std::vector<Action>& actions);
  const Instruction& Current() const { return OfStep().programs[steps_.front()]->step[at_]; }
  void TryLoad(std::vector<Action>& actions);
  bool ConsumeArrival(std::pair<int32_t, int32_t> key);

  // Each returns true if the instruction is done, false if it waits or computes.
  bool Do(const Recv& recv, std::vector<Action>& actions);
  bool Do(const AwaitWeights& await, std::vector<Action>& actions);
  bool Do(const AskKv& ask, std::vector<Action>& actions);
  bool Do(const AwaitKv& await, std::vector<Action>& actions);
  bool Do(const AskUnits& ask, std::vector<Action>& actions);
  bool Do(const ComputeUnits& compute, std::vector<Action>& actions);
  bool Do(const AskHost& ask, std::vector<Action>& actions);
  bool Do(const AwaitHost& await, std::vector<Action>& actions);
  bool Do(const Compute& compute, std::vector<Action>& actions);
  bool Do(const Evict& evict, std::vector<Action>& actions);
  bool Do(const Send& send, std::vector<Action>& actions);

  absl::Status CountArrival(std::pair<int32_t, int32_t> key);

  // Steps with one residency. A change has three generations: before, the step at the border,
  // after.
  struct Generation {
    std::vector<const Program*> programs;
    int64_t first_step = 0;
    int64_t first_load = 0;

    const std::vector<Prefetch>& loads() const { return programs.front()->loads; }
    int64_t num_loads() const { return static_cast<int64_t>(loads().size()); }
  };
  static Generation MakeGeneration(std::vector<const Program*> programs, int64_t first_step, int64_t first_load);
  const Generation& OfStep() const;  // of the running or the next step
  const Generation& OfNextLoad() const;
  bool MayBegin(const Prefetch& load) const;
  int64_t BorderStep() const;
  void NoteBorder(std::vector<Action>& actions);
  void EndStep(std::vector<Action>& actions);

  std::deque<Generation> generations_;
  const int64_t loads_limit_;
  const int loads_under_way_;
  std::vector<int32_t> steps_;  // Programs of the steps begun; the first is running
  int64_t step_ = 0;            // number of that step
  size_t at_ = 0;               // index of its next instruction
  bool computing_ = false;
  double waiting_since_ms_ = -1;  // negative: does not wait
  Arrivals arrivals_;
  std::optional<AskKv> asked_;  // and not awaited yet
  bool answered_ = false;
  // Units that were asked for and are not all computed yet.
  struct Units {
    AskUnits asked;
    int32_t chosen = -1;  // not known yet
    int32_t ready = 0;
    int32_t computed = 0;
  };
  std::optional<Units> units_;
  struct AskedHost {
    AskHost asked;
    bool answered = false;
  };
  std::vector<AskedHost> hosts_;  // asked and not awaited yet
  int64_t loads_begun_ = 0, loads_ended_ = 0, evicted_ = 0;
  Bytes in_ring_ = 0;
  bool border_noted_ = false, room_made_ = false;  // of the current change
};

// Converts to a time span; the device is not set.
TimelineSpan SpanOf(const ProgramRunner::Waited& waited);

}  // namespace lime
