// KV of other devices' layers, which a host leaves for the next plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/kv_takeover_plan.h"
#include "daemon/logic/hosting/kv_host.h"
#include "daemon/machine/huge_buffer.h"
#include "planner/base/status.h"

namespace lime {

struct HostedHandover {
  std::vector<int32_t> layers;  // the other device's, ascending
  KvHost places;
  HugeBuffer memory;
};

// KV that this device keeps, as their host, for all other devices.
struct KvOfOthers {
  Bytes bytes() const;
  // Pages of one piece of a layer, in memory: a piece is contiguous, so they need no copy. NotFound
  // if no device has lent KV of the layer.
  absl::StatusOr<std::span<const std::byte>> Pages(int32_t layer, const KvExtent& of, int64_t first, int64_t count, Bytes page_bytes) const;

  std::vector<HostedHandover> all;
};

// Receives a run of pages of a sequence; `sequence` is its slot in the previous plan.
using KvPageSink = std::function<absl::Status(int32_t sequence, int64_t first, std::span<const std::byte> pages)>;
// Reads the wanted pages of a layer, wherever they are, and calls `sink`: pages of a sequence in
// order, each run within one piece. FailedPrecondition if the pages have another numerics_id.
using KvPageReader =
    std::function<absl::Status(int32_t layer, const std::string& numerics_id, std::span<const KvExtent> wanted, const KvPageSink& sink)>;

}  // namespace lime
