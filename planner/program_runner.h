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
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <utility>
#include <variant>
#include <vector>

#include "planner/base/status.h"
#include "planner/plan/program.h"

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
  struct KvArrived {
    int32_t layer = 0;
  };
  // The load under way has ended; of several, the oldest.
  struct Loaded {
    int64_t load = 0;
  };
  // The Compute under way has ended.
  struct Computed {};
  using Event = std::variant<BeginStep, Arrived, KvArrived, Loaded, Computed>;

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
  struct StartSendKv {
    int64_t step = 0;
    SendKv what;
  };
  // The computation stood still for something. Not reported between steps.
  struct Waited {
    int64_t step = 0;
    Instruction what;  // Recv, AwaitWeights or AwaitKv
    double begin_ms = 0;
    double end_ms = 0;
  };
  // The last instruction of a step was carried out.
  struct StepEnded {
    int64_t step = 0;
  };
  using Action = std::variant<StartCompute, StartLoad, Release, StartSend, StartSendKv, Waited, StepEnded>;

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
  int64_t steps_ended() const { return step_; }
  int64_t loads_ended() const { return loads_ended_; }

 private:
  // What has come of one kind, by (stage, micro-batch) or (layer, -1), less what was taken.
  using Arrivals = std::map<std::pair<int32_t, int32_t>, int64_t>;

  absl::Status On(const BeginStep& event);
  absl::Status On(const Arrived& event);
  absl::Status On(const KvArrived& event);
  absl::Status On(const Loaded& event);
  absl::Status On(const Computed& event);

  void Advance(double now_ms, std::vector<Action>& actions);
  void TryLoad(std::vector<Action>& actions);
  bool TakeArrival(std::pair<int32_t, int32_t> key);

  // True: done, on to the next instruction.
  bool Do(const Recv& recv, std::vector<Action>& actions);
  bool Do(const AwaitWeights& await, std::vector<Action>& actions);
  bool Do(const AwaitKv& await, std::vector<Action>& actions);
  bool Do(const Compute& compute, std::vector<Action>& actions);
  bool Do(const Evict& evict, std::vector<Action>& actions);
  bool Do(const Send& send, std::vector<Action>& actions);
  bool Do(const SendKv& send, std::vector<Action>& actions);

  absl::Status CountArrival(std::pair<int32_t, int32_t> key);
  const std::vector<Prefetch>& loads() const { return programs_.front()->loads; }

  const std::vector<const Program*> programs_;
  const int64_t loads_limit_;
  const int loads_under_way_;
  std::deque<int32_t> steps_;  // begun; the first is the one under way
  int64_t step_ = 0;           // number of that
  size_t at_ = 0;              // in its instructions
  bool computing_ = false;
  double waiting_since_ms_ = -1;  // negative where it does not wait
  Arrivals arrivals_;
  int64_t loads_begun_ = 0, loads_ended_ = 0, evicted_ = 0;
};

}  // namespace lime
