// Built with -ffast-math, so that the loops use vector instructions and a vector exp. Results
// depend on the machine's instruction set.
#include "testbed/train/row_ops.h"

#include <algorithm>
#include <bit>
#include <cmath>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define LIME_CLONES __attribute__((target_clones("arch=skylake-avx512", "arch=haswell", "default")))
#else
#define LIME_CLONES
#endif

namespace lime::train {
namespace {

// e^x for x <= 88, within 3e-7 of it, and zero-like below -87. A polynomial, because the library's
// vector exp is called in its narrowest form here.
inline __attribute__((always_inline)) float Exp(float x) {
  const float t = std::max(x, -87.0f) * 1.44269504f;
  const int n = static_cast<int>(t + (t < 0 ? -0.5f : 0.5f));
  const float r = (t - static_cast<float>(n)) * 0.69314718f;  // in [-0.35, 0.35]
  const float p = 1 + r * (1 + r * (0.5f + r * (1 / 6.0f + r * (1 / 24.0f + r * (1 / 120.0f + r * (1 / 720.0f))))));
  return p * std::bit_cast<float>((n + 127) << 23);
}

}  // namespace

LIME_CLONES void SoftmaxRow(float* x, int valid, int width) {
  float top = x[0], sum = 0;
  for (int i = 1; i < valid; ++i) top = std::max(top, x[i]);
  for (int i = 0; i < valid; ++i) x[i] = Exp(x[i] - top);
  for (int i = 0; i < valid; ++i) sum += x[i];
  const float factor = 1.0f / sum;
  for (int i = 0; i < valid; ++i) x[i] *= factor;
  std::fill(x + valid, x + width, 0.0f);
}

LIME_CLONES void SoftmaxGradRow(const float* p, float* dp, float dot, int width) {
  for (int i = 0; i < width; ++i) dp[i] = p[i] * (dp[i] - dot);
}

LIME_CLONES float Dot(const float* a, const float* b, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}

LIME_CLONES void RotateHead(float* x, const float* cosine, const float* sine, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i], b = x[half + i];
    x[i] = a * cosine[i] - b * sine[i];
    x[half + i] = b * cosine[i] + a * sine[i];
  }
}

LIME_CLONES void GatedForward(const float* gate, const float* up, float* out, int64_t n, bool relu) {
  if (relu) {
    for (int64_t i = 0; i < n; ++i) out[i] = std::max(gate[i], 0.0f) * up[i];
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = gate[i] / (1.0f + Exp(std::min(-gate[i], 87.0f))) * up[i];
  }
}

LIME_CLONES void GatedBackward(const float* gate, const float* up, const float* grad, float* d_gate, float* d_up, int64_t n, bool relu) {
  if (relu) {
    for (int64_t i = 0; i < n; ++i) {
      d_gate[i] = gate[i] > 0 ? grad[i] * up[i] : 0.0f;
      d_up[i] = grad[i] * std::max(gate[i], 0.0f);
    }
  } else {
    for (int64_t i = 0; i < n; ++i) {
      const float sigmoid = 1.0f / (1.0f + Exp(std::min(-gate[i], 87.0f)));
      d_gate[i] = grad[i] * up[i] * sigmoid * (1.0f + gate[i] * (1.0f - sigmoid));
      d_up[i] = grad[i] * gate[i] * sigmoid;
    }
  }
}

LIME_CLONES float RmsNormRow(const float* x, const float* weight, float eps, float* out, int64_t n) {
  float squares = 0;
  for (int64_t i = 0; i < n; ++i) squares += x[i] * x[i];
  const float factor = 1.0f / std::sqrt(squares / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) out[i] = x[i] * factor * weight[i];
  return factor;
}

// With y = x f and f = (mean(x^2) + eps)^-0.5: dx = f (w g - y mean(w g y)), dw = g y.
LIME_CLONES void RmsNormGradRow(const float* x, const float* weight, float factor, const float* grad, float* dx, float* d_weight,
                                int64_t n) {
  float dot = 0;
  for (int64_t i = 0; i < n; ++i) dot += weight[i] * grad[i] * x[i];
  const float pull = dot * factor * factor / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) {
    dx[i] = factor * (weight[i] * grad[i] - x[i] * pull);
    d_weight[i] += grad[i] * x[i] * factor;
  }
}

LIME_CLONES float LossRow(const float* logits, int64_t target, int64_t n) {
  float top = logits[0], sum = 0;
  for (int64_t i = 1; i < n; ++i) top = std::max(top, logits[i]);
  for (int64_t i = 0; i < n; ++i) sum += Exp(logits[i] - top);
  return top + std::log(sum) - logits[target];
}

LIME_CLONES void LossGradRow(const float* logits, int64_t target, float loss, float scale, float* grad, int64_t n) {
  const float log_sum = loss + logits[target];
  for (int64_t i = 0; i < n; ++i) grad[i] = scale * Exp(logits[i] - log_sum);
  grad[target] -= scale;
}

}  // namespace lime::train
