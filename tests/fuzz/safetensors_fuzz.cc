// Any bytes as a safetensors file: length, header, and the promises that a parsed header makes to
// its readers.
#include <cstring>
#include <span>

#include "daemon/formats/safetensors.h"
#include "planner/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lime;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto file_bytes = static_cast<int64_t>(size);
  const absl::StatusOr<int64_t> length = ParseSafetensorsLength(bytes, file_bytes, "fuzz");
  if (!length.ok()) return 0;
  const std::string_view json(reinterpret_cast<const char*>(data) + kSafetensorsLengthBytes, static_cast<size_t>(*length));
  const absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(json, file_bytes, "fuzz");
  if (!header.ok()) {
    LIME_CHECK_LT(header.status().message().size(), 2000u);
    return 0;
  }
  int64_t end = header->data_begin;
  for (const SafetensorsTensor& tensor : header->tensors) {
    LIME_CHECK_EQ(tensor.offset, end);
    LIME_CHECK_GE(tensor.info.bytes, 0);
    end += tensor.info.bytes;
  }
  LIME_CHECK_EQ(end, file_bytes);
  return 0;
}
