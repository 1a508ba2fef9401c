// Reads neurons of sparse MLPs from the bundles of a block store into memory, and checks them.
//
//   neurons of a burst ──► sorted by place, joined (bundle_scatter.h) ──► reads, all at once
//                                              wrong record ──► its read once more ──► DataLoss
//
// The reader has the bundle files to itself: its reads do not wait behind those that stream.
//
// Thread: StartBurst and Cancel from any; completions run on the reader's own thread. The rest is
// immutable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "daemon/machine/block_reader.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/weights/bundle_scatter.h"
#include "daemon/weights/bundle_store.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

class NeuronReader {
 public:
  // One read of a burst has ended: these neurons of a layer are in their slots and were checked, or
  // not, if `status` is an error. The span is valid until the next burst begins, which the call for the
  // last read may do.
  using Completion = std::function<void(int32_t layer, std::span<const BundleSlot> neurons, const absl::Status& status)>;
  struct Options {
    Completion done;
    int channels = 32;  // reads in flight
    bool io_uring = true;
    // A gap of this many bytes between two bundles is read rather than skipped: about what a disk reads
    // in the fixed time of a read.
    Bytes gap_bytes = 12 * kKiB;
    Bytes longest_bytes = 1 * kMiB;  // of one read
    // Layers, of those that are opened, whose whole records are read; of the others, the parts behind the decider's.
    std::vector<int32_t> whole_records = {};
    // For tests: wraps the device.
    std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)> wrap_device;
  };

  // FailedPrecondition if the checkpoint is no block store, or has no bundles of one of `layers`.
  // REQUIRES: `spec` was built from `checkpoint`
  static absl::StatusOr<std::unique_ptr<NeuronReader>> Open(const Checkpoint& checkpoint, const ModelSpec& spec,
                                                            std::span<const int32_t> layers, const Options& options);

  // Reads, of each of these neurons of a layer, the parts of its record from FirstPart on.
  // REQUIRES: the layer is one of those that were opened; all neurons of the burst before have been
  // reported
  void StartBurst(int32_t layer, std::span<const BundleSlot> neurons);

  // The first part of a layer's records that is read: the decider's is part 0.
  int FirstPart(int32_t layer) const { return first_parts_[static_cast<size_t>(layer)]; }
  // Where that part begins in the slot of a neuron.
  Bytes OffsetInSlot(int32_t layer, int32_t neuron) const { return OfLayer(layer).RangeOf(neuron, FirstPart(layer)).skipped; }
  const BundleLayout& layout(int32_t layer) const { return OfLayer(layer).shape().layout; }
  const LayerBundles& bundles(int32_t layer) const { return OfLayer(layer); }

  // Ends all reads with kCancelled.
  void Cancel() { reader_->Cancel(); }
  Bytes bytes_read() const { return reader_->bytes_read(); }
  int64_t reads_started() const { return reads_started_; }

 private:
  NeuronReader(BundleStore store, const Options& options, std::vector<int> first_parts, std::unique_ptr<BlockReader> reader,
               HugeBuffer gap);

  const LayerBundles& OfLayer(int32_t layer) const { return *store_.OfLayer(layer); }
  void Start(size_t read);
  void OnRead(size_t read, absl::Status status);
  absl::Status Check(std::span<const BundleSlot> neurons) const;

  const BundleStore store_;
  const Options options_;
  const std::vector<int> first_parts_;  // by layer
  const HugeBuffer gap_;
  // Of the burst.
  int32_t layer_ = 0;
  std::vector<BundleSlot> wanted_;  // by place
  ScatteredReads scattered_;
  struct ReadState {
    size_t first = 0;    // of wanted_
    bool again = false;  // a record was wrong once; used on the reader's thread
  };
  std::vector<ReadState> states_;  // by read
  int64_t reads_started_ = 0;
  std::unique_ptr<BlockReader> reader_;  // last member: its thread uses the others
};

}  // namespace lime
