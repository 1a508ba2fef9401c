#include "daemon/stores/pushed_store.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sampling/logits_hash.h"
#include "daemon/weights/checkpoint.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

// The block's shape as if it lay in a file of its own.
StoredFile ShapeOf(const PlacedBlock& placed, const StoredFile& file) {
  const StoredBlock& block = placed.block;
  StoredFile shape{.name = file.name, .bytes = block.bytes, .blocks = {block}};
  shape.blocks[0].offset = 0;
  for (const StoredRange& range : file.ranges) {
    if (range.offset >= block.offset && range.offset + range.bytes <= placed.end())
      shape.ranges.push_back({range.offset - block.offset, range.bytes, range.xxh3});
  }
  return shape;
}

}  // namespace

std::string PushedFolder(const std::string& root, uint64_t model) {
  return absl::StrCat(root, "/", HashText(model));
}

std::string FindPushed(const std::string& root, uint64_t model) {
  if (root.empty()) return "";
  std::string dir = PushedFolder(root, model);
  return FileExists(dir + "/" + kHeldBlocksName) ? dir : "";
}

PushedStore::PushedStore(StoreDisk& disk, std::string dir, const StoreOffer& offer)
    : disk_(disk), dir_(std::move(dir)), manifest_(offer.manifest), intact_(offer.manifest.files.size()) {}

std::string PushedStore::Path(std::string_view name) const {
  return absl::StrCat(dir_, "/", Text(name));
}

absl::StatusOr<std::unique_ptr<PushedStore>> PushedStore::Open(StoreDisk& disk, const std::string& root, const StoreOffer& offer) {
  LIME_RETURN_IF_ERROR(CheckOffer(offer));
  std::unique_ptr<PushedStore> store(new PushedStore(disk, PushedFolder(root, offer.manifest.source_xxh3), offer));
  LIME_ASSIGN_OR_RETURN(store->blocks_, PlaceBlocks(store->manifest_, offer.blocks));
  LIME_ASSIGN_OR_RETURN(store->units_, CutIntoUnits(store->manifest_, offer.blocks));
  LIME_RETURN_IF_ERROR(disk.MakeFolder(store->dir_));
  LIME_RETURN_IF_ERROR(store->Lock());
  LIME_RETURN_IF_ERROR(store->Adopt(offer));
  LIME_RETURN_IF_ERROR(store->CheckModel());
  return store;
}

absl::Status PushedStore::Lock() {
  lock_ = FileDescriptor(::open(dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_.valid()) return ErrnoStatus(errno, dir_, "open the folder");
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(dir_, ": another limed receives weights here; give each a --store of its own"));
}

// lime_store.held names the new manifest before that manifest is written. If the process ends
// between the two, the store says that its push was interrupted.
absl::Status PushedStore::Adopt(const StoreOffer& offer) {
  const std::string text = StoreManifestText(manifest_);
  held_ = Survivors(manifest_, ManifestTextHash(text));
  const absl::StatusOr<std::string> before = ReadTextFile(Path(kPushedManifestName), kMaxStoreManifestBytes);
  const bool same = before.ok() && *before == text;
  LIME_RETURN_IF_ERROR(Record());
  LIME_RETURN_IF_ERROR(WriteFiles(offer));
  return same ? absl::OkStatus() : WriteStoreText(disk_, Path(kPushedManifestName), text).status();
}

// The blocks that may stay. A block that cannot be trusted becomes `begun`: it is read and compared
// before it is used.
HeldBlocks PushedStore::Survivors(const StoreManifest& manifest, uint64_t manifest_hash) const {
  HeldBlocks survivors{.manifest_xxh3 = manifest_hash};
  const std::vector<BlockId> all = lime::BlocksOf(manifest);
  const absl::StatusOr<PushedManifest> found = ReadPushedManifest(dir_);
  if (!found.ok()) {
    if (FileExists(Path(kHeldBlocksName))) survivors.begun = all;
    return survivors;
  }
  const auto same = [&](BlockId id) {
    const auto now = PlaceBlocks(manifest, {&id, 1}), then = PlaceBlocks(found->manifest, {&id, 1});
    if (!now.ok() || !then.ok() || !(now->front().block == then->front().block)) return false;
    const StoredFile &now_file = manifest.files[static_cast<size_t>(now->front().file)],
                     &then_file = found->manifest.files[static_cast<size_t>(then->front().file)];
    return now_file.name == then_file.name && now_file.bytes == then_file.bytes && HasBytes(Path(now_file.name), now_file.bytes);
  };
  const bool unchanged = found->manifest == manifest;
  for (const BlockId id : all) {
    const bool was_held = found->held.Holds(id), was_begun = std::ranges::find(found->held.begun, id) != found->held.begun.end();
    if (was_held && same(id)) {
      survivors.held.push_back(id);
    } else if (was_held || was_begun || !unchanged) {
      survivors.begun.push_back(id);
    }
  }
  return survivors;
}

absl::Status PushedStore::WriteFiles(const StoreOffer& offer) {
  for (size_t i = 0; i < manifest_.files.size(); ++i) {
    const std::string path = Path(manifest_.files[i].name);
    LIME_ASSIGN_OR_RETURN(const FileDescriptor file, disk_.OpenSparse(path, manifest_.files[i].bytes));
    const auto header = std::as_bytes(std::span(offer.headers[i]));
    std::vector<std::byte> there(header.size());
    LIME_RETURN_IF_ERROR(ReadExactly(file, path, 0, there));
    if (!std::ranges::equal(there, header)) {
      LIME_RETURN_IF_ERROR(disk_.Write(file, path, 0, header));
      LIME_RETURN_IF_ERROR(disk_.Sync(file, path));
    }
  }
  LIME_RETURN_IF_ERROR(WriteText("config.json", offer.config_json));
  return WriteText(kPushedNameFile, offer.model);
}

absl::Status PushedStore::WriteText(std::string_view name, const std::string& text) {
  const absl::StatusOr<std::string> there = ReadTextFile(Path(name), kMaxOfferBytes);
  if (there.ok() && *there == text) return absl::OkStatus();
  return WriteStoreText(disk_, Path(name), text).status();
}

// Opens the model as an installation will open it.
absl::Status PushedStore::CheckModel() const {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::OpenPart(dir_));
  return checkpoint.BuildModelSpec().status();
}

absl::Status PushedStore::Record() {
  return WriteStoreText(disk_, Path(kHeldBlocksName), HeldBlocksText(held_)).status();
}

// ---- Finding the bytes that are there

absl::StatusOr<std::vector<int32_t>> PushedStore::FindMissing(bool check, const Progress& progress) {
  std::vector<PlacedBlock> to_read;
  Bytes total = 0, done = 0;
  for (const PlacedBlock& placed : blocks_) {
    const bool held = held_.Holds(placed.block.id);
    const bool begun = std::ranges::find(held_.begun, placed.block.id) != held_.begun.end();
    if (held && !check) intact_[static_cast<size_t>(placed.file)].Add(placed.block.offset, placed.end());
    if (begun || (held && check)) to_read.push_back(placed), total += placed.block.bytes;
  }
  if (!to_read.empty()) {
    const HeldBlocks before = held_;
    LIME_ASSIGN_OR_RETURN(HashingReader reader, HashingReader::Create());
    for (const PlacedBlock& placed : to_read) {
      LIME_RETURN_IF_ERROR(Hash(placed, reader, [&](Bytes bytes) { return progress(done += bytes, total); }));
    }
    if (!(held_ == before)) LIME_RETURN_IF_ERROR(Record());
  }
  std::vector<int32_t> missing;
  for (size_t i = 0; i < units_.size(); ++i) {
    const PushUnit& unit = units_[i];
    if (!intact_[static_cast<size_t>(unit.file)].Contains(unit.offset, unit.offset + unit.bytes))
      missing.push_back(static_cast<int32_t>(i));
  }
  return missing;
}

// Records which parts of the block are correct, and moves the block to `held` or `begun` if that
// changed.
absl::Status PushedStore::Hash(const PlacedBlock& placed, HashingReader& reader, const HashingReader::Progress& progress) {
  const StoredFile& file = manifest_.files[static_cast<size_t>(placed.file)];
  const StoredFile shape = ShapeOf(placed, file);
  LIME_ASSIGN_OR_RETURN(const StoredFile found, reader.Hash(Path(file.name), placed.block.offset, shape, progress));
  ByteSet& intact = intact_[static_cast<size_t>(placed.file)];
  const bool whole = found.blocks == shape.blocks;
  if (whole) intact.Add(placed.block.offset, placed.end());
  for (size_t i = 0; i < shape.ranges.size(); ++i) {
    const int64_t begin = placed.block.offset + shape.ranges[i].offset;
    if (found.ranges[i] == shape.ranges[i]) intact.Add(begin, begin + shape.ranges[i].bytes);
  }
  return whole == held_.Holds(placed.block.id) ? absl::OkStatus() : Move(placed, whole);
}

// Moves a block to the end of `list`: held_.held or held_.begun.
void PushedStore::List(BlockId id, std::vector<BlockId>& list) {
  std::erase(held_.held, id);
  std::erase(held_.begun, id);
  list.push_back(id);
}

// Syncs before a block becomes held, so a held block survives a power loss.
absl::Status PushedStore::Move(const PlacedBlock& placed, bool whole) {
  if (whole) {
    LIME_RETURN_IF_ERROR(OpenFile(placed.file));
    LIME_RETURN_IF_ERROR(disk_.Sync(file_, Path(manifest_.files[static_cast<size_t>(placed.file)].name)));
  }
  List(placed.block.id, whole ? held_.held : held_.begun);
  return absl::OkStatus();
}

std::vector<BlockId> PushedStore::BlocksOf(std::span<const int32_t> units) const {
  std::vector<BlockId> touched;
  for (const PlacedBlock& placed : blocks_) {
    const bool hit = std::ranges::any_of(units, [&](int32_t index) {
      const PushUnit& unit = units_[static_cast<size_t>(index)];
      return unit.file == placed.file && unit.offset < placed.end() && unit.offset + unit.bytes > placed.block.offset;
    });
    if (hit) touched.push_back(placed.block.id);
  }
  return touched;
}

// ---- Writing

absl::Status PushedStore::Begin(std::vector<int32_t> units) {
  missing_ = std::move(units);
  Bytes needed = 0;
  for (const int32_t index : missing_) needed += units_[static_cast<size_t>(index)].bytes;
  LIME_ASSIGN_OR_RETURN(const Bytes free, disk_.FreeBytes(dir_));
  if (needed > free) return DiskFull(dir_, needed, free);
  const HeldBlocks before = held_;
  open_ = -1;
  for (const BlockId id : BlocksOf(missing_)) List(id, held_.begun);
  if (!(held_ == before)) LIME_RETURN_IF_ERROR(Record());
  return HoldWhole();
}

absl::Status PushedStore::OpenFile(int32_t file) {
  if (file == open_) return absl::OkStatus();
  const StoredFile& stored = manifest_.files[static_cast<size_t>(file)];
  LIME_ASSIGN_OR_RETURN(file_, disk_.OpenSparse(Path(stored.name), stored.bytes));
  open_ = file;
  behind_ = {};
  return absl::OkStatus();
}

absl::Status PushedStore::Write(std::span<const std::byte> data) {
  LIME_CHECK(!done() && written_ + static_cast<Bytes>(data.size()) <= unit().bytes) << "unit " << next_ << " of " << missing_.size();
  LIME_RETURN_IF_ERROR(OpenFile(unit().file));
  hash_.Add(data);
  LIME_RETURN_IF_ERROR(disk_.Write(file_, Path(manifest_.files[static_cast<size_t>(open_)].name), unit().offset + written_, data));
  written_ += static_cast<Bytes>(data.size());
  return absl::OkStatus();
}

absl::StatusOr<bool> PushedStore::EndUnit() {
  LIME_CHECK_EQ(written_, unit().bytes) << "unit " << next_;
  const bool matches = !unit().xxh3 || hash_.value() == *unit().xxh3;
  written_ = 0;
  hash_ = Xxh3();
  if (!matches) return false;
  behind_.Wrote(file_, unit().offset, unit().offset + unit().bytes);
  intact_[static_cast<size_t>(unit().file)].Add(unit().offset, unit().offset + unit().bytes);
  ++next_;
  LIME_RETURN_IF_ERROR(HoldWhole());
  return true;
}

// Makes complete blocks held: the blocks of the open file, or of all files if none is open.
absl::Status PushedStore::HoldWhole() {
  std::vector<BlockId> whole;
  for (const PlacedBlock& placed : blocks_) {
    if (open_ >= 0 && placed.file != open_) continue;
    const bool here = intact_[static_cast<size_t>(placed.file)].Contains(placed.block.offset, placed.end());
    if (here && !held_.Holds(placed.block.id)) whole.push_back(placed.block.id);
  }
  if (whole.empty()) return absl::OkStatus();
  if (open_ >= 0) LIME_RETURN_IF_ERROR(disk_.Sync(file_, Path(manifest_.files[static_cast<size_t>(open_)].name)));
  for (const BlockId id : whole) List(id, held_.held);
  return Record();
}

}  // namespace lime
