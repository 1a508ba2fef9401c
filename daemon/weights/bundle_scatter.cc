#include "daemon/weights/bundle_scatter.h"

#include <algorithm>

#include "planner/base/check.h"

namespace lime {
namespace {

// Appends to the last read of `out`.
void Append(BlockDevice::Segment segment, ScatteredReads& out) {
  out.segments.push_back(segment);
  ++out.reads.back().num_segments;
  out.reads.back().bytes += segment.bytes;
}

// Whether the last read may go on with these bytes: after a gap, which it reads in pieces.
bool Fits(const ScatteredRead& read, Bytes gap, const ScatterOptions& options) {
  const auto piece = static_cast<Bytes>(options.gap_memory.size());
  if (gap > 0 && piece == 0) return false;
  const Bytes pieces = gap > 0 ? (gap + piece - 1) / piece : 0;
  return read.num_segments + static_cast<size_t>(pieces) + 1 <= BlockDevice::kMostSegments;
}

void AppendGap(Bytes gap, const ScatterOptions& options, ScatteredReads& out) {
  while (gap > 0) {
    const Bytes bytes = std::min(gap, static_cast<Bytes>(options.gap_memory.size()));
    Append({options.gap_memory.data(), bytes}, out);
    gap -= bytes;
  }
}

}  // namespace

Bytes GapMemory(const BundleLayout& layout, int first_part, Bytes gap_bytes) {
  return RoundUp(gap_bytes + layout.PartAt(first_part), kBundleReadAlign);
}

void ScatterReads(const LayerBundles& layer, std::span<const BundleSlot> wanted, const ScatterOptions& options, ScatteredReads& out) {
  const BundleLayout& layout = layer.shape().layout;
  LIME_CHECK(options.gap_bytes == 0 || !options.gap_memory.empty());
  LIME_CHECK_EQ(std::ssize(options.gap_memory) % kBundleReadAlign, 0);
  out.reads.clear();
  out.segments.clear();
  out.places.clear();
  for (const BundleSlot& slot : wanted) out.places.push_back(layer.places()[static_cast<size_t>(slot.neuron)]);
  const bool apart = layout.stride % kBundleReadAlign == 0;  // no two bundles share a page
  JoinReads(out.places,
            {.bundle_bytes = layout.stride, .gap_bytes = options.gap_bytes, .longest_bytes = apart ? options.longest_bytes : layout.stride},
            out.joined);
  size_t next = 0;
  for (const BundleRead& joined : out.joined) {
    const Bytes end = joined.offset + joined.bytes;
    for (bool begins = true; next < wanted.size() && out.places[next] * layout.stride < end; ++next, begins = false) {
      const EnclosingRange range = layer.RangeOf(wanted[next].neuron, options.first_part);
      const Bytes gap = begins ? 0 : range.offset - (out.reads.back().offset + out.reads.back().bytes);
      if (begins || !Fits(out.reads.back(), gap, options)) {
        out.reads.push_back({.offset = range.offset, .first_segment = out.segments.size()});
      } else {
        AppendGap(gap, options, out);
      }
      Append({wanted[next].memory, range.bytes}, out);
      ++out.reads.back().num_neurons;
    }
  }
  LIME_CHECK_EQ(next, wanted.size()) << "neurons do not ascend by place";
}

}  // namespace lime
