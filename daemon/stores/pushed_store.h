// The receiving end of a push: writes offered blocks into a pushed store (held_blocks.h), and knows
// which are there already.
//
//   ROOT/1f3c0d5e7a9b2468/     a folder for each model, named by its digest (pushed_models.h)
//
// A block is recorded as `begun` on the disk before its first byte is written, and as `held` after
// its last byte is synced. For a block that is begun, reading and comparing checksums finds which
// bytes are there. So a push that ends at any moment loses at most the unit that was being written.
// CheckOffer has checked each offer; names in it cannot lead out of the folder.
//
// Thread: one at a time. Calls may wait for the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/formats/hashing_reader.h"
#include "daemon/formats/held_blocks.h"
#include "daemon/formats/push_units.h"
#include "daemon/stores/block_store_disk.h"

namespace lime {

// The folder for pushed blocks of the model.
std::string PushedFolder(const std::string& root, uint64_t model);
// The same; empty if nothing was pushed.
std::string FindPushed(const std::string& root, uint64_t model);

class PushedStore {
 public:
  // Makes the folder, or takes over an existing one: blocks that are the same in both manifests
  // stay. FailedPrecondition while another process writes there; InvalidArgument if config, headers
  // and blocks are not a valid model. REQUIRES: `disk` outlives this object.
  static absl::StatusOr<std::unique_ptr<PushedStore>> Open(StoreDisk& disk, const std::string& root, const StoreOffer& offer);

  const std::string& dir() const { return dir_; }
  const std::vector<PushUnit>& units() const { return units_; }

  // Returns the units that are missing, ascending. Reads all blocks that are begun; with `check`
  // also the held ones. A held block that differs from its checksum becomes a begun one.
  using Progress = std::function<absl::Status(Bytes done, Bytes total)>;
  absl::StatusOr<std::vector<int32_t>> FindMissing(bool check, const Progress& progress);

  // The offered blocks that overlap these units.
  std::vector<BlockId> BlocksOf(std::span<const int32_t> units) const;
  // Call before the first Write: `units` will be written, in this order. ResourceExhausted, with
  // the numbers, if the disk is too small for them.
  absl::Status Begin(std::vector<int32_t> units);
  // Writes the next bytes of the current unit, in order.
  absl::Status Write(std::span<const std::byte> data);
  // Call after the last byte of a unit. Returns whether it matches its checksum. If so, the next
  // unit follows, and blocks that are now complete become held. If not, the same unit must be
  // written again from its beginning.
  absl::StatusOr<bool> EndUnit();

  bool done() const { return next_ == missing_.size(); }
  const HeldBlocks& held() const { return held_; }

 private:
  PushedStore(StoreDisk& disk, std::string dir, const StoreOffer& offer);
  absl::Status Lock();
  absl::Status Adopt(const StoreOffer& offer);
  absl::Status WriteFiles(const StoreOffer& offer);
  absl::Status WriteText(std::string_view name, const std::string& text);
  absl::Status CheckModel() const;
  HeldBlocks Survivors(const StoreManifest& manifest, uint64_t manifest_hash) const;
  absl::Status Hash(const PlacedBlock& block, HashingReader& reader, const HashingReader::Progress& progress);
  absl::Status Move(const PlacedBlock& placed, bool whole);
  void List(BlockId id, std::vector<BlockId>& list);
  absl::Status HoldWhole();
  absl::Status OpenFile(int32_t file);
  absl::Status Record();
  std::string Path(std::string_view name) const;
  const PushUnit& unit() const { return units_[static_cast<size_t>(missing_[next_])]; }

  StoreDisk& disk_;
  const std::string dir_;
  const StoreManifest manifest_;
  std::vector<PlacedBlock> blocks_;  // blocks of the offer
  std::vector<PushUnit> units_;
  FileDescriptor lock_;
  HeldBlocks held_;
  // By file: the bytes that were found to be correct.
  std::vector<ByteSet> intact_;

  std::vector<int32_t> missing_;  // units to write
  size_t next_ = 0;               // index into missing_
  int64_t written_ = 0;           // bytes of that unit
  Xxh3 hash_;                     // of those bytes
  FileDescriptor file_;
  int32_t open_ = -1;  // index of the open file; -1: none
  WriteBehind behind_;
};

}  // namespace lime
