// Writes the bundles of a layer: its MLP weights once more, by neuron (daemon/formats/bundle_file.h).
//
// A neuron may be skipped where its activation is zero only if all weights of the MLP are finite and,
// in a gated MLP, up cannot overflow whatever the input is. Both are checked here; a layer that fails
// gets no file.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/proven_zeros/decider_copy.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/formats/decider_file.h"
#include "daemon/stores/block_store_disk.h"
#include "daemon/stores/source_reader.h"
#include "daemon/weights/bundled_mlp.h"
#include "planner/base/bytes.h"
#include "planner/base/for_each.h"
#include "planner/base/status.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

// The file of a layer: header | bundles | checksums | places | a copy of the decider, if there is one.
// The base has everything that the manifest says of the file except the checksums; `ranges` are the
// tables and the parts of the copy.
struct BundleFileLayout : StoredFile {
  BundledMlp mlp;
  std::vector<int32_t> places;  // by neuron: the place of its bundle; empty: its number
  std::string header;
  // What the headers of this layer's files begin with, whether they have a copy or not.
  std::string header_begin;
  int64_t sums_at = 0, place_at = 0;        // in the file
  std::shared_ptr<const RowCopier> copier;  // null: the file has no copy
  DeciderFile decider;                      // where the copy is
};
// REQUIRES: `places` is empty, or has each place of the layer once; `copier` has the columns of the
// layer's decider and at least one direction, and weights are not packed
BundleFileLayout LayOutBundles(const BundledMlp& mlp, std::vector<int32_t> places = {}, std::shared_ptr<const RowCopier> copier = nullptr);
// By place: its neuron.
std::vector<int32_t> NeuronsInOrder(const BundleFileLayout& layout);

// True if `stored` has the same name, size and tables as `layout`. If `layout` has no copy of the decider,
// a file with one is as good.
bool SameShape(const StoredFile& stored, const BundleFileLayout& layout);

// Either a file that was written, or why there is none.
struct WrittenBundles {
  std::optional<StoredFile> file;
  std::optional<NoBundles> why_not;
};

struct WriteBundlesOptions {
  // Memory for rows and columns of neurons that are copied together; at least 32 neurons are.
  Bytes buffer_bytes = 64 * kMiB;
  // Called with the number of bytes that were written since its last call. An error ends the write.
  std::function<absl::Status(Bytes)> progress;
  // Shares the rows of a decider of which copies are made.  REQUIRES: leaves no call out
  ForEach for_each = InTurn;
};

// Reads the MLP and writes the file `path`, each neuron at its place. The MLP is read once, but if neurons
// have places of their own, its last matrix once for each buffer of neurons. If a check fails, no file is
// left.
// REQUIRES: `layout` is of a layer of `spec`, which was built from `source`.
absl::StatusOr<WrittenBundles> WriteBundles(const Checkpoint& source, const ModelSpec& spec, const BundleFileLayout& layout,
                                            SourceReader& reader, StoreDisk& disk, const std::string& path,
                                            const WriteBundlesOptions& options);

}  // namespace lime
