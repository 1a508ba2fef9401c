#include "coordinator/cli/residency_flags.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/command_line.h"
#include "coordinator/cli/command.h"
#include "daemon/engine/call_limits.h"
#include "daemon/engine/process_memory.h"
#include "planner/base/strings.h"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr int64_t kMaxPieces = 1024;  // more than that is meant as bytes

// "0.5" or "50%", 0 to 1.
absl::StatusOr<double> ParseShare(const std::string& said) {
  std::string text = said;
  const bool percent = !text.empty() && text.back() == '%';
  if (percent) text.pop_back();
  double value = 0;
  if (text.find_first_not_of("0123456789.+-eE") != std::string::npos || !absl::SimpleAtod(text, &value) || !std::isfinite(value))
    return WrongCall(absl::StrCat("--resident ", AsTyped(said), " is no share, such as 0.5 or 50%"));
  if (percent) value /= 100;
  if (value < 0 || value > 1) return WrongCall(absl::StrCat("--resident ", said, " is outside 0 to 1"));
  return value;
}

}  // namespace

absl::Status ResidencyFlags::Apply(Engine::Options& options) const {
  if (!memory.empty()) {
    const absl::StatusOr<Bytes> bytes = ParseBytes(memory);
    if (!bytes.ok()) return WrongCall(absl::StrCat("--memory: ", bytes.status().message()));
    if (*bytes < 1) return WrongCall(absl::StrCat("--memory ", memory, " is nothing; give a size such as 2GiB"));
    LIME_RETURN_IF_ERROR(OfUser(CheckBudget(absl::StrCat("--memory ", memory), *bytes)));
    options.memory = *bytes;
  }
  const absl::StatusOr<MemoryPriority> mode = ParseMemoryPriority(priority);
  if (!mode.ok()) return WrongCall(absl::StrCat("--memory-mode: ", mode.status().message()));
  options.priority = *mode;
  options.watch_pressure = true;
  const absl::StatusOr<Placement> parsed = ParsePlacement(placement);
  if (!parsed.ok()) return WrongCall(absl::StrCat("--placement: ", parsed.status().message()));
  options.placement = *parsed;
  if (!resident.empty()) {
    LIME_ASSIGN_OR_RETURN(options.resident_share, ParseShare(resident));
  }
  int64_t pieces = 0;
  if (pool.empty()) return absl::OkStatus();
  if (absl::SimpleAtoi(pool, &pieces) && pieces <= kMaxPieces) {
    if (pieces < 2) return WrongCall(absl::StrCat("--pool ", pool, " is too few; the ring holds two pieces at least"));
    options.ring_pieces = pieces;
    return absl::OkStatus();
  }
  const absl::StatusOr<Bytes> bytes = ParseBytes(pool);
  if (!bytes.ok()) return WrongCall(absl::StrCat("--pool: ", bytes.status().message()));
  options.ring = *bytes;
  return absl::OkStatus();
}

json ResidencyJson(Engine& engine) {
  const EngineMemory& memory = engine.memory();
  json root = {{"weights_bytes", memory.weights},        {"ring_bytes", memory.ring},       {"kv_bytes", memory.kv},
               {"activation_bytes", memory.activations}, {"runtime_bytes", memory.runtime}, {"margin_bytes", memory.margin}};
  const ResidencyPlan& plan = engine.residency();
  json streaming = {{"resident_blocks", std::ranges::count(plan.resident, true)},
                    {"blocks", plan.resident.size()},
                    {"streamed_bytes_per_step", plan.streamed_bytes}};
  if (!engine.budget_text().empty()) root["budget"] = engine.budget_text();
  if (Streamer* streamer = engine.streamer()) {
    streaming["resident_blocks"] = streamer->num_resident();
    streaming["streamed_bytes_per_step"] = streamer->StreamedBytes();
    const PieceLoader::Stats stats = streamer->stats();
    streaming["bytes_read"] = stats.bytes_read;
    streaming["disk_busy_ms"] = absl::ToDoubleMilliseconds(stats.busy);
    streaming["waited_ms"] = absl::ToDoubleMilliseconds(stats.waited);
    streaming["stalls"] = stats.stalls;
    streaming["shed_blocks"] = streamer->num_shed();
  }
  return {{"memory", root}, {"streaming", streaming}};
}

std::string MemoryText(Engine& engine) {
  const EngineMemory& memory = engine.memory();
  std::string text =
      absl::StrCat("memory peak ", FormatBytes(ProcessPeakResidentBytes()), ": weights ", FormatBytes(memory.weights), ", KV ",
                   FormatBytes(memory.kv), ", activations ", FormatBytes(memory.activations), ", runtime ", FormatBytes(memory.runtime));
  Streamer* const streamer = engine.streamer();
  if (streamer != nullptr) absl::StrAppend(&text, ", ring ", FormatBytes(memory.ring));
  if (!engine.budget_text().empty()) absl::StrAppend(&text, "\nbudget      ", engine.budget_text());
  if (streamer == nullptr) return text;
  const ResidencyPlan& plan = engine.residency();
  const PieceLoader::Stats stats = streamer->stats();
  const double rate = absl::ToDoubleSeconds(stats.busy) > 0 ? static_cast<double>(stats.bytes_read) / absl::ToDoubleSeconds(stats.busy) : 0;
  absl::StrAppend(&text, "\nstreamed    ", FormatBytes(streamer->StreamedBytes()), " a step, ", streamer->num_resident(), " of ",
                  plan.resident.size(), " blocks resident; disk ", FormatBytes(static_cast<Bytes>(rate)), "/s while busy (",
                  streamer->Describe(), "), waited ", absl::StrFormat("%.1f s", absl::ToDoubleSeconds(stats.waited)));
  return text;
}

}  // namespace lime::cli
