// Element types of tensors, with the names of safetensors.
#pragma once

#include <cstdint>
#include <string_view>

#include "planner/base/names.h"

namespace lime {

enum class DType : uint8_t {
  kBool,    // 1 byte
  kU8,      // 1 byte
  kI8,      // 1 byte
  kF8E4M3,  // 1 byte; can be read, not computed with
  kF8E5M2,  // 1 byte; can be read, not computed with
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

// Names in a safetensors header.
inline constexpr Names<DType, 15> kDTypeNames = {{{DType::kBool, "BOOL"},
                                                  {DType::kU8, "U8"},
                                                  {DType::kI8, "I8"},
                                                  {DType::kF8E4M3, "F8_E4M3"},
                                                  {DType::kF8E5M2, "F8_E5M2"},
                                                  {DType::kU16, "U16"},
                                                  {DType::kI16, "I16"},
                                                  {DType::kF16, "F16"},
                                                  {DType::kBF16, "BF16"},
                                                  {DType::kU32, "U32"},
                                                  {DType::kI32, "I32"},
                                                  {DType::kF32, "F32"},
                                                  {DType::kU64, "U64"},
                                                  {DType::kI64, "I64"},
                                                  {DType::kF64, "F64"}}};

constexpr std::string_view DTypeName(DType dtype) {
  return kDTypeNames.Of(dtype);
}

// The dtypes that a residual stream and the weights of a linear layer may have.
constexpr bool IsWorkingDType(DType dtype) {
  return dtype == DType::kF16 || dtype == DType::kBF16 || dtype == DType::kF32;
}

}  // namespace lime
