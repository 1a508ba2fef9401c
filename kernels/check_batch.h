// The checks of a batch that every backend makes.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace lime {

// Returns how many rows ask for logits. InvalidArgument for tokens, positions or sequences out of
// range, and for more rows than were planned. `positions`: by sequence slot, how many positions
// have KV pages.
absl::StatusOr<int64_t> CheckBatch(const MicroBatch& batch, const ModelSpec& spec, const BackendOptions& options,
                                   std::span<const int64_t> positions);

}  // namespace lime
