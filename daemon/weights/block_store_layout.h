// Which files a block store has, and where every tensor and block lies in them. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/weights/block_store_manifest.h"
#include "daemon/weights/checkpoint.h"
#include "daemon/weights/safetensors_writer.h"
#include "planner/plan/model_spec.h"

namespace lime {

struct StoreTensor {
  SafetensorsWriter::Tensor tensor;
  Bytes bytes = 0;
  std::optional<TensorLocation> source;  // none: zeros that fill a hole
};

struct StoreBlockRange {
  BlockId id;
  int64_t offset = 0;  // in the file; a multiple of 4 KiB, as is `bytes`
  Bytes bytes = 0;
};

// What streaming reads at once.
struct StoreByteRange {
  int64_t offset = 0;
  Bytes bytes = 0;

  friend auto operator<=>(const StoreByteRange&, const StoreByteRange&) = default;
};

// A table of which streaming reads single rows.
struct StoreTable {
  int64_t offset = 0;
  Bytes row_bytes = 0;
  int64_t rows = 0;
};

// One safetensors file: the header, then the tensors without gaps.
struct StoreFileLayout {
  std::string name;
  std::string header;
  std::vector<StoreTensor> tensors;
  std::vector<StoreBlockRange> blocks;
  std::vector<StoreByteRange> ranges;  // ascending, no two the same
  std::vector<StoreTable> tables;
  Bytes bytes = 0;
};

// `layer_NNNN.safetensors` in order, then `non_layer.safetensors` with embedding, head and the tensors that no block uses. Every block
// begins and ends on 4 KiB, every tensor begins on 64 bytes. A tied output is the end of the embedding and the beginning of the head.
std::vector<StoreFileLayout> LayOutStore(const Checkpoint& source, const ModelSpec& spec);

// What the manifest says of such a file, but for the checksums.
StoredFile ShapeOf(const StoreFileLayout& layout);
// Whether the manifest speaks of such a file.
bool SameShape(const StoredFile& stored, const StoreFileLayout& layout);

}  // namespace lime
