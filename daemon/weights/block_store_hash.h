// XXH3-64 checksums of a file, of its pieces and of its blocks, in one pass over its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "daemon/weights/block_store_manifest.h"

struct XXH3_state_s;

namespace lime {

class Xxh3 {
 public:
  Xxh3();
  void Add(std::span<const std::byte> bytes);
  uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

class FileHashes {
 public:
  // Of the blocks only the ranges are read.
  explicit FileHashes(const std::vector<StoredBlock>& blocks);

  // Bytes of the file, in order.
  void Add(std::span<const std::byte> bytes);
  // Of the whole pieces added so far.
  const std::vector<uint64_t>& pieces() const { return pieces_; }
  // Ends the last piece and fills in all that was hashed. Once.
  StoredFile Finish(std::string name);

 private:
  void AddToPieces(std::span<const std::byte> bytes);

  Bytes done_ = 0;
  Xxh3 file_;
  std::unique_ptr<Xxh3> piece_;
  Bytes piece_bytes_ = 0;
  std::vector<uint64_t> pieces_;
  std::vector<StoredBlock> blocks_;
  std::vector<Xxh3> block_hashes_;
};

}  // namespace lime
