// Counter-based random numbers (Philox4x32-10, Salmon et al. 2011). A pure function of key and
// counter: no state is lost with a device.
#pragma once

#include <array>
#include <cstdint>

namespace lime {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(b),
               static_cast<uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(a)};
    key = {key[0] + 0x9E3779B9u, key[1] + 0xBB67AE85u};
  }
  return counter;
}

// Uniform in [0, 1) with 53 bits, for one position of one request.
constexpr double UniformAt(uint64_t seed, uint64_t request, uint64_t position) {
  const auto low = [](uint64_t v) { return static_cast<uint32_t>(v); };
  const auto high = [](uint64_t v) { return static_cast<uint32_t>(v >> 32); };
  const PhiloxBlock block = Philox4x32({low(position), high(position), low(request), high(request)}, {low(seed), high(seed)});
  const uint64_t bits = uint64_t{block[0]} << 32 | block[1];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

}  // namespace lime
