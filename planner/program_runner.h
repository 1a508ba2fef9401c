// Carries out the Programs of one device: events in, actions out. The daemon and the simulator run it alike.
//
// Pure: it never looks at a clock; `now_ms` comes from its owner and serves only to say how long something was waited for.
// Thread: the owner's.   Owner: the simulator, or a daemon's event loop.
//
// Two things go on side by side, and each is at one place at any time:
//   computation  the instructions of a step in order, then those of the next step that was begun; it stands at a Compute that is under way,
//                or at a Recv, AwaitWeights or AwaitKv that has to wait, or between two steps
//   disk         one load after another; load k begins when load k - 1 has ended and load k - window was evicted. A real disk is given the
//                next load before the last one has ended (loads_under_way), so that no gap opens between two
// What a peer sends too often or out of place is an error that changes nothing.
//
// What streams may change while it runs, and nothing waits for it: the steps of which a load has begun go on as they were, the next one is
// the border.
//
//   Change ──► steps before the border ──► Border: what leaves memory is used no more ──► the first step: what comes stays ──► settled
//                                             └─► RoomMade: its memory is free
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

  // Another step of `program` (index) follows those begun before.
  struct BeginStep {
    int32_t program = 0;
  };
  // A micro-batch for `stage` has come. Those of later steps may come early, in the order of the steps.
  struct Arrived {
    int32_t stage = 0;
    int32_t microbatch = 0;
  };
  // The answer to a StartAskKv.
  struct KvArrived {
    int32_t part = 0;
    int32_t microbatch = 0;
  };
  // The load under way has ended; of several, the oldest.
  struct Loaded {
    int64_t load = 0;
  };
  // The Compute under way has ended.
  struct Computed {};
  // Other parts stream: the border is the first step of which no load has begun and that has not begun itself. `entering` are the
  // Programs of that one step (CompileChange), `settled` those of all after it, as many as there were, with the same ring, or one where
  // there was none or none where nothing streams any more; they outlive this unchanged, or until the next Change is taken.
  // InvalidArgument while another change is not settled.
  struct Change {
    std::vector<const Program*> entering, settled;
  };
  // What is to stay has room in memory, and the ring is there: after a Border, or at once where nothing leaves.
  struct RoomMade {};
  using Event = std::variant<BeginStep, Arrived, KvArrived, Loaded, Computed, Change, RoomMade>;

  // ---- Actions, to be carried out in order. Steps and loads are counted from 0 over the life of the runner.

  struct StartCompute {
    int64_t step = 0;
    Compute what;
  };
  struct StartLoad {
    int64_t load = 0;
    Prefetch what;
  };
  // The room of a load is free. It comes before a StartLoad that uses it.
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
  // The computation stood still for something. Not reported between steps.
  struct Waited {
    int64_t step = 0;
    Instruction what;   // Recv, AwaitWeights or AwaitKv
    int32_t part = -1;  // that AwaitWeights waited for
    double begin_ms = 0;
    double end_ms = 0;
  };
  // The last instruction of a step was carried out.
  struct StepEnded {
    int64_t step = 0;
  };
  // The steps before the border have ended: nothing computes any more with what is resident and streams from `step` on.
  struct Border {
    int64_t step = 0;
  };
  using Action = std::variant<StartCompute, StartLoad, Release, StartSend, StartAskKv, Waited, StepEnded, Border>;

  // Steps begun and not ended, and messages of one kind that have come early, at most.
  static constexpr int64_t kMaxAhead = 1 << 16;

  // `programs`: what a step may be, of one device of one plan, with the same loads. `loads_limit`: no load from there on, for who knows how
  // many steps there will be; otherwise loads go on around the steps as far as there is room. `loads_under_way`: at most so many at a time;
  // they end in order all the same.
  // REQUIRES: at least one, each valid; they outlive this unchanged.
  explicit ProgramRunner(std::vector<const Program*> programs, int64_t loads_limit = INT64_MAX, int loads_under_way = 1);

  // Appends what is to be done now. To be called once with no event, by Start, before anything else.
  void Start(std::vector<Action>& actions) { TryLoad(actions); }
  // InvalidArgument for an event that cannot be: nothing has changed then.
  absl::Status OnEvent(const Event& event, double now_ms, std::vector<Action>& actions);

  // ---- What it is doing, for logs and tests

  bool computing() const { return computing_; }
  // The instruction it waits at; null where it computes or is between steps.
  const Instruction* waiting() const;
  // The part whose load it waits for; nothing where it waits for none.
  std::optional<int> awaited_part() const;
  // Since when; negative where it does not.
  double waiting_since_ms() const { return waiting_since_ms_; }
  int64_t steps_ended() const { return step_; }
  // No change is under way.
  bool settled() const { return generations_.size() == 1; }
  // The first step of the residency that is taken up.  REQUIRES: !settled()
  int64_t border() const { return generations_[1].first_step; }

 private:
  // What has come of one kind, by (stage, micro-batch), less what was taken.
  using Arrivals = std::map<std::pair<int32_t, int32_t>, int64_t>;

  absl::Status On(const BeginStep& event);
  absl::Status On(const Arrived& event);
  absl::Status On(const KvArrived& event);
  absl::Status On(const Loaded& event);
  absl::Status On(const Computed& event);
  absl::Status On(const Change& event);
  absl::Status On(const RoomMade& event);

  void Advance(double now_ms, std::vector<Action>& actions);
  void TryLoad(std::vector<Action>& actions);
  bool TakeArrival(std::pair<int32_t, int32_t> key);

  // True: done, on to the next instruction.
  bool Do(const Recv& recv, std::vector<Action>& actions);
  bool Do(const AwaitWeights& await, std::vector<Action>& actions);
  bool Do(const AskKv& ask, std::vector<Action>& actions);
  bool Do(const AwaitKv& await, std::vector<Action>& actions);
  bool Do(const Compute& compute, std::vector<Action>& actions);
  bool Do(const Evict& evict, std::vector<Action>& actions);
  bool Do(const Send& send, std::vector<Action>& actions);

  absl::Status CountArrival(std::pair<int32_t, int32_t> key);

  // Steps of one residency, and where their loads begin. Up to three follow one another: what was, the step at the border, what will be.
  struct Generation {
    std::vector<const Program*> programs;
    int64_t first_step = 0;
    int64_t first_load = 0;

    const std::vector<Prefetch>& loads() const { return programs.front()->loads; }
    int64_t num_loads() const { return static_cast<int64_t>(loads().size()); }
  };
  static Generation MakeGeneration(std::vector<const Program*> programs, int64_t first_step, int64_t first_load);
  const Generation& OfStep() const;  // of the one under way, or the next
  const Generation& OfNextLoad() const;
  bool MayBegin(const Prefetch& load) const;
  int64_t BorderStep() const;
  void NoteBorder(std::vector<Action>& actions);
  void EndStep(std::vector<Action>& actions);

  std::deque<Generation> generations_;
  const int64_t loads_limit_;
  const int loads_under_way_;
  std::vector<int32_t> steps_;  // begun; the first is the one under way
  int64_t step_ = 0;            // number of that
  size_t at_ = 0;               // in its instructions
  bool computing_ = false;
  double waiting_since_ms_ = -1;  // negative where it does not wait
  Arrivals arrivals_;
  std::optional<AskKv> asked_;  // and not awaited
  bool answered_ = false;
  int64_t loads_begun_ = 0, loads_ended_ = 0, evicted_ = 0;
  Bytes in_ring_ = 0;
  bool border_noted_ = false, room_made_ = false;  // of the change under way
};

// As a stretch of a timeline; the device is not filled in.
TimelineSpan SpanOf(const ProgramRunner::Waited& waited);

}  // namespace lime
