#include "daemon/formats/hashing_reader.h"

#include <algorithm>
#include <deque>
#include <memory>

#include "absl/synchronization/notification.h"
#include "daemon/machine/block_reader.h"

namespace lime {
namespace {

constexpr Bytes kChunkBytes = 4 * kMiB;
constexpr int64_t kBuffers = 4;

// Hashes one part of one file.
class Pass {
 public:
  Pass(int64_t begin, const StoredFile& shape, const HugeBuffer& buffers, std::unique_ptr<BlockDevice> device)
      : begin_(begin), shape_(shape), buffers_(buffers), hashes_(shape), reader_(std::move(device), BlockReader::Options()) {}

  absl::StatusOr<StoredFile> Run(const HashingReader::Progress& progress) {
    while (started_ < shape_.bytes && static_cast<int64_t>(reads_.size()) < kBuffers) StartNext();
    for (int64_t at = 0; at < shape_.bytes; at += kChunkBytes) {
      Read& read = *reads_.front();
      read.done.WaitForNotification();
      LIME_RETURN_IF_ERROR(read.status);
      hashes_.Add({Buffer(at), static_cast<size_t>(ChunkBytes(at))});
      reads_.pop_front();
      if (started_ < shape_.bytes) StartNext();
      LIME_RETURN_IF_ERROR(progress(ChunkBytes(at)));
    }
    return hashes_.Finish(shape_.name);
  }

 private:
  struct Read {
    absl::Notification done;
    absl::Status status;
  };

  std::byte* Buffer(int64_t at) const { return buffers_.data() + at / kChunkBytes % kBuffers * kChunkBytes; }
  Bytes ChunkBytes(int64_t at) const { return std::min(kChunkBytes, shape_.bytes - at); }

  void StartNext() {
    auto read = std::make_shared<Read>();
    reads_.push_back(read);
    reader_.StartRead({0, begin_ + started_, ChunkBytes(started_)}, Buffer(started_), [read](absl::Status status) {
      read->status = std::move(status);
      read->done.Notify();
    });
    started_ += kChunkBytes;
  }

  const int64_t begin_;
  const StoredFile& shape_;
  const HugeBuffer& buffers_;
  FileHashes hashes_;
  int64_t started_ = 0;
  std::deque<std::shared_ptr<Read>> reads_;
  // Last member: its reads end before the memory that they fill is released.
  BlockReader reader_;
};

}  // namespace

absl::StatusOr<HashingReader> HashingReader::Create() {
  LIME_ASSIGN_OR_RETURN(HugeBuffer buffers, HugeBuffer::Allocate(kChunkBytes * kBuffers));
  return HashingReader(std::move(buffers));
}

absl::StatusOr<StoredFile> HashingReader::Hash(const std::string& path, int64_t begin, const StoredFile& shape, const Progress& progress) {
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<BlockDevice> device, OpenBlockDevice({path}, BlockDeviceOptions()));
  return Pass(begin, shape, buffers_, std::move(device)).Run(progress);
}

}  // namespace lime
