#include "kernels/cpu_backend/state_pool.h"

#include "kernels/cpu_backend/buffer.h"
#include "planner/base/check.h"

namespace lime::cpu {

StatePool::StatePool(const ModelSpec& spec, const BackendOptions& options)
    : sequences_(options.max_sequences), snapshots_(options.state_snapshots), places_(static_cast<size_t>(spec.config.num_layers())) {
  for (const int32_t layer : options.state_layers) {
    Place& place = places_.at(static_cast<size_t>(layer));
    LIME_CHECK(place.bytes == 0 && spec.StateBytes(layer) > 0) << "layer " << layer << " keeps no state, or is named twice";
    place = {.offset = slot_bytes_, .bytes = spec.StateBytes(layer)};
    slot_bytes_ += place.bytes;
  }
  if (bytes() > 0) memory_ = std::shared_ptr<std::byte>(MakePrefaulted(bytes()).release(), FreeMemory());
}

std::span<std::byte> StatePool::snapshot(int32_t sequence, int32_t snapshot, int64_t layer) const {
  LIME_CHECK(snapshot >= 0 && snapshot < snapshots_) << snapshot;
  return At(sequence, 1 + snapshot, layer);
}

std::span<std::byte> StatePool::At(int32_t sequence, int64_t copy, int64_t layer) const {
  LIME_CHECK(sequence >= 0 && sequence < sequences_) << sequence;
  const Place& place = places_.at(static_cast<size_t>(layer));
  if (place.bytes == 0) return {};
  return {memory_.get() + (sequence * (1 + snapshots_) + copy) * slot_bytes_ + place.offset, static_cast<size_t>(place.bytes)};
}

}  // namespace lime::cpu
