// The bundles of a block store: where the weights of each neuron lie, and their checksums.
//
// Immutable after Open; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/proven_zeros/decider_copy.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/formats/bundle_file.h"
#include "daemon/formats/decider_file.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/weights/bundled_mlp.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/demand/bundle_layout.h"
#include "planner/plan/model/model_spec.h"
#include "planner/plan/sparse_parts.h"

namespace lime {

// The copy of a decider in memory. Every step reads all of it.
struct LoadedDecider {
  HugeBuffer memory;  // the parts, each on 4 KiB
  DeciderView view;   // into it
};

// The file of one layer.
class LayerBundles {
 public:
  // Reads the header and the tables. `stored`: what the manifest says of the file. InvalidArgument or
  // DataLoss names the file and what is wrong.
  static absl::StatusOr<LayerBundles> Open(std::string path, const StoredFile& stored, const BundledMlp& mlp);

  int32_t layer() const { return layer_; }
  const std::string& path() const { return path_; }
  Bytes file_bytes() const { return file_bytes_; }
  const BundleShape& shape() const { return shape_; }
  // By neuron: the number of its bundle in the file.
  std::span<const int32_t> places() const { return places_; }
  // Where the bundle of place 0 begins in the file: a multiple of 4 KiB.
  int64_t begin() const { return begin_; }

  // The range of the file that has the parts of a neuron's record from `first` on, and the whole 4 KiB
  // that enclose it, which are in the file too.
  EnclosingRange RangeOf(int32_t neuron, int first) const;

  // Compares the parts from `first` on with their checksums. DataLoss names file, layer and neuron.
  // Allocates nothing unless it fails.
  // REQUIRES: `record` has the record's bytes from part `first` on.
  absl::Status Check(int32_t neuron, int first, std::span<const std::byte> record) const;

  // Null if the file has no copy of the decider.
  const DeciderFile* decider() const { return decider_ ? &*decider_ : nullptr; }
  // Reads the copy and compares it with its checksums. Errors as of Open.  REQUIRES: there is one
  absl::StatusOr<std::shared_ptr<const LoadedDecider>> LoadDecider() const;

  Bytes TableBytes() const { return static_cast<Bytes>(places_.size() + sums_.size()) * 4; }

 private:
  std::string path_;
  int32_t layer_ = 0;
  Bytes file_bytes_ = 0;
  BundleShape shape_;
  int64_t begin_ = 0;
  std::vector<int32_t> places_;
  std::vector<uint32_t> sums_;  // [neurons, parts]
  StoredFile stored_;
  std::optional<DeciderFile> decider_;
};

class BundleStore {
 public:
  // Opens the files of all layers, or of `layers` alone. FailedPrecondition if the folder is no block
  // store, or one without bundles.
  // REQUIRES: `spec` was built from `checkpoint`.
  static absl::StatusOr<BundleStore> Open(const Checkpoint& checkpoint, const ModelSpec& spec,
                                          std::optional<std::span<const int32_t>> layers = std::nullopt);

  // By layer of the model: neurons that have bundles; 0: none.
  static absl::StatusOr<std::vector<int64_t>> SparseNeurons(const Checkpoint& checkpoint, const ModelSpec& spec);

  // By layer of the model, the copies of deciders in the files that are open; without bits: none.
  std::vector<DeciderForm> Deciders(int64_t layers) const;

  // Null if the layer has no bundles, or was not opened.
  const LayerBundles* OfLayer(int32_t layer) const;
  std::span<const LayerBundles> layers() const { return layers_; }  // those that are open, ascending

 private:
  std::vector<LayerBundles> layers_;
};

}  // namespace lime
