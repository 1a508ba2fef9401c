// XXH3-64 checksums of a file, of its blocks and of the ranges that streaming reads, in one pass over its bytes.
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
  // Of blocks and ranges only offset and length are read; they may overlap.
  FileHashes(std::vector<StoredBlock> blocks, std::vector<StoredRange> ranges);

  // Bytes of the file, in order.
  void Add(std::span<const std::byte> bytes);
  // Everything that was hashed. Once, after all bytes.
  StoredFile Finish(std::string name);

 private:
  // [begin, end) of the file; its checksum goes to `out`, an element of blocks_ or ranges_.
  struct Section {
    int64_t begin = 0;
    int64_t end = 0;
    uint64_t* out = nullptr;
    std::unique_ptr<Xxh3> hash = nullptr;  // while its bytes pass
  };
  static void AddTo(Section& section, int64_t begin, std::span<const std::byte> bytes);

  Bytes done_ = 0;
  Xxh3 file_;
  std::vector<StoredBlock> blocks_;
  std::vector<StoredRange> ranges_;
  std::vector<Section> sections_;  // by `begin`
  size_t first_ = 0;               // sections before it have passed
};

}  // namespace lime
