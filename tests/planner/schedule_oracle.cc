#include "tests/planner/schedule_oracle.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <queue>
#include <set>
#include <tuple>

namespace lime {
namespace {

// Some steps of so many micro-batches, fewer in the last.
struct Course {
  int steps, microbatches, last_microbatches;
  bool feeds_back;  // a micro-batch waits for its token of the step before

  int In(int step) const { return step + 1 == steps ? last_microbatches : microbatches; }
};

// Events at one time happen in the order in which they were announced.
class Clock {
 public:
  double now() const { return now_; }
  void After(double ms, std::function<void()> what) { events_.push({now_ + ms, count_++, std::move(what)}); }
  void Run() {
    while (!events_.empty()) {
      const Event next = events_.top();
      events_.pop();
      now_ = next.time;
      next.what();
    }
  }

 private:
  struct Event {
    double time;
    long order;
    std::function<void()> what;
    bool operator<(const Event& other) const { return std::tie(time, order) > std::tie(other.time, other.order); }
  };
  std::priority_queue<Event> events_;
  double now_ = 0;
  long count_ = 0;
};

// One block of one visit by one micro-batch; block -1: reading its rows of the embedding.
struct Job {
  int step, stage, microbatch, block;
  bool opens_stage, closes_stage, streamed;
};

// A device: what it computes next in a fixed order, a disk, a pool of bytes, a link.
struct Machine {
  std::deque<Job> jobs;  // all that it will ever compute, in order
  bool busy = false;
  std::deque<int> to_read;  // blocks its disk still has to read, in order
  bool reading = false;
  long reads_ahead = 0;  // reads begun whose block has not been released
  long reads_done = 0, reads_used = 0;
  long reads_per_step = 0;
  double held_mb = 0;
  double pool_mb = 0;
  double most_held_mb = 0;
  std::deque<std::tuple<int, int, int>> outbox;  // (step, stage, micro-batch) to send on
  bool sending = false;
};

class Simulation {
 public:
  Simulation(const Instance& instance, const StagePlan& plan, const std::vector<double>& pool_mb, const Course& course)
      : instance_(instance),
        plan_(plan),
        course_(course),
        streamed_(plan.streamed.begin(), plan.streamed.end()),
        machines_(instance.devices.size()) {
    for (size_t d = 0; d < machines_.size(); ++d) machines_[d].pool_mb = pool_mb[d];
    for (int step = 0; step < course.steps; ++step) {
      for (size_t j = 0; j < plan.stages.size(); ++j) Enlist(step, static_cast<int>(j));
    }
    for (int step = 0; step < (course.feeds_back ? 1 : course.steps); ++step) {
      for (int m = 0; m < course.In(step); ++m) arrived_.insert({step, 0, m});
    }
    step_end_.assign(course.steps, 0);
    for (int step = 0; step < course.steps; ++step) left_in_step_.push_back(course.In(step));
  }

  // When each step ends.
  const std::vector<double>& Run() {
    for (size_t d = 0; d < machines_.size(); ++d) Push(static_cast<int>(d));
    clock_.Run();
    return step_end_;
  }
  bool Complete() const {
    return std::all_of(left_in_step_.begin(), left_in_step_.end(), [](int left) { return left == 0; });
  }
  double most_held_mb(size_t d) const { return machines_[d].most_held_mb; }

 private:
  void Enlist(int step, int j) {
    const Stage& stage = plan_.stages[j];
    Machine& machine = machines_[stage.device];
    for (int m = 0; m < course_.In(step); ++m) {
      const bool rows = j == 0 && plan_.embedding_by_rows;
      if (rows) machine.jobs.push_back({step, j, m, -1, true, false, false});
      for (int b = stage.lo; b < stage.hi; ++b) {
        machine.jobs.push_back({step, j, m, b, b == stage.lo && !rows, b + 1 == stage.hi, streamed_.count(b) > 0});
      }
    }
    for (int b = stage.lo; b < stage.hi; ++b) {
      if (!streamed_.count(b)) continue;
      machine.to_read.push_back(b);
      if (step == 0) ++machine.reads_per_step;
    }
  }

  // Starts whatever can start on device d.
  void Push(int d) {
    StartRead(d);
    StartJob(d);
    StartSend(d);
  }

  void StartRead(int d) {
    Machine& machine = machines_[d];
    if (machine.reading || machine.to_read.empty()) return;
    const double mb = instance_.blocks[machine.to_read.front()].mb;
    if (machine.held_mb + mb > machine.pool_mb + 1e-6 || machine.reads_ahead >= 4 * machine.reads_per_step + 4) return;
    machine.to_read.pop_front();
    machine.reading = true;
    machine.held_mb += mb;
    machine.most_held_mb = std::max(machine.most_held_mb, machine.held_mb);
    ++machine.reads_ahead;
    clock_.After(mb / instance_.devices[d].disk_mb_per_ms + instance_.devices[d].disk_lat_ms, [this, d] {
      machines_[d].reading = false;
      ++machines_[d].reads_done;
      Push(d);
    });
  }

  void StartJob(int d) {
    Machine& machine = machines_[d];
    if (machine.busy || machine.jobs.empty()) return;
    const Job job = machine.jobs.front();
    if (job.opens_stage && !arrived_.count({job.step, job.stage, job.microbatch})) return;
    const bool first_use = job.streamed && job.microbatch == 0;
    if (first_use && machine.reads_done <= machine.reads_used) return;
    if (first_use) ++machine.reads_used;
    machine.jobs.pop_front();
    machine.busy = true;
    const double ms = job.block < 0 ? *instance_.devices[d].embed_rows_ms : instance_.devices[d].comp_ms[job.block];
    clock_.After(ms, [this, d, job] { Finished(d, job); });
  }

  void Finished(int d, const Job& job) {
    Machine& machine = machines_[d];
    machine.busy = false;
    if (job.streamed && job.microbatch + 1 == course_.In(job.step)) {
      machine.held_mb -= instance_.blocks[job.block].mb;
      --machine.reads_ahead;
    }
    if (job.closes_stage && job.stage + 1 < static_cast<int>(plan_.stages.size())) {
      machine.outbox.push_back({job.step, job.stage, job.microbatch});
    } else if (job.closes_stage) {
      StepDone(d, job);
    }
    Push(d);
  }

  void StepDone(int d, const Job& job) {
    if (--left_in_step_[job.step] == 0) step_end_[job.step] = clock_.now();
    if (!course_.feeds_back) return;
    const int first = plan_.stages.front().device;
    Deliver(first == d ? 0 : instance_.net.lat_ms, first, job.step + 1, 0, job.microbatch);
  }

  void StartSend(int d) {
    Machine& machine = machines_[d];
    if (machine.sending || machine.outbox.empty()) return;
    const auto [step, stage, microbatch] = machine.outbox.front();
    machine.outbox.pop_front();
    machine.sending = true;
    clock_.After(instance_.net.tx_ms, [this, d, step = step, stage = stage, microbatch = microbatch] {
      machines_[d].sending = false;
      Deliver(instance_.net.lat_ms, plan_.stages[stage + 1].device, step, stage + 1, microbatch);
      Push(d);
    });
  }

  void Deliver(double ms, int device, int step, int stage, int microbatch) {
    clock_.After(ms, [this, device, step, stage, microbatch] {
      arrived_.insert({step, stage, microbatch});
      Push(device);
    });
  }

  const Instance& instance_;
  const StagePlan& plan_;
  const Course course_;
  const std::set<int> streamed_;
  Clock clock_;
  std::vector<Machine> machines_;
  std::set<std::tuple<int, int, int>> arrived_;  // (step, stage, micro-batch)
  std::vector<double> step_end_;
  std::vector<int> left_in_step_;
};

}  // namespace

namespace {

// What stays and what is left for streaming; `all_at_once`: all that a stage streams is in the pool
// at once.
OracleAnswer MeasureMemory(const Instance& instance, const StagePlan& plan, bool all_at_once) {
  OracleAnswer answer;
  const auto streams = [&](int b) { return std::count(plan.streamed.begin(), plan.streamed.end(), b) > 0; };
  answer.feasible = true;
  for (int d = 0; d < instance.NumDevices(); ++d) {
    double used = plan.stages[0].device == d && !plan.embedding_by_rows ? instance.embed_mb : 0;
    for (const Stage& stage : plan.stages) {
      for (int b = stage.lo; b < stage.hi && stage.device == d; ++b) {
        used += instance.blocks[b].kv_mb;
        if (!streams(b)) used += instance.blocks[b].mb;
      }
    }
    answer.used_mb.push_back(used);
    answer.pool_mb.push_back(instance.devices[d].mem_mb - used);
    if (answer.pool_mb[d] < -1e-6) answer.feasible = false;
  }
  for (const Stage& stage : plan.stages) {
    double together = 0;
    for (int b = stage.lo; b < stage.hi; ++b) {
      if (!streams(b)) continue;
      const double mb = instance.blocks[b].mb;
      together = all_at_once ? together + mb : mb;
      if (together > answer.pool_mb[stage.device] + 1e-6) answer.feasible = false;
    }
  }
  return answer;
}

}  // namespace

OracleAnswer AskOracle(const Instance& instance, const StagePlan& plan) {
  OracleAnswer answer = MeasureMemory(instance, plan, instance.microbatches > 1);
  if (!answer.feasible) return answer;
  Simulation simulation(instance, plan, answer.pool_mb, {48, instance.microbatches, instance.microbatches, true});
  const std::vector<double>& ends = simulation.Run();
  answer.ms_per_step = (ends[47] - ends[15]) / 32;
  for (size_t d = 0; d < instance.devices.size(); ++d) answer.most_held_mb.push_back(simulation.most_held_mb(d));
  if (!simulation.Complete()) answer.ms_per_step = -1;  // a deadlock
  return answer;
}

double AskOraclePromptMs(const Instance& instance, const StagePlan& plan, int chunks, int per_sweep) {
  const OracleAnswer memory = MeasureMemory(instance, plan, per_sweep > 1);
  if (!memory.feasible) return std::numeric_limits<double>::infinity();
  const int sweeps = (chunks + per_sweep - 1) / per_sweep;
  Simulation simulation(instance, plan, memory.pool_mb, {sweeps, per_sweep, chunks - (sweeps - 1) * per_sweep, false});
  const double end = simulation.Run().back();
  return simulation.Complete() ? end : -1;
}

}  // namespace lime
