#include "tests/planner/program_text.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/plan/instance/instance.h"
#include "planner/plan/plan.h"

namespace lime {
namespace {

constexpr int64_t kMaxInstructions = int64_t{1} << 23;

template <typename... What>
absl::Status WrongProgram(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat("program: ", what...));
}

absl::Status CheckProgramInt(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return WrongProgram(field, " = ", value, " is outside ", low, " to ", high);
}

// Loads [i + 1 - loads_in_ring, i], cyclically, in the ring together.
absl::Status CheckWindows(const Program& program) {
  const int64_t q = static_cast<int64_t>(program.loads.size());
  std::vector<Bytes> before(2 * q + 1, 0);
  for (int64_t i = 0; i < 2 * q; ++i) before[i + 1] = before[i] + program.loads[i % q].ring_bytes();
  for (int64_t i = 0; i < q; ++i) {
    const int64_t loads_in_ring = program.loads[i].loads_in_ring;
    const Bytes bytes = loads_in_ring / q * before[q] + before[i + q + 1] - before[i + q + 1 - loads_in_ring % q];
    if (bytes > program.ring_bytes) {
      return WrongProgram("loads[", i, "] and the ", loads_in_ring - 1, " before it take ", bytes, " bytes together, and the ring has ",
                          program.ring_bytes);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLoads(const Program& program) {
  LIME_RETURN_IF_ERROR(CheckProgramInt("ring_bytes", program.ring_bytes, 0, kMaxProgramBytes));
  LIME_RETURN_IF_ERROR(CheckProgramInt("loads", static_cast<int64_t>(program.loads.size()), 0, kMaxInstructions));
  const int64_t most = 4 * static_cast<int64_t>(program.loads.size()) + 4;
  for (size_t i = 0; i < program.loads.size(); ++i) {
    const Prefetch& load = program.loads[i];
    const std::string name = absl::StrCat("loads[", i, "]");
    LIME_RETURN_IF_ERROR(CheckProgramInt(name + ".part", load.part, 0, kMaxPlanBlocks - 1));
    LIME_RETURN_IF_ERROR(CheckProgramInt(name + ".bytes", load.bytes, 0, load.becomes_resident ? kMaxProgramBytes : program.ring_bytes));
    LIME_RETURN_IF_ERROR(CheckProgramInt(name + ".loads_in_ring", load.loads_in_ring, 1, most));
  }
  return program.loads.empty() ? absl::OkStatus() : CheckWindows(program);
}

// Goes through a step as its interpreter will.
class Walk {
 public:
  explicit Walk(const Program& program) : program_(program) {
    for (const Prefetch& load : program.loads) in_ring_.emplace(load.part, 0);
  }

  absl::Status Run() {
    for (at_ = 0; at_ < program_.step.size(); ++at_) {
      LIME_RETURN_IF_ERROR(std::visit([this](const auto& instruction) { return Check(instruction); }, program_.step[at_]));
    }
    const int64_t loads = static_cast<int64_t>(program_.loads.size());
    if (asked_) return WrongProgram("a step asks for KV and does not await it");
    if (units_) return WrongProgram("a step asks for units and does not compute them");
    if (!hosts_.empty()) return WrongProgram("a step asks the host of part ", hosts_.begin()->first, " and does not await it");
    if (awaited_ == loads && evicted_ == loads) return absl::OkStatus();
    return WrongProgram("a step awaits ", awaited_, " and evicts ", evicted_, " of its ", loads, " loads");
  }

 private:
  std::string Name(const char* field) const { return absl::StrCat("step[", at_, "].", field); }

  absl::Status CheckPlace(int32_t stage, int32_t microbatch) const {
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("stage"), stage, 0, program_.num_stages - 1));
    return CheckProgramInt(Name("microbatch"), microbatch, 0, program_.microbatches - 1);
  }

  absl::Status Check(const Recv& recv) const {
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("from"), recv.from, 0, kMaxPlanDevices - 1));
    return CheckPlace(recv.stage, recv.microbatch);
  }
  absl::Status Check(const Send& send) const {
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("to"), send.to, 0, kMaxPlanDevices - 1));
    return CheckPlace(send.stage, send.microbatch);
  }
  absl::Status Check(const AskKv& ask) {
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("to"), ask.to, 0, kMaxPlanDevices - 1));
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("part"), ask.part, 0, kMaxPlanBlocks - 1));
    if (asked_) return WrongProgram("step[", at_, "] asks for KV where part ", asked_->part, " is asked for and not awaited");
    asked_ = AwaitKv{ask.stage, ask.microbatch, ask.part, ask.to};
    return CheckPlace(ask.stage, ask.microbatch);
  }
  absl::Status Check(const AwaitKv& await) {
    if (asked_ != await) return WrongProgram("step[", at_, "] awaits KV of part ", await.part, ", which was not asked for");
    asked_.reset();
    return absl::OkStatus();
  }

  absl::Status Check(const AskUnits& ask) {
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("part"), ask.part, 0, kMaxPlanBlocks - 1));
    if (units_) return WrongProgram("step[", at_, "] asks for units where those of part ", units_->part, " are asked for and not computed");
    units_ = ask;
    return CheckPlace(ask.stage, ask.microbatch);
  }
  absl::Status Check(const ComputeUnits& compute) {
    if (units_ != AskUnits{compute.stage, compute.microbatch, compute.part})
      return WrongProgram("step[", at_, "] computes units of part ", compute.part, ", which were not asked for");
    units_.reset();
    return CheckProgramInt(Name("rows"), compute.rows, 1, kMaxProgramBytes);
  }

  absl::Status Check(const AskHost& ask) {
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("to"), ask.to, 0, kMaxPlanDevices - 1));
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("part"), ask.part, 0, kMaxPlanBlocks - 1));
    if (!hosts_.emplace(ask.part, AwaitHost{ask.stage, ask.microbatch, ask.part, ask.to}).second)
      return WrongProgram("step[", at_, "] asks the host of part ", ask.part, ", which is asked and not awaited");
    return CheckPlace(ask.stage, ask.microbatch);
  }
  absl::Status Check(const AwaitHost& await) {
    const auto asked = hosts_.find(await.part);
    if (asked == hosts_.end() || !(asked->second == await))
      return WrongProgram("step[", at_, "] awaits the host of part ", await.part, ", which was not asked");
    hosts_.erase(asked);
    return absl::OkStatus();
  }

  absl::Status Check(const AwaitWeights& await) {
    if (await.load != awaited_ || await.load >= static_cast<int64_t>(program_.loads.size())) {
      return WrongProgram("step[", at_, "] awaits load ", await.load, " where ", awaited_, " is next of ", program_.loads.size());
    }
    const Prefetch& load = program_.loads[await.load];
    if (await.load - load.loads_in_ring >= evicted_) {
      return WrongProgram("step[", at_, "] awaits load ", await.load, ", which begins when load ", await.load - load.loads_in_ring,
                          " is evicted, and that is later");
    }
    ++awaited_;
    ++in_ring_[load.part];
    return absl::OkStatus();
  }
  absl::Status Check(const Evict& evict) {
    if (evict.load != evicted_ || evicted_ >= awaited_) {
      return WrongProgram("step[", at_, "] evicts load ", evict.load, " where ", evicted_, " is next and ", awaited_, " were awaited");
    }
    ++evicted_;
    --in_ring_[program_.loads[evict.load].part];
    return absl::OkStatus();
  }
  absl::Status Check(const Compute& compute) const {
    LIME_RETURN_IF_ERROR(CheckPlace(compute.stage, compute.microbatch));
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("part"), compute.part, kEmbeddingPart, kMaxPlanBlocks - 1));
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("rows"), compute.rows, 1, kMaxProgramBytes));
    LIME_RETURN_IF_ERROR(CheckProgramInt(Name("logit_rows"), compute.logit_rows, 0, compute.rows));
    const auto streamed = in_ring_.find(compute.part);
    if (streamed == in_ring_.end() || streamed->second > 0) return absl::OkStatus();
    return WrongProgram("step[", at_, "] computes part ", compute.part, ", which streams and is not in the ring then");
  }

  const Program& program_;
  size_t at_ = 0;
  int64_t awaited_ = 0, evicted_ = 0;
  std::optional<AwaitKv> asked_;
  std::optional<AskUnits> units_;
  std::map<int32_t, AwaitHost> hosts_;  // by part, asked and not awaited
  std::map<int32_t, int32_t> in_ring_;  // of every part that streams, loads awaited and not evicted
};

// Instructions for people.
class InstructionText {
 public:
  explicit InstructionText(const Plan* plan) : plan_(plan) {}

  // Parts [lo, hi) of one block.
  std::string Parts(int32_t lo, int32_t hi) const {
    if (lo == kEmbeddingPart) return "embedding";
    return plan_ != nullptr && hi <= plan_->NumParts() ? PartsName(*plan_, lo, hi) : absl::StrCat("part ", lo);
  }
  bool SameBlock(int32_t part, int32_t other) const {
    return plan_ != nullptr && part >= 0 && other < plan_->NumParts() && plan_->parts[part].block == plan_->parts[other].block;
  }
  std::string Device(int32_t device) const {
    return plan_ != nullptr && device < plan_->NumDevices() ? plan_->devices[device].name : absl::StrCat("device ", device);
  }

  std::string operator()(const Recv& i) const { return absl::StrCat(Visit(i), PayloadName(i.payload), " from ", Device(i.from)); }
  std::string operator()(const Send& i) const { return absl::StrCat(Visit(i), PayloadName(i.payload), " to ", Device(i.to)); }
  std::string operator()(const AwaitWeights& i) const { return absl::StrCat("load ", i.load); }
  std::string operator()(const Evict& i) const { return absl::StrCat("load ", i.load); }
  std::string operator()(const AskKv& i) const { return absl::StrCat(Visit(i), Parts(i.part, i.part + 1), " of ", Device(i.to)); }
  std::string operator()(const AwaitKv& i) const { return absl::StrCat(Visit(i), Parts(i.part, i.part + 1), " from ", Device(i.from)); }
  std::string operator()(const AskUnits& i) const { return absl::StrCat(Visit(i), "units of ", Parts(i.part, i.part + 1)); }
  std::string operator()(const ComputeUnits& i) const {
    return absl::StrCat(Visit(i), "units of ", Parts(i.part, i.part + 1), ", ", i.rows, i.rows == 1 ? " row" : " rows");
  }
  std::string operator()(const AskHost& i) const {
    return absl::StrCat(Visit(i), "units of ", Parts(i.part, i.part + 1), " of ", Device(i.to));
  }
  std::string operator()(const AwaitHost& i) const {
    return absl::StrCat(Visit(i), "units of ", Parts(i.part, i.part + 1), " from ", Device(i.from));
  }
  std::string operator()(const Compute& i) const { return Computed(i, i.part + 1); }

  // Parts from i's to `end`.
  std::string Computed(const Compute& i, int32_t end) const {
    const std::string logits = i.logit_rows > 0 ? absl::StrCat(", logits of ", i.logit_rows) : "";
    return absl::StrCat(Visit(i), Parts(i.part, end), ", ", i.rows, i.rows == 1 ? " row" : " rows", logits);
  }

 private:
  template <typename T>
  std::string Visit(const T& i) const {
    return absl::StrCat("stage ", i.stage, " micro-batch ", i.microbatch, ": ");
  }
  const Plan* plan_;
};

// Whether an instruction goes on with the next part, and differs in nothing else.
bool ComputesNext(Compute before, const Instruction& instruction) {
  const auto* const compute = std::get_if<Compute>(&instruction);
  ++before.part;
  return compute != nullptr && *compute == before;
}

}  // namespace

absl::Status CheckProgram(const Program& program) {
  LIME_RETURN_IF_ERROR(CheckProgramInt("device", program.device, 0, kMaxPlanDevices - 1));
  LIME_RETURN_IF_ERROR(CheckProgramInt("num_stages", program.num_stages, 1, kMaxPlanBlocks));
  LIME_RETURN_IF_ERROR(CheckProgramInt("microbatches", program.microbatches, 1, kMaxMicrobatches));
  LIME_RETURN_IF_ERROR(CheckProgramInt("step", std::ssize(program.step), 0, kMaxInstructions));
  LIME_RETURN_IF_ERROR(CheckLoads(program));
  return Walk(program).Run();
}

const char* InstructionName(const Instruction& instruction) {
  static constexpr const char* kNames[] = {"recv",     "await_weights", "ask_kv",  "await_kv", "ask_units", "compute_units",
                                           "ask_host", "await_host",    "compute", "evict",    "send"};
  return kNames[instruction.index()];
}

const char* PayloadName(Payload payload) {
  switch (payload) {
    case Payload::kToken:
      return "token";
    case Payload::kHidden:
      return "hidden";
    case Payload::kHeadPartial:
      return "head_partial";
  }
  return "?";
}

std::string ProgramText(const Program& program, const Plan* plan) {
  const auto& [device, num_stages, microbatches, ring_bytes, step, loads] = program;
  const InstructionText words(plan);
  std::string text = absl::StrCat(words.Device(device), ", ring ", FormatBytes(ring_bytes), "\n");
  for (size_t i = 0; i < loads.size(); ++i) {
    absl::StrAppendFormat(&text, "  load %-3d %-18s %10s  when the load %d before it is evicted%s\n", i,
                          words.Parts(loads[i].part, loads[i].part + 1), FormatBytes(loads[i].bytes), loads[i].loads_in_ring,
                          loads[i].becomes_resident ? ", and stays" : "");
  }
  for (size_t at = 0; at < step.size(); ++at) {
    std::string line = std::visit(words, step[at]);
    if (const auto* const first = std::get_if<Compute>(&step[at])) {
      const Compute* last = first;
      while (at + 1 < step.size() && ComputesNext(*last, step[at + 1]) && words.SameBlock(last->part, last->part + 1)) {
        last = &std::get<Compute>(step[++at]);
      }
      line = words.Computed(*first, last->part + 1);
    }
    absl::StrAppendFormat(&text, "  %-13s %s\n", InstructionName(step[at]), line);
  }
  return text;
}

}  // namespace lime
