// The low-bit copy of a decider (common/proven_zeros) in a file of bundles (bundle_file.h). It has
// these tensors, or none of them, each on 4 KiB:
//
//   __lime_decider__.codes   U8 [neurons, bytes]        codes of a row: CodeRowBytes of 4 to 8 bits
//   __lime_decider__.rows    F32 [neurons, 9]           scales and bounds of a row: CopiedRow
//   __lime_decider__.kept    I8 [neurons, directions]   codes of the kept error of a row
//   __lime_decider__.mean    F32 [columns]              of the layer's inputs
//   __lime_decider__.axes    BF16 [directions, columns] main directions of the layer's inputs
//
// Pure: works on bytes that others have read. They are hostile: sizes are bounded, no number is NaN,
// and no bound is negative. An error is one sentence that names the file and the tensor. Whether the
// bounds are true follows only from the checksums of the store.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/proven_zeros/decider_copy.h"
#include "daemon/formats/bundle_file.h"
#include "daemon/formats/safetensors.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr std::string_view kDeciderPrefix = "__lime_decider__.";

struct DeciderShape {
  int64_t rows = 0, cols = 0;
  int64_t directions = 0;  // at least 1
  int bits = 0;

  DeciderView View() const { return {.rows = rows, .cols = cols, .directions = directions, .bits = bits}; }
  friend bool operator==(const DeciderShape&, const DeciderShape&) = default;
};

// In the order of the file.
enum class DeciderPart : uint8_t {
  kCodes,
  kRows,
  kKept,
  kMean,
  kAxes,
};
inline constexpr size_t kDeciderParts = 5;

// Name, dtype and shape of a tensor of the copy.
struct DeciderTensor {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;
};
DeciderTensor TensorOf(DeciderPart part, const DeciderShape& shape);

// Where the tensors are.
struct DeciderFile {
  DeciderShape shape;
  std::array<BundleTensor, kDeciderParts> parts;  // by DeciderPart

  Bytes bytes() const;  // of all parts
};

// Nothing if the file has no copy. InvalidArgument if a tensor is missing, has another type or shape,
// or does not begin on 4 KiB.  REQUIRES: rows and cols are those of the layer's decider
absl::StatusOr<std::optional<DeciderFile>> FindDecider(const SafetensorsHeader& header, int64_t rows, int64_t cols, std::string_view file);

// The copy in these bytes, which outlive the result. `parts`: by DeciderPart, aligned to 4 bytes.
// InvalidArgument for another number of bytes, and for numbers that no copy has.
absl::StatusOr<DeciderView> ParseDecider(const DeciderShape& shape, const std::array<std::span<const std::byte>, kDeciderParts>& parts,
                                         std::string_view file);

}  // namespace lime
