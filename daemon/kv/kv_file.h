// The file for KV that does not fit in a device's memory. It has a place for every 256-position
// piece of every layer and sequence.
//
// It has no name, so it disappears when the process ends. Reads and writes bypass the page cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/machine/block_reader.h"
#include "daemon/machine/files.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// Thread: one writes; StartRead and bytes_read from any. Completions run on the reader's thread.
class KvFile {
 public:
  struct Shape {
    int64_t layers = 0;
    int64_t sequences = 0;
    int64_t pieces = 0;     // of a sequence
    Bytes piece_bytes = 0;  // of one layer; a multiple of 4 KiB
    Bytes bytes() const { return layers * sequences * pieces * piece_bytes; }
  };

  // Creates the file in `folder`. FailedPrecondition if no file can be created there.
  // ResourceExhausted if the disk has no room for all of it.
  static absl::StatusOr<std::unique_ptr<KvFile>> Create(
      const std::string& folder, const Shape& shape,
      const std::function<std::unique_ptr<BlockDevice>(std::unique_ptr<BlockDevice>)>& wrap_device = {});

  // `data`: piece_bytes long, aligned to 4 KiB.
  absl::Status Write(int64_t layer, int64_t sequence, int64_t piece, const std::byte* data);

  // Starts reading `count` consecutive pieces from `first` into `place`, aligned to 4 KiB.
  // REQUIRES: `place` lives until `done` is called
  void StartRead(int64_t layer, int64_t sequence, int64_t first, int64_t count, std::byte* place, BlockReader::Completion done);

  // Reads one piece and waits for it. Reads it again if its checksum is not `hash`; DataLoss if it
  // stays wrong. `place` as for StartRead.
  absl::Status Read(int64_t layer, int64_t sequence, int64_t piece, uint64_t hash, std::byte* place);

  // Checksum of the piece that was written here last. Used by the owner, under its lock.
  uint64_t& hash(int64_t layer, int64_t sequence, int64_t piece) { return hashes_[static_cast<size_t>(Index(layer, sequence, piece))]; }
  uint64_t HashOf(const std::byte* data) const;

  // Runs `task` on the reader's thread.
  void Post(std::function<void()> task) { reader_->Post(std::move(task)); }

  void Cancel() { reader_->Cancel(); }
  Bytes bytes_read() const { return reader_->bytes_read(); }
  // Free bytes on the disk beyond what this file may still use. Nothing: not known.
  // Thread: any
  std::optional<Bytes> Room() const;

 private:
  KvFile(const std::string& folder, const std::string& name, const Shape& shape, FileDescriptor file, std::unique_ptr<BlockReader> reader)
      : folder_(folder),
        name_(name),
        shape_(shape),
        file_(std::move(file)),
        reader_(std::move(reader)),
        hashes_(static_cast<size_t>(Index(shape.layers, 0, 0))) {}
  int64_t Index(int64_t layer, int64_t sequence, int64_t piece) const {
    return (layer * shape_.sequences + sequence) * shape_.pieces + piece;
  }

  const std::string folder_;
  const std::string name_;  // for messages
  const Shape shape_;
  const FileDescriptor file_;
  const std::unique_ptr<BlockReader> reader_;
  std::vector<uint64_t> hashes_;  // [layer, sequence, piece]
};

}  // namespace lime
