// The sending end of a push: offers a model as the block store that `lime prepare` would make of
// it. The store need not exist on the disk.
//
// Immutable after Open; Read from any thread.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/formats/block_store_manifest.h"
#include "daemon/formats/push_units.h"
#include "daemon/machine/files.h"
#include "daemon/stores/block_store_layout.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/loader.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

class StoreSource {
 public:
  // Takes checksums from the manifest of a prepared store. For any other folder it reads all
  // weights once and computes them.
  static absl::StatusOr<std::unique_ptr<StoreSource>> Open(const std::string& model_dir, const LoadOptions& watch = {});

  const StoreManifest& manifest() const { return manifest_; }  // lists weight files only
  const ModelSpec& spec() const { return spec_; }
  StoreOffer OfferOf(std::vector<BlockId> blocks, bool check) const;

  // Reads bytes of manifest().files[file], from `offset`.
  absl::Status Read(int32_t file, int64_t offset, std::span<std::byte> out) const;

 private:
  StoreSource(Checkpoint checkpoint, ModelSpec spec);
  absl::Status OpenFiles();
  absl::Status ReadManifest();
  absl::Status MakeManifest(const LoadOptions& watch);
  absl::Status ReadTensor(const StoreTensor& tensor, int64_t begin, std::span<std::byte> out) const;

  const Checkpoint checkpoint_;
  const ModelSpec spec_;
  std::vector<StoreFileLayout> layouts_;      // by file of the manifest
  std::vector<std::vector<int64_t>> begins_;  // file offsets of each layout's tensors, then its end
  std::vector<FileDescriptor> files_;         // of the checkpoint
  StoreManifest manifest_;
};

}  // namespace lime
