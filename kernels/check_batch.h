// What every backend refuses of a batch.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace lime {

// How many rows ask for logits. InvalidArgument for tokens, positions or sequences out of range, and for more rows than were planned.
// `positions`: by sequence slot, those that have KV pages.
absl::StatusOr<int64_t> CheckBatch(const MicroBatch& batch, const ModelSpec& spec, const BackendOptions& options,
                                   std::span<const int64_t> positions);

}  // namespace lime
