// The block store: a model's weights, one file for each layer. Every block is one aligned range of
// a file and has checksums.
//
// Of a ReLU model it may have bundles beside them: the MLP weights once more, by neuron
// (daemon/formats/bundle_file.h).
//
// docs/reference/file-formats.md has the format.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/proven_zeros/decider_copy.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/stores/block_store_disk.h"
#include "daemon/weights/loader.h"
#include "planner/base/bytes.h"
#include "planner/base/for_each.h"
#include "planner/base/status.h"

namespace lime {

struct PrepareOptions {
  LoadOptions watch;              // progress counts the bytes that this call writes
  Bytes buffer_bytes = 8 * kMiB;  // size of the one buffer that all bytes pass through
  // Also writes bundles. Without it, a store that has bundles keeps them.
  bool bundles = false;
  Bytes bundle_buffer_bytes = 64 * kMiB;  // memory for neurons that are copied together
  // Where the bundles of new files lie: by layer, by neuron, each place of the layer once. Neurons of
  // other layers have the places of their numbers.
  std::map<int32_t, std::vector<int32_t>> bundle_places = {};
  // By layer: the copy of its decider that its file of bundles has (common/proven_zeros). Files without it
  // are written again. Layers that are not named get none, and keep the one that they have.
  std::map<int32_t, std::shared_ptr<const RowCopier>> decider_copies = {};
  ForEach for_each = InTurn;  // shares the rows of which copies are made; leaves no call out
  // Called once this call has written a file of bundles into a store that keeps none of an earlier call:
  // then all that it has are in the order of bundle_places. An error ends the call. May be null.
  std::function<absl::Status()> first_bundles = nullptr;
  // null: the real disk
  StoreDisk* disk = nullptr;
  // Replaces files that have the store's names but were not written by LIME. Never replaces
  // weights.
  bool overwrite = false;
};

struct BundleSummary {
  int64_t layers = 0;                // that have bundles
  Bytes bytes = 0;                   // of their files
  std::vector<std::string> without;  // of each other layer with a dense MLP one sentence: why it has none
};
// nullopt for a store without bundles.  REQUIRES: `manifest` is complete
std::optional<BundleSummary> SummaryOf(const StoreManifest& manifest);

// Whether the store in this folder has bundles, or has begun to get them. False if the folder is no store,
// or its manifest cannot be read.
bool HasBundles(const std::string& store_dir);

struct PrepareReport {
  int64_t layers = 0;
  int64_t files = 0;
  Bytes bytes = 0;            // of all files of the store
  int64_t kept_files = 0;     // files of an earlier call that were not written again
  bool was_complete = false;  // true: the store was complete already, and nothing was written
  std::optional<BundleSummary> bundles;
};

// Writes the block store of the checkpoint in `source_dir` into `store_dir`, and makes that folder
// if it is missing. It continues what an earlier call left there. It refuses the store of another
// model, and a folder that holds anything else. It writes a damaged file of the wrong size again.
// The manifest is written last; until then Checkpoint::Open refuses the folder. A store that is
// complete but for its bundles is usable while they are written. InvalidArgument if bundles are asked
// for and the model has no form of ReLU, or a layer has another number of neurons than
// `bundle_places`. One call at a time for each folder.
absl::StatusOr<PrepareReport> PrepareBlockStore(const std::string& source_dir, const std::string& store_dir,
                                                const PrepareOptions& options = {});

struct VerifyReport {
  int64_t layers = 0;
  int64_t files = 0;
  Bytes bytes = 0;
  std::optional<BundleSummary> bundles;
};

// Reads every byte of the store, past the page cache if the file system can, and compares the
// checksums. The first difference is kDataLoss. It names file, block and the offsets of the range
// that differs.
absl::StatusOr<VerifyReport> VerifyBlockStore(const std::string& store_dir, const LoadOptions& options = {});

}  // namespace lime
