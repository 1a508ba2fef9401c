// The files of a block store, and the place of every tensor and block in them. Pure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/formats/block_store_manifest.h"
#include "daemon/stores/safetensors_writer.h"
#include "daemon/weights/checkpoint.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

struct StoreTensor {
  SafetensorsWriter::Tensor tensor;
  Bytes bytes = 0;
  std::optional<TensorLocation> source;  // none: zeros that fill a hole
};

// One safetensors file: the header, then the tensors without gaps. The base has everything that the
// manifest says of the file except the checksums.
struct StoreFileLayout : StoredFile {
  std::string header;
  std::vector<StoreTensor> tensors;
};

// `layer_NNNN.safetensors` in order, then `non_layer.safetensors` with embedding, head and the
// tensors that no block uses. Every block begins and ends on 4 KiB, every tensor begins on 64
// bytes. Experts that the source stores in stacks get tensors of their own (NameApart), in order of
// use: an expert's bytes are one range. A tied output matrix is the end of the embedding block and the beginning of the head
// block.
std::vector<StoreFileLayout> LayOutStore(const Checkpoint& source, const ModelSpec& spec);

// True if `stored` has the same name, size, blocks, ranges and rows as `layout`.
bool SameShape(const StoredFile& stored, const StoreFileLayout& layout);

}  // namespace lime
