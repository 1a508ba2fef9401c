// Element-wise parts of the model as single differentiable operators. As chains of ATen's operators
// they would take as long as the matrix products.
#pragma once

#include <ATen/ATen.h>

namespace lime::train {

// x: [rows, n], weight: [n].
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& weight, double eps);

// act(gate) * up, act being SiLU or ReLU.
at::Tensor Gated(const at::Tensor& gate, const at::Tensor& up, bool relu);

// Mean negative log probability, in nats, of targets: [rows] (int64) under logits: [rows, n]. Rows
// with a target below zero do not count; at least one row counts.
at::Tensor MeanLoss(const at::Tensor& logits, const at::Tensor& targets);

}  // namespace lime::train
