// Programs for people, and what holds of all that Compile makes.
#pragma once

#include <string>

#include "planner/base/status.h"
#include "planner/plan/plan.h"
#include "planner/plan/program.h"

namespace lime {

// "recv", "await_weights", "ask_kv", "await_kv", "compute", "evict", "send"; and of payloads
// "token", "hidden", "head_partial".
const char* InstructionName(const Instruction& instruction);
const char* PayloadName(Payload payload);

// One line per instruction, loads apart. Where the plan is given parts and devices have their
// names, and neighbouring parts of a block that are computed one after another are one line.
std::string ProgramText(const Program& program, const Plan* plan = nullptr);

// Names the first thing wrong: an index that is not there, loads awaited or evicted out of order or
// not once in a step, KV awaited that was not asked for, computing what is not awaited yet or
// evicted already, a window that overfills the ring or from which no load could ever begin.
absl::Status CheckProgram(const Program& program);

}  // namespace lime
