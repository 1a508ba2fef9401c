#include "planner/base/dtype.h"

#include <utility>

namespace lime {
namespace {

constexpr std::pair<DType, std::string_view> kNames[] = {
    {DType::kBool, "BOOL"}, {DType::kU8, "U8"},   {DType::kI8, "I8"},   {DType::kF8E4M3, "F8_E4M3"}, {DType::kF8E5M2, "F8_E5M2"},
    {DType::kU16, "U16"},   {DType::kI16, "I16"}, {DType::kF16, "F16"}, {DType::kBF16, "BF16"},      {DType::kU32, "U32"},
    {DType::kI32, "I32"},   {DType::kF32, "F32"}, {DType::kU64, "U64"}, {DType::kI64, "I64"},        {DType::kF64, "F64"},
};

}  // namespace

std::string_view DTypeName(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "?";
}

std::optional<DType> ParseDType(std::string_view name) {
  for (const auto& [value, spelled] : kNames) {
    if (spelled == name) return value;
  }
  return std::nullopt;
}

}  // namespace lime
