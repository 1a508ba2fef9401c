#include "planner/program/compile.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_residency.h"

namespace lime {
namespace {

absl::Status CheckShape(const Plan& plan, const StepShape& shape) {
  if (shape.microbatches < 1 || shape.microbatches > kMaxMicrobatches)
    return Invalid("compile: a step cannot have ", shape.microbatches, " micro-batches");
  if (int64_t{plan.NumParts()} * shape.microbatches > kMaxPlanRuns) {
    return Invalid("compile: ", plan.NumParts(), " parts x ", shape.microbatches, " micro-batches are more than ", kMaxPlanRuns);
  }
  if (shape.rows >= 1 && shape.last_rows >= 1 && shape.rows <= kMaxProgramBytes && shape.last_rows <= kMaxProgramBytes)
    return absl::OkStatus();
  return Invalid("compile: micro-batches cannot have ", shape.rows, " and ", shape.last_rows, " rows");
}

// Sets for each load how many loads, this one being the last, fit in the ring together: whole
// sweeps plus the longest remaining run, at most 4 q + 4. The Evaluator's rule, in bytes.
// REQUIRES: each load fits
void SetWindows(Bytes ring_bytes, std::vector<Prefetch>& loads) {
  const int64_t q = static_cast<int64_t>(loads.size());
  std::vector<Bytes> before(2 * q + 1, 0);
  for (int64_t i = 0; i < 2 * q; ++i) before[i + 1] = before[i] + loads[i % q].ring_bytes();
  const Bytes sweep = before[q];
  const int64_t sweeps = sweep > 0 ? std::min<int64_t>(5, ring_bytes / sweep) : 5;
  const Bytes rest = ring_bytes - sweeps * sweep;
  // Start of the remaining run in the doubled sequence; the run is shorter than a sweep.
  int64_t begin = 1;
  for (int64_t i = 0; i < q; ++i) {
    begin = std::max(begin, i + 1);
    while (begin <= i + q && before[i + q + 1] - before[begin] > rest) ++begin;
    loads[i].loads_in_ring = static_cast<int32_t>(std::min(sweeps * q + (i + q + 1 - begin), 4 * q + 4));
  }
}

class Compiler {
 public:
  // `keep`: by part, whether its load stays; empty: none does.
  Compiler(const Plan& plan, const StepShape& shape, std::vector<bool> becomes_resident = {})
      : plan_(plan), shape_(shape), together_(StaysTogether(plan, shape.microbatches)), becomes_resident_(std::move(becomes_resident)) {
    becomes_resident_.resize(plan.parts.size(), false);
    programs_.resize(plan.devices.size());
    for (int d = 0; d < plan.NumDevices(); ++d) {
      programs_[d] = {.device = d,
                      .num_stages = static_cast<int32_t>(plan.stages.size()),
                      .microbatches = shape.microbatches,
                      .ring_bytes = plan.devices[d].memory.ring};
    }
  }

  absl::StatusOr<std::vector<Program>> Compile() {
    for (size_t j = 0; j < plan_.stages.size(); ++j) LIME_RETURN_IF_ERROR(AddLoads(static_cast<int>(j)));
    for (Program& program : programs_) SetDeviceWindows(program);
    next_await_.resize(programs_.size()), next_evict_.resize(programs_.size());
    for (size_t j = 0; j < plan_.stages.size(); ++j) {
      for (int m = 0; m < shape_.microbatches; ++m) AddVisit(static_cast<int>(j), m);
    }
    return std::move(programs_);
  }

 private:
  bool decodes() const { return shape_.kind == StepShape::Kind::kDecode; }
  bool IsLoaded(int part) const { return plan_.parts[part].streamed || becomes_resident_[part]; }
  int32_t DeviceOf(int stage) const { return plan_.stages[stage].device; }
  int LastStage() const { return static_cast<int>(plan_.stages.size()) - 1; }
  int64_t RowsOf(int m) const { return m + 1 == shape_.microbatches ? shape_.last_rows : shape_.rows; }
  // Rows of a micro-batch whose next token is needed.
  int64_t LogitRows(int m) const {
    if (decodes()) return RowsOf(m);
    return shape_.ends_prompt && m + 1 == shape_.microbatches ? 1 : 0;
  }

  absl::Status AddLoads(int j) {
    const Stage& stage = plan_.stages[j];
    Program& program = programs_[stage.device];
    Bytes together = 0;
    for (int p = stage.lo; p < stage.hi; ++p) {
      if (!IsLoaded(p)) continue;
      program.loads.push_back({.part = p, .bytes = plan_.parts[p].bytes, .becomes_resident = becomes_resident_[p]});
      together += program.loads.back().ring_bytes();
    }
    if (!together_ || together <= program.ring_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat("compile: stage ", j, " streams ", together, " bytes, which ", shape_.microbatches,
                                                     " micro-batches share, but the ring of device \"", plan_.devices[stage.device].name,
                                                     "\" has ", program.ring_bytes,
                                                     "; plan fewer micro-batches in a step, or a larger ring"));
  }

  // Unless Plan::reads_once, each micro-batch repeats the same loads.
  void SetDeviceWindows(Program& program) const {
    if (program.loads.empty()) return;
    SetWindows(program.ring_bytes, program.loads);
    if (StaysTogether(plan_, shape_.microbatches)) return;
    const std::vector<Prefetch> once = program.loads;
    for (int m = 1; m < shape_.microbatches; ++m) program.loads.insert(program.loads.end(), once.begin(), once.end());
  }

  // Adds one micro-batch in one stage.
  void AddVisit(int j, int m) {
    const Stage& stage = plan_.stages[j];
    if (j > 0) {
      Add(stage.device, Recv{j, m, DeviceOf(j - 1), PayloadInto(plan_, j)});
    } else if (decodes()) {
      Add(stage.device, Recv{0, m, DeviceOf(LastStage()), Payload::kToken});
    }
    if (j == 0) Add(stage.device, Compute{0, m, kEmbeddingPart, RowsOf(m), 0});
    for (int p = stage.lo; p < stage.hi; ++p) AddPart(j, m, p);
    if (j < LastStage()) {
      Add(stage.device, Send{j, m, DeviceOf(j + 1), PayloadInto(plan_, j + 1)});
    } else if (LogitRows(m) > 0) {
      Add(stage.device, Send{j, m, DeviceOf(0), Payload::kToken});
    }
  }

  void AddPart(int j, int m, int p) {
    const int32_t d = DeviceOf(j);
    const PlanPart& part = plan_.parts[p];
    const bool first = !together_ || m == 0, last = !together_ || m + 1 == shape_.microbatches;
    if (WaitsForKv(plan_, p)) {
      Add(d, AskKv{j, m, p, plan_.devices[d].kv_host});
      Add(d, AwaitKv{j, m, p, plan_.devices[d].kv_host});
    }
    if (part.hosted()) {
      Add(d, AwaitHost{j, m, p, part.host});
      return Add(d, Compute{j, m, p, RowsOf(m), 0});
    }
    if (part.on_demand()) {
      for (int next = p + 1; next < plan_.NumParts() && plan_.parts[next].hosted(); ++next)
        Add(d, AskHost{j, m, next, plan_.parts[next].host});
      if (part.has_own_decider()) Add(d, Compute{j, m, p, RowsOf(m), 0});
      Add(d, AskUnits{j, m, p});
      return Add(d, ComputeUnits{j, m, p, RowsOf(m)});
    }
    if (IsLoaded(p) && first) Add(d, AwaitWeights{next_await_[d]++});
    Add(d, Compute{j, m, p, RowsOf(m), part.block.kind == BlockKind::kHead ? LogitRows(m) : 0});
    if (IsLoaded(p) && last) Add(d, Evict{next_evict_[d]++});
  }

  void Add(int32_t device, const Instruction& instruction) { programs_[device].step.push_back(instruction); }

  const Plan& plan_;
  const StepShape shape_;
  const bool together_;
  std::vector<bool> becomes_resident_;
  std::vector<Program> programs_;
  std::vector<int32_t> next_await_, next_evict_;  // by device, loads
};

}  // namespace

StepShape DecodeShape(const Plan& plan) {
  return {.kind = StepShape::Kind::kDecode,
          .microbatches = plan.microbatches,
          .rows = plan.batch,
          .last_rows = plan.sequences - (int64_t{plan.microbatches} - 1) * plan.batch};
}

std::vector<StepShape> PrefillShapes(const Plan& plan) {
  std::vector<StepShape> shapes;
  for (int64_t tokens = plan.prompt_tokens; tokens > 0;) {
    const int64_t chunks = std::min<int64_t>((tokens + plan.prefill_chunk - 1) / plan.prefill_chunk, plan.chunks_per_sweep);
    const int64_t here = std::min(tokens, chunks * plan.prefill_chunk);
    tokens -= here;
    shapes.push_back({.kind = StepShape::Kind::kPrefill,
                      .microbatches = static_cast<int32_t>(chunks),
                      .rows = plan.prefill_chunk,
                      .last_rows = here - (chunks - 1) * plan.prefill_chunk,
                      .ends_prompt = tokens == 0});
  }
  return shapes;
}

absl::StatusOr<std::vector<Program>> Compile(const Plan& plan, const StepShape& shape) {
  LIME_RETURN_IF_ERROR(plan.Validate());
  LIME_RETURN_IF_ERROR(CheckShape(plan, shape));
  return Compiler(plan, shape).Compile();
}

absl::StatusOr<std::vector<Program>> CompileChange(const Plan& before, const Plan& after, const StepShape& shape) {
  LIME_RETURN_IF_ERROR(before.Validate());
  LIME_RETURN_IF_ERROR(after.Validate());
  LIME_RETURN_IF_ERROR(CheckShape(after, shape));
  if (!after.reads_once) return Invalid("compile: residency can change only if a step reads every part once");
  if (!DifferInResidencyOnly(before, after)) return Invalid("compile: the plans differ in more than residency");
  std::vector<bool> becomes_resident(after.parts.size());
  for (int p = 0; p < after.NumParts(); ++p) becomes_resident[p] = before.parts[p].streamed && !after.parts[p].streamed;
  return Compiler(after, shape, std::move(becomes_resident)).Compile();
}

}  // namespace lime
