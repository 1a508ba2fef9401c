// The frame of a layer's inputs (InputFrame): their mean, and the directions in which they differ most.
//
// Orthogonal iteration on the covariance of the inputs (Golub and Van Loan, "Matrix Computations",
// section 8.2.4), from random directions. The first of the directions are those of the largest
// variance, so fewer of them are a frame, too.
//
// Pure, and the same on every device.
#pragma once

#include <cstdint>
#include <span>

#include "common/proven_zeros/decider_copy.h"

namespace lime {

// `inputs`: [count, cols], row-major. Fewer directions than asked for if there are fewer inputs or
// columns, or if the inputs differ in fewer. Inputs with numbers that are not finite do not count.
// REQUIRES: cols >= 1
InputFrame FrameOf(std::span<const float> inputs, int64_t cols, int64_t directions, const ForEach& for_each = InTurn);

// The frame with its first directions alone.
InputFrame FirstDirections(const InputFrame& frame, int64_t directions);

}  // namespace lime
