// The receiving end of a push: writes blocks that are offered into a pushed store (held_blocks.h), and knows which are there already.
//
//   ROOT/1f3c0d5e7a9b2468/     a folder for each model, named by its digest (pushed_models.h lists and removes them)
//
// A block is `begun` on the disk before its first byte is written and `held` after its last one is synced. Of a block that is begun, what
// is there is found by reading it and comparing checksums, so that an end at any moment costs no more than the unit it fell into. What is
// offered was checked (CheckOffer); names in it lead nowhere else.
//
// Thread: one at a time, which may wait for the disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "daemon/weights/block_store_disk.h"
#include "daemon/weights/hashing_reader.h"
#include "daemon/weights/held_blocks.h"
#include "daemon/weights/store_units.h"

namespace lime {

// Where what is pushed of the model lies.
std::string PushedFolder(const std::string& root, uint64_t model);
// Likewise; empty where nothing was pushed.
std::string FindPushed(const std::string& root, uint64_t model);

class PushedStore {
 public:
  // Makes the folder, or takes over the one that is there: blocks that are the same in both manifests stay. FailedPrecondition while
  // another process writes there; InvalidArgument where config, headers and blocks do not make up a model.  `disk` outlives this.
  static absl::StatusOr<std::unique_ptr<PushedStore>> Open(StoreDisk& disk, const std::string& root, const StoreOffer& offer);

  const std::string& dir() const { return dir_; }
  const std::vector<StoreUnit>& units() const { return units_; }

  // Units that are not there, ascending. Reads blocks that are begun, and with `check` those that are held, which are not held any more
  // where they differ from their checksum.
  using Progress = std::function<absl::Status(Bytes done, Bytes total)>;
  absl::StatusOr<std::vector<int32_t>> FindMissing(bool check, const Progress& progress);

  // Blocks that writing these units changes.
  std::vector<BlockId> BlocksOf(std::span<const int32_t> units) const;
  // Before the first Write: `units` will be written, in this order. ResourceExhausted, with the numbers, where the disk is too small for
  // them.
  absl::Status Begin(std::vector<int32_t> units);
  // Bytes of the unit that comes next, in order.
  absl::Status Write(std::span<const std::byte> data);
  // The unit is written: whether it is what its checksum says. If so the next one follows, and blocks that are whole now are held; if not
  // it is written again from its beginning.
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
  absl::Status HoldWhole();
  absl::Status OpenFile(int32_t file);
  absl::Status Record();
  std::string Path(std::string_view name) const;
  const StoreUnit& unit() const { return units_[static_cast<size_t>(missing_[next_])]; }

  StoreDisk& disk_;
  const std::string dir_;
  const StoreManifest manifest_;
  std::vector<PlacedBlock> blocks_;  // offered
  std::vector<StoreUnit> units_;
  FileDescriptor lock_;
  HeldBlocks held_;
  std::vector<ByteSet> intact_;  // by file: what was found to be there

  std::vector<int32_t> missing_;  // units to write
  size_t next_ = 0;               // of them
  int64_t written_ = 0;           // of that unit
  Xxh3 hash_;                     // of that
  FileDescriptor file_;
  int32_t open_ = -1;  // the file that it is
  WriteBehind behind_;
};

}  // namespace lime
