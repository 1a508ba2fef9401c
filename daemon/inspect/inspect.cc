#include "daemon/inspect/inspect.h"

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "daemon/formats/held_blocks.h"
#include "daemon/machine/files.h"
#include "daemon/machine/system_memory.h"
#include "daemon/weights/checkpoint.h"
#include "proto/certificate.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxModels = 256;  // of a store, at most

// The tightest limit of the control groups that this process is in; INT64_MAX: none.
Bytes GroupLimit() {
  Bytes limit = INT64_MAX;
  for (const MemoryGroup& group : MemoryGroups()) limit = std::min(limit, ReadGroupMemory(group).limit);
  return limit;
}

std::string Named(const absl::Status& status) {
  return std::string(status.message());
}

}  // namespace

Finding InspectMemory(Bytes budget, Bytes runtime) {
  const Bytes machine = MachineMemory(), available = AvailableMemory(), limit = GroupLimit();
  const std::string whole =
      absl::StrCat(FormatBytes(available), " of ", FormatBytes(machine), " free", limit < INT64_MAX ? " within its control group" : "");
  if (budget == 0) return {"memory", Grade::kOk, whole, ""};
  const std::string uses = absl::StrCat("limed may use ", FormatBytes(budget), ", and ");
  if (budget > machine)
    return {"memory", Grade::kFail,
            absl::StrCat(uses, limit < INT64_MAX ? "its control group allows " : "the machine has ", FormatBytes(machine)),
            absl::StrCat("start it with --memory of at most ", FormatBytes(machine), " (`memory` in the cluster's file)")};
  if (runtime > 0 && budget <= runtime)
    return {"memory", Grade::kFail, absl::StrCat(uses, "the process itself needs ", FormatBytes(runtime)),
            absl::StrCat("start it with --memory of more than ", FormatBytes(runtime))};
  if (budget > available + runtime)
    return {"memory", Grade::kWarn, absl::StrCat(uses, whole), "end other programs, or give it less memory"};
  return {"memory", Grade::kOk, absl::StrCat(uses, whole), ""};
}

Finding InspectWeights(const std::string& folder) {
  const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(folder);
  if (!checkpoint.ok())
    return {"weights", Grade::kFail, Named(checkpoint.status()), "correct `weights` of the device in the cluster's file"};
  Bytes bytes = 0;
  for (const CheckpointFile& file : checkpoint->files()) bytes += file.bytes;
  return {"weights", Grade::kOk, absl::StrCat(folder, ": ", FormatBytes(bytes), " in ", checkpoint->files().size(), " files"), ""};
}

Finding InspectStore(const std::string& folder) {
  std::error_code error;
  size_t models = 0, whole = 0, held = 0;
  for (fs::directory_iterator it(folder, error), end; !error && it != end && models < kMaxModels; it.increment(error)) {
    if (!FileExists((it->path() / kPushedManifestName).string())) continue;
    ++models;
    const absl::StatusOr<PushedManifest> pushed = ReadPushedManifest(it->path().string());
    if (!pushed.ok()) continue;
    held += pushed->held.held.size();
    whole += pushed->held.begun.empty() ? 1 : 0;
  }
  if (models == 0) return {"store", Grade::kOk, absl::StrCat(folder, ": nothing was pushed yet"), ""};
  const std::string what = absl::StrCat(folder, ": ", held, " blocks of ", models, models == 1 ? " model" : " models");
  if (whole == models) return {"store", Grade::kOk, what, ""};
  return {"store", Grade::kWarn, absl::StrCat(what, ", and a push is unfinished"), "run `lime push` again; it continues where it stopped"};
}

Finding InspectExpiry(const std::string& what, std::time_t until, std::time_t now, const std::string& renew) {
  if (until <= now) return {"keys", Grade::kFail, absl::StrCat(what, " expired on ", FormatClock(until)), renew};
  if (until - now < kExpiryNotice)
    return {"keys", Grade::kWarn, absl::StrCat(what, " expire in ", FormatSpan(until - now), ", on ", FormatClock(until)), renew};
  return {"keys", Grade::kOk, absl::StrCat(what, " are valid until ", FormatClock(until)), ""};
}

std::vector<Finding> InspectMachine(const InspectOptions& options) {
  std::vector<Finding> findings = {InspectMemory(options.memory, options.runtime)};
  if (!options.weights.empty()) {
    findings.push_back(InspectWeights(options.weights));
    findings.push_back(InspectDisk("disk of the weights", options.weights, false, options.seconds));
  }
  if (!options.store.empty()) {
    findings.push_back(InspectStore(options.store));
    findings.push_back(InspectDisk(kStoreDiskCheck, options.store, true, options.seconds));
  }
  if (!options.kv.empty() && options.kv != options.weights && options.kv != options.store)
    findings.push_back(InspectDisk("disk for KV", options.kv, true, 0));
  if (options.weights.empty() && options.store.empty())
    findings.push_back({"weights", Grade::kWarn, "the device has neither weights nor a store", "add `weights` or `store` to the device"});
  return findings;
}

}  // namespace lime
