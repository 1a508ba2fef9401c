// Where the weights of a neuron are in its bundle, and what a read of a bundle takes.
//
//   [row of gate] [row of up] [column of down]      each begins on 64 bytes; a plain MLP has no gate
//
// "LLM in a flash", section 3.2, bundles a row of up and a column of down. Whoever decides with the
// decider's rows in memory reads only what follows them, so the decider comes first.
//
// Pure.
#pragma once

#include <cstdint>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr Bytes kBundleAlign = 64;        // of a part
inline constexpr Bytes kBundleSector = 512;      // least alignment of a bundle in the file
inline constexpr Bytes kBundleReadAlign = 4096;  // of direct reads
inline constexpr Bytes kMostBundlePartBytes = Bytes{1} << 24;

struct BundleLayout {
  int parts = 0;           // 2, or 3 with a gate
  Bytes part_bytes = 0;    // weights of one part
  Bytes part_stride = 0;   // from one part to the next
  Bytes record_bytes = 0;  // all parts
  // From one bundle to the next: a multiple of 4 KiB if at most an eighth of it is padding, else of 512
  // bytes.
  Bytes stride = 0;
  Bytes slot_bytes = 0;  // SlotBytes of the whole record: memory for a read

  Bytes PartAt(int part) const { return part * part_stride; }
  // The decider's rows are in memory: where the rest of a record begins.
  Bytes TailAt() const { return part_stride; }
  // The largest range of whole 4 KiB that encloses a record from part `first` on.
  Bytes SlotBytes(int first) const;

  friend bool operator==(const BundleLayout&, const BundleLayout&) = default;
};

// `part_bytes`: of a row of the first projection, or of packed codes without their scales and biases.
// InvalidArgument if it is not 1 to kMostBundlePartBytes.
absl::StatusOr<BundleLayout> LayoutOf(bool gated, Bytes part_bytes);

// The whole 4 KiB of a file that enclose a range.
struct EnclosingRange {
  Bytes offset = 0;
  Bytes bytes = 0;
  Bytes skipped = 0;  // bytes before the range
};
constexpr EnclosingRange Enclosing(Bytes offset, Bytes bytes) {
  const Bytes begin = offset / kBundleReadAlign * kBundleReadAlign;
  return {.offset = begin, .bytes = RoundUp(offset + bytes, kBundleReadAlign) - begin, .skipped = offset - begin};
}

}  // namespace lime
