// What one device of a pipeline does next: orders are carried out one after another, steps begin with their program, what comes from peers
// finds its place, loads end in order. Pure: events in, actions out. Threads, buffers, the backend and the clock are its driver's, which is
// StageEngine, or the simulated cluster (tests/sim).
//
//   orders, activations, tokens ──► StageInbox ─┐
//   loads, computations, answers ───────────────┼──► ProgramRunner ──► actions, carried out in order
//   steps, sequences ──► KvBook ◄───────────────┘
//
// The driver tells an event, carries out what that appends, and then orders one by one, as long as HasOrder says. So what an order does to
// memory (StageKv, StageResidency) is done before the next one is looked at.
//
// Thread: the driver's, under its lock. Its events of a step allocate nothing, but for what is early.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <variant>
#include <vector>

#include "common/activation.h"
#include "common/order.h"
#include "daemon/logic/kv_book.h"
#include "daemon/logic/stage_inbox.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"
#include "planner/program_runner.h"

namespace lime {

class StageLogic {
 public:
  static constexpr int kLoadsUnderWay = 2;  // the disk has the next load before the last one ends

  // ---- Actions beside the runner's own

  // A sequence has taken its slot. The order is valid until the next OnOrder.
  struct Admitted {
    const AdmitOrder* order = nullptr;
  };
  // A sequence has left its slot.
  struct Retired {
    int32_t sequence = 0;
  };
  // What is in memory is to change. The order is valid until the next OnOrder.
  struct ChangeResidency {
    const ResidencyOrder* order = nullptr;
  };
  // A step has begun here: so many computations.
  struct StepBegun {
    int32_t computes = 0;
  };
  // The device has stopped for good; the last action there is.
  struct Failed {
    absl::Status why;
  };
  // A StartSend of tokens to this device itself is done already, but for the coordinator, who is to hear of them.
  using Action = std::variant<ProgramRunner::StartCompute, ProgramRunner::StartLoad, ProgramRunner::Release, ProgramRunner::StartSend,
                              ProgramRunner::StartAskKv, ProgramRunner::Waited, ProgramRunner::StepEnded, ProgramRunner::Border, Admitted,
                              Retired, ChangeResidency, StepBegun, Failed>;
  using Actions = std::vector<Action>;

  // `programs`: of the plan as it is, by micro-batches, ascending. REQUIRES: `plan` is valid; it, `book` and the programs outlive this, the
  // programs as ProgramRunner says
  StageLogic(const Plan& plan, int32_t device, const StageInbox::Shape& shape, const std::vector<Program>& programs, KvBook& book);

  // ---- Events. Each appends what is to be done; where the device has stopped, nothing.

  // Loads begin. To be called once, before anything else.
  void Start(Actions& actions);

  // The next order. InvalidArgument, and nothing has changed, where its number is not the next one or it names what is not there.
  absl::Status OnOrder(const Order& order);
  // From a peer. InvalidArgument, and nothing has changed, for what does not belong to this plan and step; ResourceExhausted where too much
  // waits.
  absl::Status OnActivation(ActivationMessage activation, double now_ms, Actions& actions);
  // The computation under way has ended; what it has sampled where it was the plan's last.
  void OnComputed(std::span<const SampledToken> sampled, double now_ms, Actions& actions);
  // A load has ended; of several under way any.
  void OnLoaded(int64_t load, double now_ms, Actions& actions);
  // The answer to a StartAskKv.
  void OnKvArrived(int32_t part, int32_t microbatch, double now_ms, Actions& actions);
  // Other parts stream from a step on, as ProgramRunner::Change says. InvalidArgument while another change is not settled.
  absl::Status OnChange(const std::vector<Program>& entering, const std::vector<Program>& settled, double now_ms, Actions& actions);
  void OnRoomMade(double now_ms, Actions& actions);
  // Whatever the driver could not do.
  void Fail(const absl::Status& why, Actions& actions);
  // It stops, and nobody has to hear of it.
  void Stop(const absl::Status& why) { health_.Update(why); }

  // ---- Orders, one after another; those that change sequences between two steps

  // Orders may be carried out that waited: pages may be had.
  void MayTakeOrders() { may_take_orders_ = true; }
  // Whether there is one that may be.
  bool HasOrder() const { return may_take_orders_ && health_.ok() && inbox_.NextOrder() != nullptr && !inbox_.step_under_way(); }
  // What the driver knows of the device's memory.
  struct Memory {
    const std::vector<Program>& programs;  // of the steps that begin next, as many as there were
    bool must_begin = false;               // the next step waits for a change to begin
    bool pages_come = false;               // by a change, whatever the next step does
  };
  // Carries it out, or fails; appends nothing where it has to wait until orders may be carried out again.  REQUIRES: HasOrder()
  void NextOrder(const Memory& memory, double now_ms, Actions& actions);

  // ---- What it is doing

  StageInbox& inbox() { return inbox_; }
  const StageInbox& inbox() const { return inbox_; }
  const ProgramRunner& runner() const { return runner_; }
  const absl::Status& health() const { return health_; }  // not ok: stopped for good

 private:
  using Visit = StageInbox::Visit;

  bool IsFirst() const { return plan_.stages.front().device == device_; }
  bool HasPagesFor(const Order& order, const Memory& memory, Actions& actions);
  void Execute(const AdmitOrder& admit, const Memory& memory, double now_ms, Actions& actions);
  void Execute(const RetireOrder& retire, const Memory& memory, double now_ms, Actions& actions);
  void Execute(const ResidencyOrder& order, const Memory& memory, double now_ms, Actions& actions);
  void Execute(StepOrder& order, const Memory& memory, double now_ms, Actions& actions);
  void PostArrived(const Visit& visit, double now_ms, Actions& actions);
  void GiveTokens(double now_ms, Actions& actions);

  void Post(const ProgramRunner::Event& event, double now_ms, Actions& actions);
  void Follow(const std::vector<ProgramRunner::Action>& followed, double now_ms, Actions& actions);
  template <typename Typed>
  void On(const Typed& action, double now_ms, Actions& actions);

  const Plan& plan_;
  const int32_t device_;
  const bool pages_come_;  // as sequences go on; else all of one's at once
  KvBook& book_;
  StageInbox inbox_;
  ProgramRunner runner_;
  std::vector<std::vector<ProgramRunner::Action>> spare_;  // empty, with memory for those of an event
  std::span<const SampledToken> sampled_;                  // of the event at hand
  int64_t next_loaded_ = 0;
  std::set<int64_t> loaded_;  // that ended before an older one
  bool may_take_orders_ = false;
  absl::Status health_;
};

}  // namespace lime
