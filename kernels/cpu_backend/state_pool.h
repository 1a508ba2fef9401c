// The memory of the states: of every sequence slot, in every layer of this device that keeps a
// state. Pre-faulted, and zero at first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cpu_backend/buffer.h"
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
  std::span<std::byte> state(int32_t sequence, int64_t layer) const;
  Bytes bytes() const { return sequences_ * slot_bytes_; }

 private:
  struct Place {
    Bytes offset = 0;  // in a slot
    Bytes bytes = 0;   // 0: the layer has no state here
  };

  const int64_t sequences_;
  std::vector<Place> places_;  // by layer
  Bytes slot_bytes_ = 0;       // of one sequence
  Buffer memory_;              // [sequence slots, slot_bytes_]
};

}  // namespace lime::cpu
