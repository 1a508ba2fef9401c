// Programs as JSON: an instruction is an object of its `op` and its numbers.

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "planner/base/json_fields.h"
#include "planner/base/json_text.h"
#include "planner/plan/instance.h"
#include "planner/plan/program.h"

namespace lime {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

int32_t Index(JsonFields& fields, const char* key) {
  return static_cast<int32_t>(fields.Int(key, -1, kMaxInstructions));
}
int64_t Count(JsonFields& fields, const char* key) {
  return fields.Int(key, 0, kMaxProgramBytes);
}

std::optional<Payload> ParsePayload(const std::string& name) {
  for (const Payload payload : {Payload::kToken, Payload::kHidden, Payload::kHeadPartial}) {
    if (name == PayloadName(payload)) return payload;
  }
  return std::nullopt;
}

// Braces evaluate in order, so that the first wrong field is the one named.
absl::StatusOr<Instruction> ReadInstruction(JsonFields& f, const std::string& where) {
  const std::string op = f.String("op");
  LIME_RETURN_IF_ERROR(f.status());
  if (op == "await_weights") return AwaitWeights{Index(f, "load")};
  if (op == "evict") return Evict{Index(f, "load")};
  if (op == "ask_kv") return AskKv{Index(f, "stage"), Index(f, "microbatch"), Index(f, "part"), Index(f, "to")};
  if (op == "await_kv") return AwaitKv{Index(f, "stage"), Index(f, "microbatch"), Index(f, "part"), Index(f, "from")};
  if (op == "compute") {
    return Compute{Index(f, "stage"), Index(f, "microbatch"), Index(f, "part"), Count(f, "rows"),
                   f.IntOr("logit_rows", 0, 0, kMaxProgramBytes)};
  }
  if (op != "recv" && op != "send") return Invalid(where, ": field \"op\" is no instruction");
  const std::optional<Payload> payload = ParsePayload(f.String("payload"));
  LIME_RETURN_IF_ERROR(f.status());
  if (!payload) return Invalid(where, ": field \"payload\" is none of token, hidden and head_partial");
  if (op == "recv") return Recv{Index(f, "stage"), Index(f, "microbatch"), Index(f, "from"), *payload};
  return Send{Index(f, "stage"), Index(f, "microbatch"), Index(f, "to"), *payload};
}

absl::StatusOr<Prefetch> ReadPrefetch(JsonFields& fields, const std::string&) {
  return Prefetch{Index(fields, "part"), Count(fields, "bytes"), Index(fields, "window"), fields.BoolOr("keep", false)};
}

ordered_json Numbers(const Recv& i) {
  return {{"stage", i.stage}, {"microbatch", i.microbatch}, {"from", i.from}, {"payload", PayloadName(i.payload)}};
}
ordered_json Numbers(const AwaitWeights& i) {
  return {{"load", i.load}};
}
ordered_json Numbers(const AskKv& i) {
  return {{"stage", i.stage}, {"microbatch", i.microbatch}, {"part", i.part}, {"to", i.to}};
}
ordered_json Numbers(const AwaitKv& i) {
  return {{"stage", i.stage}, {"microbatch", i.microbatch}, {"part", i.part}, {"from", i.from}};
}
ordered_json Numbers(const Compute& i) {
  ordered_json out = {{"stage", i.stage}, {"microbatch", i.microbatch}, {"part", i.part}, {"rows", i.rows}};
  if (i.logit_rows > 0) out["logit_rows"] = i.logit_rows;
  return out;
}
ordered_json Numbers(const Evict& i) {
  return {{"load", i.load}};
}
ordered_json Numbers(const Send& i) {
  return {{"stage", i.stage}, {"microbatch", i.microbatch}, {"to", i.to}, {"payload", PayloadName(i.payload)}};
}

}  // namespace

absl::StatusOr<Program> ParseProgram(std::string_view text, std::string_view name) {
  const std::string where(name);
  LIME_ASSIGN_OR_RETURN(const json root, ParseJsonObject(text, where));
  JsonFields fields(root, where);
  Program program;
  program.device = static_cast<int32_t>(fields.Int("device", 0, kMaxPlanDevices));
  program.num_stages = static_cast<int32_t>(fields.Int("num_stages", 1, kMaxPlanBlocks));
  program.microbatches = static_cast<int32_t>(fields.Int("microbatches", 1, kMaxMicrobatches));
  program.ring_bytes = fields.IntOr("ring_bytes", 0, 0, kMaxProgramBytes);
  LIME_ASSIGN_OR_RETURN(program.loads, ReadObjects<Prefetch>(fields, "loads", kMaxInstructions, where, ReadPrefetch));
  LIME_ASSIGN_OR_RETURN(program.step, ReadObjects<Instruction>(fields, "step", kMaxInstructions, where, ReadInstruction));
  const absl::Status valid = program.Validate();
  if (!valid.ok()) return Invalid(where, absl::StrCat(": ", valid.message()));
  return program;
}

std::string ToJsonText(const Program& program) {
  ordered_json out = {{"device", program.device},         {"num_stages", program.num_stages}, {"microbatches", program.microbatches},
                      {"ring_bytes", program.ring_bytes}, {"loads", ordered_json::array()},   {"step", ordered_json::array()}};
  for (const Prefetch& load : program.loads) {
    ordered_json object = {{"part", load.part}, {"bytes", load.bytes}, {"window", load.window}};
    if (load.keep) object["keep"] = true;
    out["loads"].push_back(std::move(object));
  }
  for (const Instruction& instruction : program.step) {
    ordered_json object = {{"op", InstructionName(instruction)}};
    object.update(std::visit([](const auto& typed) { return Numbers(typed); }, instruction));
    out["step"].push_back(std::move(object));
  }
  return out.dump();
}

}  // namespace lime
