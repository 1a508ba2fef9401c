#include "planner/demand/bundle_layout.h"

#include <numeric>

namespace lime {

absl::StatusOr<BundleLayout> LayoutOf(bool gated, Bytes part_bytes) {
  if (part_bytes < 1 || part_bytes > kMostBundlePartBytes)
    return Invalid("bundles: a row has ", part_bytes, " bytes, need 1 to ", kMostBundlePartBytes);
  BundleLayout layout{.parts = gated ? 3 : 2, .part_bytes = part_bytes, .part_stride = RoundUp(part_bytes, kBundleAlign)};
  layout.record_bytes = layout.parts * layout.part_stride;
  const Bytes whole = RoundUp(layout.record_bytes, kBundleReadAlign);
  layout.stride = whole - layout.record_bytes <= whole / 8 ? whole : RoundUp(layout.record_bytes, kBundleSector);
  layout.slot_bytes = layout.SlotBytes(0);
  return layout;
}

// What is read begins at multiples of `step` plus the same number, so the last of them in 4 KiB decides.
Bytes BundleLayout::SlotBytes(int first) const {
  const Bytes step = std::gcd(stride, kBundleReadAlign);
  const Bytes last = kBundleReadAlign - step + PartAt(first) % step;
  return RoundUp(last + record_bytes - PartAt(first), kBundleReadAlign);
}

}  // namespace lime
