#include <algorithm>
#include <deque>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "daemon/weights/block_reader.h"
#include "daemon/weights/block_store.h"
#include "daemon/weights/huge_buffer.h"

namespace lime {
namespace {

constexpr Bytes kChunkBytes = 4 * kMiB;
constexpr size_t kSlots = 4;

// "block mlp 3", by where [begin, end) lies in a file; of several blocks the first that is among `suspects`.
std::string PlaceOf(const StoredFile& file, int64_t begin, int64_t end, const std::vector<bool>& suspects) {
  for (size_t i = 0; i < file.blocks.size(); ++i) {
    const StoredBlock& block = file.blocks[i];
    if (suspects[i] && end > block.offset && begin < block.offset + block.bytes) return "block " + BlockName(block.id);
  }
  return file.blocks.empty() ? "the file" : "its header or a tensor of no block";
}

absl::Status CheckSize(const StoredFile& file, const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor opened, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const Bytes bytes, FileBytes(opened, path));
  if (bytes == file.bytes) return absl::OkStatus();
  const int64_t first = std::min(bytes, file.bytes);
  return absl::DataLossError(absl::StrCat(path, ": has ", bytes, " bytes where the manifest says ", file.bytes, ", so ",
                                          PlaceOf(file, first, first + 1, std::vector<bool>(file.blocks.size(), true)),
                                          " differs from offset ", first, "; run `lime prepare` again, it writes the file anew"));
}

// Reads one file ahead of the hashing.
class FileVerifier {
 public:
  FileVerifier(const StoredFile& file, std::string path, HugeBuffer& slots, std::unique_ptr<BlockDevice> device)
      : file_(file),
        path_(std::move(path)),
        slots_(slots),
        hashes_(file.blocks, file.ranges),
        reader_(std::move(device), BlockReader::Options()) {}

  template <typename Progress>
  absl::Status Run(const Progress& progress) {
    while (started_ < file_.bytes && reads_.size() < kSlots) StartNext();
    for (int64_t at = 0; at < file_.bytes; at += kChunkBytes) {
      Read& read = *reads_.front();
      read.done.WaitForNotification();
      LIME_RETURN_IF_ERROR(read.status);
      hashes_.Add({Slot(at), static_cast<size_t>(ChunkBytes(at))});
      reads_.pop_front();
      if (started_ < file_.bytes) StartNext();
      LIME_RETURN_IF_ERROR(progress(ChunkBytes(at)));
    }
    return CheckWhole();
  }

 private:
  struct Read {
    absl::Notification done;
    absl::Status status;
  };

  std::byte* Slot(int64_t offset) const { return slots_.data() + offset / kChunkBytes % static_cast<int64_t>(kSlots) * kChunkBytes; }
  Bytes ChunkBytes(int64_t offset) const { return std::min(kChunkBytes, file_.bytes - offset); }

  void StartNext() {
    auto read = std::make_shared<Read>();
    reads_.push_back(read);
    reader_.StartRead({0, started_, ChunkBytes(started_)}, Slot(started_), [read](absl::Status status) {
      read->status = std::move(status);
      read->done.Notify();
    });
    started_ += kChunkBytes;
  }

  // The whole file has been hashed: its ranges, else its blocks, tell where it differs.
  absl::Status CheckWhole() {
    const StoredFile found = hashes_.Finish(file_.name);
    if (found == file_) return absl::OkStatus();
    std::vector<bool> differ;
    for (size_t i = 0; i < found.blocks.size(); ++i) differ.push_back(found.blocks[i].xxh3 != file_.blocks[i].xxh3);
    const auto [begin, end] = FirstDifference(found);
    return absl::DataLossError(absl::StrCat(path_, ": ", PlaceOf(file_, begin, end, differ), " differs from its checksum between offsets ",
                                            begin, " and ", end, "; remove the file and run `lime prepare` again"));
  }

  // [begin, end) of the first range that differs; of the first block, where that is in no range; of the file, where it is in no block.
  std::pair<int64_t, int64_t> FirstDifference(const StoredFile& found) const {
    const auto range = std::ranges::mismatch(found.ranges, file_.ranges).in1;
    if (range != found.ranges.end()) return {range->offset, range->offset + range->bytes};
    const auto block = std::ranges::mismatch(found.blocks, file_.blocks).in1;
    if (block != found.blocks.end()) return {block->offset, block->offset + block->bytes};
    return {0, file_.bytes};
  }

  const StoredFile& file_;
  const std::string path_;
  HugeBuffer& slots_;
  FileHashes hashes_;
  int64_t started_ = 0;
  std::deque<std::shared_ptr<Read>> reads_;
  BlockReader reader_;  // last: its reads end before what they fill goes
};

}  // namespace

absl::StatusOr<VerifyReport> VerifyBlockStore(const std::string& store_dir, const LoadOptions& options) {
  LIME_ASSIGN_OR_RETURN(const StoreManifest manifest, ReadStoreManifest(store_dir));
  for (const StoredFile& file : manifest.files) LIME_RETURN_IF_ERROR(CheckSize(file, store_dir + "/" + file.name));
  LIME_ASSIGN_OR_RETURN(HugeBuffer slots, HugeBuffer::Allocate(kChunkBytes * static_cast<Bytes>(kSlots)));
  LoadWatcher watcher(options, manifest.bytes());
  Bytes done = 0;
  const auto progress = [&](Bytes bytes) {
    watcher.Report(done += bytes);
    return watcher.cancelled() ? absl::CancelledError(store_dir + ": verifying was interrupted") : absl::OkStatus();
  };
  for (const StoredFile& file : manifest.files) {
    const std::string path = store_dir + "/" + file.name;
    LIME_ASSIGN_OR_RETURN(auto device, OpenBlockDevice({path}, BlockDeviceOptions()));
    LIME_RETURN_IF_ERROR(FileVerifier(file, path, slots, std::move(device)).Run(progress));
  }
  watcher.Finish();
  return VerifyReport{manifest.layers, static_cast<int64_t>(manifest.files.size()), manifest.bytes()};
}

}  // namespace lime
