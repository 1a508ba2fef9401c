// Numbers in wire format, one after another.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

namespace lime {

// Put and Get return the position after the number.
template <typename T>
std::byte* Put(T value, std::byte* out) {
  auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i, bits = static_cast<std::make_unsigned_t<T>>(bits >> 7 >> 1))
    *out++ = static_cast<std::byte>(bits & 0xff);
  return out;
}

// The same for several numbers.
template <typename... T>
std::byte* PutAll(std::byte* out, T... values) {
  ((out = Put(values, out)), ...);
  return out;
}

template <std::integral T>
void Append(std::vector<std::byte>& bytes, T value) {
  bytes.resize(bytes.size() + sizeof(value));
  Put(value, bytes.data() + bytes.size() - sizeof(value));
}

template <typename T>
const std::byte* Get(const std::byte* in, T& value) {
  std::make_unsigned_t<T> bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) bits |= static_cast<std::make_unsigned_t<T>>(std::to_integer<uint64_t>(in[i])) << (8 * i);
  value = static_cast<T>(bits);
  return in + sizeof(T);
}

template <typename... T>
const std::byte* GetAll(const std::byte* in, T&... values) {
  ((in = Get(in, values)), ...);
  return in;
}

}  // namespace lime
