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
  // Records begin at multiples of this, so the last of them in 4 KiB decides.
  const Bytes step = std::gcd(layout.stride, kBundleReadAlign);
  layout.slot_bytes = RoundUp(kBundleReadAlign - step + layout.record_bytes, kBundleReadAlign);
  return layout;
}

}  // namespace lime
