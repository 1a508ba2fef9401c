// The memory of the states: of every sequence slot, in every layer of this device that keeps a
// state, and the snapshots of each slot. Pre-faulted, and zero at first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "planner/plan/model/model_spec.h"

namespace lime::cpu {

// A state begins with the number of its positions (int64), in a cache line of its own. ModelSpec::
// StateBytes counts it.
inline constexpr Bytes kStateHeaderBytes = 64;

class StatePool {
 public:
  // Throws std::bad_alloc.
  StatePool(const ModelSpec& spec, const BackendOptions& options);

  // Backend::State.
  std::span<std::byte> state(int32_t sequence, int64_t layer) const { return At(sequence, 0, layer); }
  // Backend::Snapshot.
  std::span<std::byte> snapshot(int32_t sequence, int32_t snapshot, int64_t layer) const;
  std::shared_ptr<const std::byte> Share() const { return memory_; }
  Bytes bytes() const { return sequences_ * (1 + snapshots_) * slot_bytes_; }

 private:
  struct Place {
    Bytes offset = 0;  // in a slot
    Bytes bytes = 0;   // 0: the layer has no state here
  };

  // `copy`: 0 is the state, the others are its snapshots.
  std::span<std::byte> At(int32_t sequence, int64_t copy, int64_t layer) const;

  const int64_t sequences_, snapshots_;
  std::vector<Place> places_;          // by layer
  Bytes slot_bytes_ = 0;               // of one sequence, once
  std::shared_ptr<std::byte> memory_;  // [sequence slots, 1 + snapshots, slot_bytes_]
};

}  // namespace lime::cpu
