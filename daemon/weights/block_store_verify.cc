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

constexpr Bytes kChunkBytes = 4 * kMiB;  // whole pieces
constexpr size_t kSlots = 4;

// "block mlp 3", by where an offset lies in a file.
std::string PlaceOf(const StoredFile& file, int64_t begin, int64_t end) {
  for (const StoredBlock& block : file.blocks) {
    if (end > block.offset && begin < block.offset + block.bytes) return "block " + BlockName(block.id);
  }
  return file.blocks.empty() ? "the file" : "its header or the tensors of no block";
}

absl::Status Differs(const StoredFile& file, const std::string& path, int64_t begin, int64_t end) {
  return absl::DataLossError(absl::StrCat(path, ": ", PlaceOf(file, begin, end), " differs from its checksum between offsets ", begin,
                                          " and ", end, "; remove the file and run `lime prepare` again"));
}

absl::Status CheckSize(const StoredFile& file, const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const FileDescriptor opened, OpenForReading(path));
  LIME_ASSIGN_OR_RETURN(const Bytes bytes, FileBytes(opened, path));
  if (bytes == file.bytes) return absl::OkStatus();
  const int64_t first = std::min(bytes, file.bytes);
  return absl::DataLossError(absl::StrCat(path, ": has ", bytes, " bytes where the manifest says ", file.bytes, ", so ",
                                          PlaceOf(file, first, first + 1), " differs from offset ", first,
                                          "; run `lime prepare` again, it writes the file anew"));
}

// Reads one file ahead of the hashing.
class FileVerifier {
 public:
  FileVerifier(const StoredFile& file, std::string path, HugeBuffer& slots, std::unique_ptr<BlockDevice> device)
      : file_(file), path_(std::move(path)), slots_(slots), hashes_(file.blocks), reader_(std::move(device), BlockReader::Options()) {}

  template <typename Progress>
  absl::Status Run(const Progress& progress) {
    while (started_ < file_.bytes && reads_.size() < kSlots) StartNext();
    for (int64_t at = 0; at < file_.bytes; at += kChunkBytes) {
      Read& read = *reads_.front();
      read.done.WaitForNotification();
      LIME_RETURN_IF_ERROR(read.status);
      hashes_.Add({Slot(at), static_cast<size_t>(ChunkBytes(at))});
      LIME_RETURN_IF_ERROR(CheckPieces());
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

  absl::Status CheckPieces() {
    for (; checked_ < hashes_.pieces().size(); ++checked_) {
      if (hashes_.pieces()[checked_] != file_.pieces[checked_]) return PieceDiffers(checked_);
    }
    return absl::OkStatus();
  }

  absl::Status PieceDiffers(size_t piece) const {
    const int64_t begin = static_cast<int64_t>(piece) * kStorePieceBytes;
    return Differs(file_, path_, begin, std::min(begin + kStorePieceBytes, file_.bytes));
  }

  absl::Status CheckWhole() {
    const StoredFile found = hashes_.Finish(file_.name);
    if (checked_ < found.pieces.size() && found.pieces[checked_] != file_.pieces[checked_]) return PieceDiffers(checked_);
    for (size_t i = 0; i < found.blocks.size(); ++i) {
      const StoredBlock& block = file_.blocks[i];
      if (found.blocks[i].xxh3 != block.xxh3) return Differs(file_, path_, block.offset, block.offset + block.bytes);
    }
    return found.xxh3 == file_.xxh3 ? absl::OkStatus() : Differs(file_, path_, 0, file_.bytes);
  }

  const StoredFile& file_;
  const std::string path_;
  HugeBuffer& slots_;
  FileHashes hashes_;
  size_t checked_ = 0;  // pieces
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
