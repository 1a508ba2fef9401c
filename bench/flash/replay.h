// Reads for the masks of real tokens what a rung of the ladder reads, from the files of a block
// store with bundles.
//
// Reads have the sizes and offsets that the rung would have. What they bring is the weights of a
// bundle, but not always of the bundle that a mask names: a file has one order of its bundles, and
// a rung may suppose another one. Bundles that are read whole, or without their row of the decider,
// are compared with their checksums, as the engine does.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench/flash/disk.h"
#include "bench/flash/ladder.h"
#include "bench/flash/masks.h"
#include "daemon/logic/neuron_window/neuron_window.h"
#include "daemon/weights/bundle_store.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime::flash {

// The files of a model.
class FlashFiles {
 public:
  // FailedPrecondition if the folder is no store with bundles of all its MLPs.
  static absl::StatusOr<FlashFiles> Open(const Checkpoint& checkpoint, const ModelSpec& spec);

  const FlashShape& shape() const { return shape_; }
  const BundleStore& bundles() const { return bundles_; }
  std::span<const LayerBundles> layers() const { return bundles_.layers(); }
  std::vector<std::string> bundle_paths() const;
  // By layer and place: the neuron whose bundle is there.
  int32_t NeuronAt(size_t layer, int32_t place) const { return at_place_[layer][static_cast<size_t>(place)]; }
  // In Checkpoint::files(): of all blocks, and of the MLPs.
  std::span<const Extent> blocks() const { return blocks_; }
  std::span<const Extent> mlps() const { return mlps_; }
  // The first so many bytes of the weights that a rung with so much of them in memory streams.
  std::vector<Extent> Streamed(Bytes bytes) const;

 private:
  explicit FlashFiles(BundleStore bundles) : bundles_(std::move(bundles)) {}

  BundleStore bundles_;
  FlashShape shape_;
  std::vector<std::vector<int32_t>> at_place_;
  std::vector<Extent> blocks_, mlps_;
};

// The disks of a replay: one for each of the two kinds of files.
struct FlashDisks {
  FlashDisk& bundles;
  FlashDisk& blocks;
};

struct ReplayOptions {
  RungRule rule;
  MemorySplit memory;
  int32_t masks = 1;  // of the window
  RowPlacement placement = RowPlacement::kStable;
  size_t warm = 0, first = 0;  // tokens from `warm` on fill the window; those from `first` on are read
  BurstCost burst;             // for the gaps that are worth reading
};

// `masks` and `paths` have an entry for each layer of the files. `paths`: by neuron, its place on
// the path.
// REQUIRES: masks are of these files, and have more than `first` tokens; MaskWindow accepts the
// numbers
absl::StatusOr<RungCounts> Replay(const FlashFiles& files, const FlashDisks& disks, std::span<const TokenMasks* const> masks,
                                  std::span<const std::vector<int32_t>> paths, const ReplayOptions& options);

}  // namespace lime::flash
