// Programs as text for people, and a check that every result of Compile must pass.
#pragma once

#include <string>

#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"

namespace lime {

// "recv", "await_weights", "ask_kv", "await_kv", "ask_units", "compute_units", "compute", "evict", "send"; and for payloads
// "token", "hidden", "head_partial".
const char* InstructionName(const Instruction& instruction);
const char* PayloadName(Payload payload);

// One line per instruction, then the loads. With a `plan`, parts and devices have their names, and
// neighbouring parts of a block that are computed one after another share a line.
std::string ProgramText(const Program& program, const Plan* plan = nullptr);

// Names the first fault: a wrong index; a load that is awaited or evicted out of order, or not
// exactly once in a step; KV that is awaited but was not asked for; a part that is computed before
// its load is awaited or after its eviction; a window that overfills the ring, or in which no load
// could ever begin.
absl::Status CheckProgram(const Program& program);

}  // namespace lime
