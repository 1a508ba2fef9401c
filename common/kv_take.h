// Where the KV of a plan lies when the next plan takes it over, and who reads what of it. Pure.
//
//   plan before                          plan after
//     owner: pages and its disk ──┬──►     owner: pages and its disk
//     host:  the first pieces   ──┴──►     host:  the first pieces
//
// A sequence's KV in a layer is in order: its first pieces of 256 positions may be with the host of the layer's owner, the rest is with the
// owner. Whoever has a part of it in the plan after reads the same pages, and in the same order, wherever they come from.
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

// Pages [first, end) of 16 positions of a sequence; `life` counts those that its slot has had (KvAway::life), where a host has them.
struct KvExtent {
  int32_t sequence = 0;  // slot
  int64_t first = 0, end = 0;
  int64_t life = 0;
  friend bool operator==(const KvExtent&, const KvExtent&) = default;
};

// The first pieces of a sequence, which the owner's host has.
struct KvLent {
  int32_t sequence = 0;
  int64_t pieces = 0;
  int64_t life = 0;
  friend bool operator==(const KvLent&, const KvLent&) = default;
};

// Who has KV of these layers.
struct KvHolder {
  std::string name, address;
  std::vector<int32_t> layers;  // ascending
  bool hosts = false;           // it has what the layers' owner has lent, else it is the owner
  std::vector<KvLent> lent;     // by the owner; of slots that go on
  friend bool operator==(const KvHolder&, const KvHolder&) = default;
};

// What it has of the pages that are wanted of sequences, one extent for each at most.
std::vector<KvExtent> HeldBy(const KvHolder& holder, std::span<const KvExtent> wanted);

// So many others read KV of a layer from a device.
struct KvGiven {
  int32_t layer = 0;
  bool hosts = false;  // of what it has as a host
  int64_t readers = 0;
  friend bool operator==(const KvGiven&, const KvGiven&) = default;
};

// Pages of one layer, as a device asks another one for them.
struct KvReadCall {
  int64_t epoch = 0;
  int32_t layer = 0;
  bool hosts = false;             // of what the device has as a host
  std::vector<KvExtent> extents;  // none: the reader needs nothing of it
  std::string numerics_id;        // of the kernels that go on with it
  Bytes page_bytes = 0;
  friend bool operator==(const KvReadCall&, const KvReadCall&) = default;
};

// What a device of a plan takes of the plan before, and gives of it.
struct KvTake {
  int64_t epoch = -1;  // of the plan before
  std::vector<KvSequence> sequences;
  std::vector<KvHolder> holders;  // of layers whose KV, or its first pieces, are the device's now; it may be one itself
  std::vector<KvGiven> given;
  friend bool operator==(const KvTake&, const KvTake&) = default;
};

// What every device of the plan before has lent, by name.
using KvLentBy = std::map<std::string, std::vector<KvLent>>;

// `addresses`: of all devices of the plan before, by name. Devices bear the same names in both plans.
KvTake MakeKvTake(const Plan& plan, int32_t device, const Plan& before, const std::vector<KvSequence>& sequences, const KvLentBy& lent,
                  const std::map<std::string, std::string>& addresses);

// The first pieces of each sequence that the device begins without: on its disk or with its host, as few as leave room for the others in
// memory. As many numbers as sequences, the same ones wherever this is asked. ResourceExhausted where all that may go is too little.
absl::StatusOr<std::vector<int64_t>> AwayAtFirst(const Plan& plan, int32_t device, std::span<const KvSequence> sequences);

}  // namespace lime
