#include "kernels/cpu/linear/linear_bf16.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>

namespace lime::cpu {
namespace bf16 {
namespace {

constexpr int64_t kPlane = 32;  // elements of one plane of a chunk

// Copies the plane of a row that begins at element k, with zeros beyond the row's end.
void CopyPlane(const BF16* row, int64_t cols, int64_t k, BF16* out) {
  const int64_t count = std::clamp<int64_t>(cols - k, 0, kPlane);
  std::memcpy(out, row + k, count * sizeof(BF16));
  std::fill(out + count, out + kPlane, BF16{0});
}

const BF16* TokenRow(const Activations& x, int64_t token) {
  return static_cast<const BF16*>(x.data) + token * x.stride;
}

}  // namespace

void PackRows(const Activations& x, float* packed) {
  BF16* const out = reinterpret_cast<BF16*>(packed);
  for (int64_t t = 0; t < x.tokens; ++t) {
    for (int64_t k = 0; k < x.cols; k += 2 * kPlane) {
      for (int p = 0; p < 2; ++p) CopyPlane(TokenRow(x, t), x.cols, k + p * kPlane, out + k * x.tokens + (2 * t + p) * kPlane);
    }
  }
}

void PackTile(const Activations& x, int64_t tile, float* packed) {
  const int64_t chunks = (x.cols + 2 * kPlane - 1) / (2 * kPlane);
  for (int64_t i = 0; i < kMaxTileTokens; ++i) {
    const BF16* row = TokenRow(x, std::min(tile * kMaxTileTokens + i, x.tokens - 1));
    for (int64_t c = 0; c < chunks; ++c) {
      for (int p = 0; p < 2; ++p) {
        CopyPlane(row, x.cols, (2 * c + p) * kPlane, reinterpret_cast<BF16*>(packed) + ((p * chunks + c) * kMaxTileTokens + i) * kPlane);
      }
    }
  }
}

}  // namespace bf16

const Bf16Kernels* HardwareBf16() {
#if LIME_BF16_X86
  if (__builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw")) return &bf16::kHardwareKernels;
#endif
  return nullptr;
}

const Bf16Kernels* EmulatedBf16() {
#if LIME_BF16_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw")) return &bf16::kEmulatedKernels;
#endif
  return nullptr;
}

const Bf16Kernels* ChooseBf16(Numerics numerics) {
  if (numerics == Numerics::kPortable) return nullptr;
  return numerics == Numerics::kEmulatedBf16 ? EmulatedBf16() : HardwareBf16();
}

const Bf16Kernels* ChoosePackedBf16(Numerics numerics) {
#if LIME_BF16_X86
  if (numerics == Numerics::kAuto && __builtin_cpu_is("intel")) return nullptr;
#endif
  return ChooseBf16(numerics);
}

namespace {

float Flushed(float x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x;
}

float DefinedMultiplyAdd(BF16 a, BF16 b, float acc) {
  return Flushed(std::fma(Flushed(ToFloat(a)), Flushed(ToFloat(b)), Flushed(acc)));
}

}  // namespace

void DefinedBf16Step(const BF16* w, const BF16* x, float* acc) {
  for (int i = 0; i < 16; ++i) {
    acc[i] = DefinedMultiplyAdd(w[2 * i + 1], x[2 * i + 1], acc[i]);
    acc[i] = DefinedMultiplyAdd(w[2 * i], x[2 * i], acc[i]);
  }
}

std::string Bf16NumericsId(const Bf16Kernels& kernels, bool packed) {
  using Bits = std::array<uint32_t, 16>;
  std::mt19937 random(1);
  bool as_defined = true;
  uint32_t seen = 2166136261u;
  for (int probe = 0; probe < 512; ++probe) {
    // Exponents are close together, so that the sums round. In every fourth probe they are so small
    // that products and sums become subnormal.
    const uint32_t exponent = probe % 4 == 0 ? 58 : 122;
    const auto bf16 = [&] { return BF16{static_cast<uint16_t>((random() & 0x807f) | ((exponent + random() % 10) << 7))}; };
    BF16 w[32], x[32];
    float acc[16], defined[16];
    for (int i = 0; i < 32; ++i) w[i] = bf16(), x[i] = bf16();
    for (int i = 0; i < 16; ++i) {
      const float sum = ToFloat(bf16()) * ToFloat(bf16());
      acc[i] = defined[i] = std::bit_cast<float>(std::bit_cast<uint32_t>(sum) ^ static_cast<uint32_t>(random() & 0xffff));
    }
    kernels.step(w, x, acc);
    DefinedBf16Step(w, x, defined);
    as_defined = as_defined && std::bit_cast<Bits>(acc) == std::bit_cast<Bits>(defined);
    for (const float value : acc) seen = (seen ^ std::bit_cast<uint32_t>(value)) * 16777619u;
  }
  const char* layers = packed ? "packed-" : "";
  char name[48];
  if (as_defined) {
    std::snprintf(name, sizeof(name), "x86-avx512bf16-%s1", layers);
  } else {
    std::snprintf(name, sizeof(name), "x86-avx512bf16-%sx%08x", layers, seen);
  }
  return name;
}

}  // namespace lime::cpu
