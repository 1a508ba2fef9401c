// Says where the KV of a plan is when the next plan takes it over, and which devices read it. Pure.
//
//   plan before                          plan after
//     owner: pages and its disk ──┬──►     owner: pages and its disk
//     host:  the first pieces   ──┴──►     host:  the first pieces
//
// The KV of a sequence in a layer is ordered. Its first pieces of 256 positions may be on the host
// of the layer's owner; the owner has the rest. Each device that needs a range under the next plan
// reads the same pages in the same order, wherever they come from.
//
// A layer with a state has no KV. Its states and snapshots are read as pages, too: those of a slot
// follow one another, each in StatePages pages.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/order.h"
#include "planner/base/status.h"
#include "planner/plan/plan.h"

namespace lime {

inline constexpr int64_t kKvPiecePages = kKvPiece / kPageTokens;

// Pages [first, end) of 16 positions of a sequence. `life` is the number of sequences that its slot
// had before (KvAway::life); used if a host has the pages.
struct KvExtent {
  int32_t sequence = 0;  // slot
  int64_t first = 0, end = 0;
  int64_t life = 0;
  friend bool operator==(const KvExtent&, const KvExtent&) = default;
};

// The first pieces of a sequence, stored by the owner's host.
struct KvLent {
  int32_t sequence = 0;
  int64_t pieces = 0;
  int64_t life = 0;
  friend bool operator==(const KvLent&, const KvLent&) = default;
};

// A device with KV of these layers.
struct KvHolder {
  std::string name, address;
  std::vector<int32_t> layers;  // ascending
  bool hosts = false;           // it has pieces lent by the layers' owner; false: it is the owner
  std::vector<KvLent> lent;     // pieces lent by the owner, of slots that continue
  friend bool operator==(const KvHolder&, const KvHolder&) = default;
};

// The part of the wanted pages that this holder has; at most one extent per sequence.
std::vector<KvExtent> HeldBy(const KvHolder& holder, std::span<const KvExtent> wanted);

// The number of other devices that read KV of a layer from this device.
struct KvReaders {
  int32_t layer = 0;
  bool hosts = false;  // KV that it has as a host
  int64_t readers = 0;
  friend bool operator==(const KvReaders&, const KvReaders&) = default;
};

// A request to another device for pages of one layer.
struct KvReadCall {
  int64_t epoch = 0;
  int32_t layer = 0;
  bool hosts = false;             // KV that the device has as a host
  std::vector<KvExtent> extents;  // empty: the reader needs nothing
  std::string numerics_id;        // of the kernels that will use the KV
  Bytes page_bytes = 0;
  friend bool operator==(const KvReadCall&, const KvReadCall&) = default;
};

// The KV that a device takes over from the plan before, and the KV that other devices read from it.
struct KvTakeoverPlan {
  int64_t epoch = -1;  // of the plan before
  std::vector<KvSequence> sequences;
  // Holders of layers that now belong to this device, or of layers whose first pieces now do. This
  // device may be a holder itself.
  std::vector<KvHolder> holders;
  std::vector<KvReaders> kv_readers;
  friend bool operator==(const KvTakeoverPlan&, const KvTakeoverPlan&) = default;
};

// The pieces that every device of the plan before has lent, by its name.
using KvLentBy = std::map<std::string, std::vector<KvLent>>;

// `addresses` of all devices of the plan before, by name. Names are the same in both plans.
KvTakeoverPlan MakeKvTakeoverPlan(const Plan& plan, int32_t device, const Plan& before, const std::vector<KvSequence>& sequences,
                                  const KvLentBy& lent, const std::map<std::string, std::string>& addresses);

// For each sequence, the number of its first pieces that are on the disk or the host when the plan
// begins: the smallest number with which the other pieces fit in memory. Every caller gets the same
// numbers. ResourceExhausted if the pieces that may leave are not enough.
absl::StatusOr<std::vector<int64_t>> AwayAtFirst(const Plan& plan, int32_t device, std::span<const KvSequence> sequences);

}  // namespace lime
