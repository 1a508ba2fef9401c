#include "daemon/weights/weight_store.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "daemon/weights/page_cache.h"
#include "daemon/weights/parallel.h"
#include "daemon/weights/system_memory.h"
#include "planner/base/check.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr int kCacheSamples = 256;  // pages looked at in all files together

// Share of the files' bytes that the page cache holds.
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

// Keeps what a block needs when its tensors come from two loads.
struct TwoStorages {
  std::shared_ptr<const void> first, second;
};

}  // namespace

absl::StatusOr<std::unique_ptr<WeightStore>> WeightStore::Open(const Checkpoint& checkpoint, const ModelSpec& spec,
                                                               const Options& options) {
  const LoaderFacts facts{.weight_bytes = spec.WeightBytes(),
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
  // What is asked for, once each and in file order, less what an earlier block still holds.
  std::map<std::string_view, Shared> known;
  std::vector<const TensorSpec*> wanted_specs;
  std::shared_ptr<const void> earlier;
  for (const BlockId id : ids) {
    for (const TensorSpec& tensor : spec_.block(id).tensors) {
      if (!known.emplace(tensor.name, Shared{}).second) continue;
      const auto found = shared_.find(tensor.name);
      std::shared_ptr<const void> alive = found == shared_.end() ? nullptr : found->second.storage.lock();
      if (alive) {
        known[tensor.name].data = found->second.data;
        earlier = std::make_shared<TwoStorages>(TwoStorages{std::move(alive), std::move(earlier)});
      } else {
        wanted_specs.push_back(&tensor);
      }
    }
  }
  const auto location = [&](const TensorSpec* spec) -> const TensorLocation& { return checkpoint_.location(spec->name); };
  std::sort(wanted_specs.begin(), wanted_specs.end(), [&](const TensorSpec* a, const TensorSpec* b) {
    return std::pair(location(a).file, location(a).offset) < std::pair(location(b).file, location(b).offset);
  });
  std::vector<WantedTensor> wanted;
  for (const TensorSpec* spec : wanted_specs) wanted.push_back({location(spec), spec->info.dtype});

  LIME_ASSIGN_OR_RETURN(LoadedTensors loaded, LoadChecked(wanted, options));
  for (size_t i = 0; i < wanted.size(); ++i) known[wanted_specs[i]->name].data = loaded.data[i];
  const std::shared_ptr<const void> storage =
      earlier ? std::make_shared<TwoStorages>(TwoStorages{std::move(loaded.storage), std::move(earlier)}) : std::move(loaded.storage);

  std::vector<LoadedBlock> blocks;
  for (const BlockId id : ids) {
    LoadedBlock& block = blocks.emplace_back(LoadedBlock{.id = id, .tensors = {}, .storage = storage});
    for (const TensorSpec& tensor : spec_.block(id).tensors) {
      block.tensors.push_back({tensor.role, tensor.part, tensor.info.dtype, tensor.info.shape, known[tensor.name].data, tensor.info.bytes});
      if (spec_.config.tie_embeddings && (id.kind == BlockKind::kEmbedding || id.kind == BlockKind::kHead)) {
        shared_[tensor.name] = {storage, known[tensor.name].data};
      }
    }
  }
  return blocks;
}

// A checksum that differs may be a read that went wrong: everything is read once more, in the place of what was.
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

}  // namespace lime
