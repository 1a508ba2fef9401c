#include "daemon/weights/weight_store.h"

#include <xxhash.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "daemon/machine/files.h"
#include "daemon/machine/huge_buffer.h"
#include "daemon/machine/page_cache.h"
#include "daemon/machine/parallel.h"
#include "daemon/machine/system_memory.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr int kCacheSamples = 256;  // pages to sample, over all files

// Share of the files' bytes that are in the page cache.
double CachedShare(const Checkpoint& checkpoint) {
  double cached = 0, total = 0;
  const int samples = std::max<int>(8, kCacheSamples / static_cast<int>(std::max<size_t>(1, checkpoint.files().size())));
  for (const CheckpointFile& file : checkpoint.files()) {
    total += static_cast<double>(file.bytes);
    const absl::StatusOr<FileDescriptor> descriptor = OpenForReading(file.path);
    if (descriptor.ok()) cached += PageCacheView(*descriptor, file.bytes).CachedFraction(samples) * static_cast<double>(file.bytes);
  }
  return total > 0 ? cached / total : 0;
}

// A tensor in the buffer of a load. Its destructor returns the tensor's pages to the system, even
// if other tensors still use the buffer.
class TensorPages {
 public:
  TensorPages(std::shared_ptr<const void> buffer, const std::byte* data, Bytes bytes)
      : buffer_(std::move(buffer)), data_(data), bytes_(bytes) {}
  ~TensorPages() { ReturnPages(data_, bytes_); }
  TensorPages(const TensorPages&) = delete;
  TensorPages& operator=(const TensorPages&) = delete;

 private:
  const std::shared_ptr<const void> buffer_;
  const std::byte* const data_;
  const Bytes bytes_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightStore>> WeightStore::Open(const Checkpoint& checkpoint, const ModelSpec& spec,
                                                               const Options& options) {
  const LoaderFacts facts{.weight_bytes = options.weight_bytes > 0 ? options.weight_bytes : spec.WeightBytes(),
                          .available_memory = options.available_memory > 0 ? options.available_memory : AvailableMemory(),
                          .cached = CachedShare(checkpoint),
                          .passes = options.passes};
  LoaderChoice choice = ChooseLoader(options.loader, facts);
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<Loader> loader, choice.kind == LoaderKind::kMmap
                                                            ? MakeMmapLoader(checkpoint.files(), choice.populate)
                                                            : MakeReadLoader(checkpoint.files(), options.read));
  return std::unique_ptr<WeightStore>(new WeightStore(checkpoint, spec, std::move(choice), std::move(loader)));
}

std::string WeightStore::Describe() const {
  return absl::StrCat(Text(LoaderName(choice_.kind)), " (", loader_->Describe(), "): ", choice_.reason);
}

absl::StatusOr<std::vector<LoadedBlock>> WeightStore::LoadAll(const LoadOptions& options) {
  std::vector<BlockId> ids;
  for (const BlockSpec& block : spec_.blocks) ids.push_back(block.id);
  return LoadBlocks(ids, options);
}

absl::StatusOr<std::vector<LoadedBlock>> WeightStore::LoadBlocks(std::span<const BlockId> ids, const LoadOptions& options) {
  absl::MutexLock lock(&mutex_);
  // The tensors asked for, each once and in file order, without the tensors that an earlier block
  // still holds.
  struct Known {
    std::shared_ptr<const void> storage;
    const std::byte* data = nullptr;
  };
  std::map<std::pair<std::string_view, Bytes>, Known> known;  // by name and offset
  std::vector<const TensorSpec*> wanted_specs;
  for (const BlockId id : ids) {
    for (const TensorSpec& tensor : spec_.block(id).tensors) {
      const auto [entry, is_new] = known.try_emplace({tensor.name, tensor.offset});
      if (!is_new) continue;
      const auto found = shared_.find(tensor.name);
      if (found != shared_.end()) entry->second = {found->second.storage.lock(), found->second.data};
      if (entry->second.storage == nullptr) wanted_specs.push_back(&tensor);
    }
  }
  std::ranges::sort(wanted_specs, {}, [&](const TensorSpec* spec) {
    const TensorLocation at = checkpoint_.location(*spec);
    return std::pair(at.file, at.offset);
  });
  std::vector<WantedTensor> wanted;
  wanted.reserve(wanted_specs.size());
  for (const TensorSpec* spec : wanted_specs) wanted.push_back({checkpoint_.location(*spec), spec->info.dtype});

  LIME_ASSIGN_OR_RETURN(LoadedTensors loaded, LoadChecked(wanted, options));
  for (size_t i = 0; i < wanted.size(); ++i) {
    std::shared_ptr<const void> storage = loaded.storage;
    if (choice_.kind == LoaderKind::kRead)
      storage = std::make_shared<TensorPages>(loaded.storage, loaded.data[i], wanted_specs[i]->info.bytes);
    known[{wanted_specs[i]->name, wanted_specs[i]->offset}] = {std::move(storage), loaded.data[i]};
  }

  std::vector<LoadedBlock> blocks;
  for (const BlockId id : ids) {
    auto storages = std::make_shared<std::vector<std::shared_ptr<const void>>>();
    LoadedBlock& block = blocks.emplace_back(LoadedBlock{.id = id, .tensors = {}, .storage = storages});
    for (const TensorSpec& tensor : spec_.block(id).tensors) {
      const auto& [storage, data] = known[{tensor.name, tensor.offset}];
      storages->push_back(storage);
      block.tensors.push_back({tensor.role, tensor.part, tensor.info.dtype, tensor.info.shape, data, tensor.info.bytes});
      if (spec_.config.tie_embeddings && (id.kind == BlockKind::kEmbedding || id.kind == BlockKind::kHead)) {
        shared_[tensor.name] = {storage, data};
      }
    }
  }
  return blocks;
}

// If a checksum differs, reads everything once more: the read may have failed, not the file.
absl::StatusOr<LoadedTensors> WeightStore::LoadChecked(const std::vector<WantedTensor>& wanted, const LoadOptions& options) {
  constexpr int kAttempts = 2;
  const bool all_in_memory = choice_.kind == LoaderKind::kRead || choice_.populate;
  absl::Status check;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    LIME_ASSIGN_OR_RETURN(LoadedTensors loaded, loader_->Load(wanted, options));
    if (!checkpoint_.is_block_store() || !all_in_memory) return loaded;
    check =
        ParallelFor(static_cast<int64_t>(wanted.size()), [&](int64_t i) { return checkpoint_.CheckTensor(wanted[i].at, loaded.data[i]); });
    if (check.ok()) return loaded;
  }
  return check;
}

namespace {

constexpr Bytes kPinnedAlignment = 64;

struct FreeAligned {
  void operator()(std::byte* memory) const { ::operator delete[](memory, std::align_val_t(kPinnedAlignment)); }
};

absl::Status ReadTensor(const Checkpoint& checkpoint, const TensorSpec& tensor, std::byte* target) {
  const TensorLocation at = checkpoint.location(tensor);
  const std::string& path = checkpoint.files()[at.file].path;
  LIME_ASSIGN_OR_RETURN(const FileDescriptor file, OpenForReading(path));
  LIME_RETURN_IF_ERROR(ReadExactly(file, path, at.offset, {target, static_cast<size_t>(at.bytes)}));
  const std::optional<uint64_t> hash = checkpoint.RangeHash(at.file, at.offset, at.bytes);
  if (!hash) return checkpoint.CheckTensor(at, target);
  if (XXH3_64bits(target, static_cast<size_t>(at.bytes)) == *hash) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": tensor ", tensor.name, ", ", at.bytes, " bytes at offset ", at.offset,
                                          ", differs from its checksum; remove the file and run `lime prepare` again"));
}

}  // namespace

Bytes PinnedMemory(const BlockSpec& block, const std::function<bool(const TensorSpec&)>& stays) {
  Bytes bytes = 0;
  for (const TensorSpec& tensor : block.tensors) bytes += stays(tensor) ? RoundUp(tensor.info.bytes, kPinnedAlignment) : 0;
  return bytes;
}

absl::StatusOr<LoadedBlock> LoadPinned(const Checkpoint& checkpoint, const BlockSpec& block,
                                       const std::function<bool(const TensorSpec&)>& stays) {
  auto* const memory =
      static_cast<std::byte*>(::operator new[](static_cast<size_t>(PinnedMemory(block, stays)) + 1, std::align_val_t(kPinnedAlignment)));
  LoadedBlock loaded{.id = block.id, .tensors = {}, .storage = std::shared_ptr<std::byte>(memory, FreeAligned())};
  std::byte* next = memory;
  for (const TensorSpec& tensor : block.tensors) {
    std::byte* data = nullptr;
    if (stays(tensor)) {
      data = next;
      next += RoundUp(tensor.info.bytes, kPinnedAlignment);
      LIME_RETURN_IF_ERROR(ReadTensor(checkpoint, tensor, data));
    }
    loaded.tensors.push_back({tensor.role, tensor.part, tensor.info.dtype, tensor.info.shape, data, tensor.info.bytes});
  }
  return loaded;
}

}  // namespace lime
