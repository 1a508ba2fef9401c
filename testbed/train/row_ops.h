// The inner loops of attention and of the fused element-wise operators. They use no torch, so that
// only they are compiled with fast-math.
#pragma once

#include <cstdint>

namespace lime::train {

// x[0, valid) becomes its softmax, x[valid, width) zero.
void SoftmaxRow(float* x, int valid, int width);

// dp becomes p * (dp - dot).
void SoftmaxGradRow(const float* p, float* dp, float dot, int width);

float Dot(const float* a, const float* b, int n);

// Rotates (x[i], x[half + i]) by angle i.
void RotateHead(float* x, const float* cosine, const float* sine, int64_t half);

// out = act(gate) * up, act being SiLU or ReLU.
void GatedForward(const float* gate, const float* up, float* out, int64_t n, bool relu);
// Computes the gradients of gate and up from the gradient of out. ReLU's gradient is zero at and
// below zero.
void GatedBackward(const float* gate, const float* up, const float* grad, float* d_gate, float* d_up, int64_t n, bool relu);

// out = x * weight / sqrt(mean(x^2) + eps); returns the factor 1 / sqrt(...).
float RmsNormRow(const float* x, const float* weight, float eps, float* out, int64_t n);
// Computes dx from the gradient of out, and adds to d_weight.
void RmsNormGradRow(const float* x, const float* weight, float factor, const float* grad, float* dx, float* d_weight, int64_t n);

// Negative log probability, in nats, of `target`.
float LossRow(const float* logits, int64_t target, int64_t n);
// The gradient of this loss times `scale`. `loss`: the result of LossRow.
void LossGradRow(const float* logits, int64_t target, float loss, float scale, float* grad, int64_t n);

}  // namespace lime::train
