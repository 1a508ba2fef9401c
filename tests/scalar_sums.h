// Sums of linear layers in the stated orders (docs/reference/numerics.md), one product after the
// other: oracles for kernels and for bounds.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

#include "common/proven_zeros/sum_order.h"

namespace lime {

enum class Products : uint8_t {
  kAll,
  kNotZero,  // leaves out every k with x[k] = 0
};

// Adds lanes that are count / 2 apart, and so on.
inline float TreeSum(float* lanes, int count) {
  for (int apart = count / 2; apart > 0; apart /= 2) {
    for (int i = 0; i < apart; ++i) lanes[i] += lanes[i + apart];
  }
  return lanes[0];
}

inline float PortableSum(std::span<const float> w, std::span<const float> x, Products products = Products::kAll) {
  float sum = 0;
  for (size_t begin = 0; begin < w.size(); begin += 2048) {
    float lanes[32] = {};
    for (size_t k = begin; k < w.size() && k < begin + 2048; ++k) {
      if (products == Products::kNotZero && x[k] == 0) continue;
      lanes[k % 32] = std::fma(w[k], x[k], lanes[k % 32]);
    }
    const float group = TreeSum(lanes, 32);
    sum = begin == 0 ? group : sum + group;  // the first sum may be -0
  }
  return sum;
}

// w and x have values of bf16.
inline float Bf16DotSum(std::span<const float> w, std::span<const float> x, Products products = Products::kAll) {
  const auto flushed = [](float value) { return AsRead(value, SumOrder::kBf16Dot); };
  float planes[2][16] = {};
  for (size_t begin = 0; begin < w.size(); begin += 2) {
    for (const size_t k : {begin + 1, begin}) {
      if (k >= w.size() || (products == Products::kNotZero && x[k] == 0)) continue;
      float& lane = planes[k % 64 / 32][k % 32 / 2];
      lane = flushed(std::fma(flushed(w[k]), flushed(x[k]), lane));
    }
  }
  for (int i = 0; i < 16; ++i) planes[0][i] += planes[1][i];
  return TreeSum(planes[0], 16);
}

inline float SumInOrder(SumOrder order, std::span<const float> w, std::span<const float> x, Products products = Products::kAll) {
  return order == SumOrder::kPortable ? PortableSum(w, x, products) : Bf16DotSum(w, x, products);
}

}  // namespace lime
