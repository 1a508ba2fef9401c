// Element types of tensors, as safetensors names them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace lime {

enum class DType : uint8_t {
  kBool,    // 1 byte
  kU8,      // 1 byte
  kI8,      // 1 byte
  kF8E4M3,  // 1 byte; read, never computed with
  kF8E5M2,  // 1 byte; read, never computed with
  kU16,     // 2 bytes
  kI16,     // 2 bytes
  kF16,     // IEEE half
  kBF16,    // upper half of an IEEE single
  kU32,     // 4 bytes; also the container of packed quantised weights
  kI32,     // 4 bytes
  kF32,     // IEEE single
  kU64,     // 8 bytes
  kI64,     // 8 bytes
  kF64,     // IEEE double
};

// Bytes of one element.
constexpr int64_t ElementBytes(DType dtype) {
  if (dtype <= DType::kF8E5M2) return 1;
  if (dtype <= DType::kBF16) return 2;
  if (dtype <= DType::kF32) return 4;
  return 8;
}

// "BF16"; the name in a safetensors header.
std::string_view DTypeName(DType dtype);

// Nothing for a name that safetensors does not know.
std::optional<DType> ParseDType(std::string_view name);

// The dtypes a residual stream and the weights of a linear layer may have.
constexpr bool IsWorkingDType(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
}

}  // namespace lime
