#include "daemon/stores/block_store_layout.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/plan/model/block_parts.h"

namespace lime {
namespace {

constexpr Bytes kTensorAlignment = 64;  // a cache line, so that rows of vectors begin on one

class FileBuilder {
 public:
  FileBuilder(const Checkpoint& source, std::string stem) : source_(source), stem_(std::move(stem)) {}

  // Data offset of the next tensor.
  int64_t end() const { return end_; }

  void AlignTo(Bytes alignment) {
    const Bytes hole = RoundUp(end_, alignment) - end_;
    if (hole > 0) Add({absl::StrCat(kStorePadPrefix, stem_, ".", pads_++), DType::kU8, {hole}}, hole, std::nullopt);
  }

  void Put(const std::string& name) { Put(name, source_.index().find(name)->second, source_.location(name)); }

  void Put(const std::string& name, const TensorInfo& info, const TensorLocation& source) {
    AlignTo(kTensorAlignment);
    Add({name, info.dtype, info.shape}, info.bytes, source);
  }

  void AddBlock(BlockId id, int64_t begin, int64_t end) { file_.blocks.push_back({id, begin, end - begin, 0}); }

  // Adds the tensors of a block, padded to whole pages: those of the source, each once, and of stacks
  // the matrix of each expert.
  void PutBlock(const ModelSpec& spec, const BlockSpec& block) {
    const int64_t begin = end_;
    std::set<std::string_view> put;
    for (const TensorSpec& tensor : block.tensors) {
      const std::string apart = NameApart(spec, block.id, tensor);
      if (apart != tensor.name) {
        Put(apart, tensor.info, source_.location(tensor));
      } else if (put.insert(tensor.name).second) {
        Put(tensor.name);
      }
    }
    AlignTo(kStoreAlignment);
    AddBlock(block.id, begin, end_);
  }

  StoreFileLayout Finish() {
    file_.name = stem_ + ".safetensors";
    std::vector<SafetensorsWriter::Tensor> tensors;
    for (const StoreTensor& tensor : file_.tensors) tensors.push_back(tensor.tensor);
    file_.header = SafetensorsHeaderBytes(tensors, {.alignment = kStoreAlignment});
    for (StoredBlock& block : file_.blocks) block.offset += static_cast<int64_t>(file_.header.size());
    file_.bytes = static_cast<Bytes>(file_.header.size()) + end_;
    return std::move(file_);
  }

 private:
  void Add(SafetensorsWriter::Tensor tensor, Bytes bytes, std::optional<TensorLocation> at) {
    file_.tensors.push_back({std::move(tensor), bytes, at});
    end_ += bytes;
  }

  const Checkpoint& source_;
  const std::string stem_;
  StoreFileLayout file_;
  int64_t end_ = 0;
  int pads_ = 0;
};

// The checkpoint's tensors of the block, each once.
std::vector<std::string> NamesOf(const BlockSpec& block) {
  std::vector<std::string> names;
  for (const TensorSpec& tensor : block.tensors) {
    if (std::ranges::find(names, tensor.name) == names.end()) names.push_back(tensor.name);
  }
  return names;
}

// Embedding and head. Tensors that both use lie in the middle. So each block is one range, although
// the shared bytes exist once.
void PutEnds(FileBuilder& builder, const ModelSpec& spec) {
  const BlockId embedding{BlockKind::kEmbedding, 0}, head{BlockKind::kHead, 0};
  const std::vector<std::string> in_embedding = NamesOf(spec.block(embedding)), in_head = NamesOf(spec.block(head));
  const auto holds = [](const std::vector<std::string>& names, const std::string& name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const std::string& name : in_embedding) {
    if (!holds(in_head, name)) builder.Put(name);
  }
  builder.AlignTo(kStoreAlignment);
  const int64_t head_begin = builder.end();
  for (const std::string& name : in_embedding) {
    if (holds(in_head, name)) builder.Put(name);
  }
  builder.AddBlock(embedding, 0, RoundUp(builder.end(), kStoreAlignment));
  for (const std::string& name : in_head) {
    if (!holds(in_embedding, name)) builder.Put(name);
  }
  builder.AlignTo(kStoreAlignment);
  builder.AddBlock(head, head_begin, builder.end());
}

using ByteRanges = std::set<std::pair<int64_t, Bytes>>;  // offset and length

// Where a tensor of a block begins in the file.
int64_t OffsetOf(const std::map<std::string, int64_t>& offsets, const ModelSpec& spec, BlockId block, const TensorSpec& tensor) {
  const std::string apart = NameApart(spec, block, tensor);
  return apart != tensor.name ? offsets.at(apart) : offsets.at(tensor.name) + tensor.offset;
}

// Adds the ranges of a block: of its pinned tensors all bytes, of the others the rows in each part.
void AddRanges(const ModelSpec& spec, const BlockSpec& block, const std::map<std::string, int64_t>& offsets, ByteRanges& ranges) {
  for (const TensorSpec& tensor : block.tensors) {
    if (IsPinned(tensor)) ranges.insert({OffsetOf(offsets, spec, block.id, tensor), tensor.info.bytes});
  }
  for (const BlockPart& part : CutBlock(block)) {
    for (const MatrixRows& rows : part.rows) {
      for (const TensorSpec& tensor : block.OfExpert(rows.expert)) {
        if (tensor.role != rows.role || IsPinned(tensor)) continue;
        const Bytes row_bytes = tensor.info.bytes / tensor.info.shape[0];
        ranges.insert({OffsetOf(offsets, spec, block.id, tensor) + rows.begin * row_bytes, (rows.end - rows.begin) * row_bytes});
      }
    }
  }
}

// Where each tensor begins in the file.
std::map<std::string, int64_t> OffsetsOf(const StoreFileLayout& file) {
  std::map<std::string, int64_t> offsets;
  int64_t end = static_cast<int64_t>(file.header.size());
  for (const StoreTensor& tensor : file.tensors) {
    offsets[tensor.tensor.name] = end;
    end += tensor.bytes;
  }
  return offsets;
}

// The ranges of all blocks in the file.
std::vector<StoredRange> RangesOf(const StoreFileLayout& file, const ModelSpec& spec) {
  const std::map<std::string, int64_t> offsets = OffsetsOf(file);
  ByteRanges ranges;
  for (const StoredBlock& stored : file.blocks) {
    AddRanges(spec, spec.block(stored.id), offsets, ranges);
  }
  std::vector<StoredRange> stored;
  for (const auto& [offset, bytes] : ranges) stored.push_back({offset, bytes, 0});
  return stored;
}

// The tables in which the embedding looks up tokens.
std::vector<StoredRows> RowsOf(const StoreFileLayout& file, const ModelSpec& spec) {
  const std::map<std::string, int64_t> offsets = OffsetsOf(file);
  std::vector<StoredRows> tables;
  for (const TensorSpec& tensor : spec.block({BlockKind::kEmbedding, 0}).tensors) {
    if (tensor.role != TensorRole::kTokenEmbedding || IsPinned(tensor)) continue;
    const int64_t rows = tensor.info.shape[0];
    tables.push_back({offsets.at(tensor.name) + tensor.offset, tensor.info.bytes / rows, std::vector<uint32_t>(static_cast<size_t>(rows))});
  }
  return tables;
}

}  // namespace

std::vector<StoreFileLayout> LayOutStore(const Checkpoint& source, const ModelSpec& spec) {
  std::vector<StoreFileLayout> files;
  std::set<std::string> used;
  for (const BlockSpec& block : spec.blocks) {
    for (const TensorSpec& tensor : block.tensors) used.insert(tensor.name);
  }
  for (int32_t layer = 0; layer < spec.config.num_layers(); ++layer) {
    FileBuilder builder(source, absl::StrFormat("layer_%04d", layer));
    for (const BlockSpec& block : spec.blocks) {
      if (IsLayered(block.id.kind) && block.id.layer == layer) builder.PutBlock(spec, block);
    }
    files.push_back(builder.Finish());
  }
  FileBuilder builder(source, "non_layer");
  PutEnds(builder, spec);
  for (const auto& [name, info] : source.index()) {
    if (!used.contains(name)) builder.Put(name);
  }
  files.push_back(builder.Finish());
  for (StoreFileLayout& file : files) file.ranges = RangesOf(file, spec);
  files.back().rows = RowsOf(files.back(), spec);
  return files;
}

bool SameShape(const StoredFile& stored, const StoreFileLayout& layout) {
  StoredFile bare = stored;
  bare.xxh3 = 0;
  for (StoredBlock& block : bare.blocks) block.xxh3 = 0;
  for (StoredRange& range : bare.ranges) range.xxh3 = 0;
  for (StoredRows& table : bare.rows) std::ranges::fill(table.xxh3, 0u);
  return bare == static_cast<const StoredFile&>(layout);
}

}  // namespace lime
