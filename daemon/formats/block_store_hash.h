// XXH3-64 checksums of a file, its blocks, the ranges that streaming reads, and single rows of its
// tables, in one pass over its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "daemon/formats/block_store_manifest.h"

struct XXH3_state_s;

namespace lime {

class Xxh3 {
 public:
  Xxh3();
  void Add(std::span<const std::byte> bytes);
  uint64_t value() const;
  void Reset();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

class FileHashes {
 public:
  // `shape` says where blocks, ranges and tables of rows lie; its other fields are not read.
  // Blocks, ranges and tables may overlap.
  explicit FileHashes(StoredFile shape);

  // Bytes of the file, in order.
  void Add(std::span<const std::byte> bytes);
  // Returns all checksums. Call it once, after all bytes.
  StoredFile Finish(std::string name);

 private:
  // [begin, end) of the file; its checksum goes to `out`, an element of blocks_ or ranges_.
  struct Section {
    int64_t begin = 0;
    int64_t end = 0;
    uint64_t* out = nullptr;
    std::unique_ptr<Xxh3> hash = nullptr;  // not null while its bytes pass
  };
  // The row of a table that is being hashed.
  struct OpenRow {
    size_t row = 0;
    Xxh3 hash;
  };
  static void AddTo(Section& section, int64_t begin, std::span<const std::byte> bytes);
  static void AddTo(StoredRows& table, OpenRow& open, int64_t begin, std::span<const std::byte> bytes);

  Bytes done_ = 0;
  Xxh3 file_;
  std::unique_ptr<StoredFile> out_;  // on the heap: sections_ point into it when this moves
  std::vector<Section> sections_;    // by `begin`
  size_t first_ = 0;                 // sections before it have passed
  std::vector<OpenRow> open_rows_;   // by table
};

}  // namespace lime
