#include "daemon/stores/weights_digest.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/formats/block_store_hash.h"
#include "daemon/formats/block_store_manifest.h"
#include "daemon/machine/files.h"
#include "daemon/machine/parallel.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

constexpr Bytes kPlaceBytes = 16 * kKiB;
constexpr int64_t kPlaces = 4;  // places of a tensor larger than all of them
constexpr Bytes kAlignment = 4 * kKiB;
// For a model's digest.
constexpr Bytes kDigestSampleBytes = 256;
constexpr int64_t kSamples = 16;  // samples of every tensor, from its first to its last bytes

constexpr size_t kMostSamplesKept = 100'000;

// A model may have a hundred thousand matrices of experts, so that one short place of each is read.
constexpr Bytes kExpertPlaceBytes = 4 * kKiB;

// The places of a tensor that are read, ascending: [offset, bytes].
std::vector<std::pair<int64_t, Bytes>> PlacesOf(Bytes bytes, std::string_view name, bool of_expert) {
  if (of_expert) {
    const Bytes length = std::min(bytes, kExpertPlaceBytes);
    const uint64_t hash = XXH3_64bits(name.data(), name.size());
    return {{static_cast<int64_t>(hash % static_cast<uint64_t>(bytes - length + 1)), length}};
  }
  if (bytes <= kPlaces * kPlaceBytes) return {{0, bytes}};
  std::vector<std::pair<int64_t, Bytes>> places;
  for (int64_t i = 0; i < kPlaces; ++i) {
    const int64_t begin = bytes / kPlaces * i, room = bytes / kPlaces - kPlaceBytes;
    const uint64_t hash = XXH3_64bits_withSeed(name.data(), name.size(), static_cast<uint64_t>(i));
    places.emplace_back(begin + static_cast<int64_t>(hash % static_cast<uint64_t>(room + 1)), kPlaceBytes);
  }
  return places;
}

// Reads small ranges of a checkpoint's files, past the page cache if the file system allows it.
// Thread: one.
class PlaceReader {
 public:
  explicit PlaceReader(const Checkpoint& checkpoint) : checkpoint_(checkpoint), files_(checkpoint.files().size()) {
    buffer_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, kPlaces * kPlaceBytes + 2 * kAlignment)));
  }

  // Valid until the next call.
  absl::StatusOr<std::span<const std::byte>> Read(const TensorLocation& at, int64_t offset, Bytes bytes) {
    const CheckpointFile& file = checkpoint_.files()[static_cast<size_t>(at.file)];
    LIME_ASSIGN_OR_RETURN(const FileDescriptor* const opened, Open(at.file));
    const int64_t begin = (at.offset + offset) / kAlignment * kAlignment;
    const int64_t end = std::min(RoundUp(at.offset + offset + bytes, kAlignment), RoundUp(file.bytes, kAlignment));
    const absl::Status status = ReadUpTo(*opened, file.path, begin, at.offset + offset + bytes, end);
    if (!status.ok()) return status;
    return std::span<const std::byte>(buffer_.get() + (at.offset + offset - begin), static_cast<size_t>(bytes));
  }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  absl::StatusOr<const FileDescriptor*> Open(int32_t index) {
    FileDescriptor& file = files_[static_cast<size_t>(index)];
    if (file.valid()) return &file;
    const std::string& path = checkpoint_.files()[static_cast<size_t>(index)].path;
#ifdef O_DIRECT
    file = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT));
#endif
    if (!file.valid()) {
      LIME_ASSIGN_OR_RETURN(file, OpenForReading(path));
#ifdef POSIX_FADV_RANDOM
      // Without readahead.
      (void)::posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
#endif
    }
    return &file;
  }

  // Fills the buffer from `begin` to at least `needed`, and up to `end` if the file is that long.
  absl::Status ReadUpTo(const FileDescriptor& file, const std::string& path, int64_t begin, int64_t needed, int64_t end) {
    int64_t at = begin;
    while (at < needed) {
      const ssize_t got = ::pread(file.get(), buffer_.get() + (at - begin), static_cast<size_t>(end - at), at);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return ErrnoStatus(errno, path, absl::StrCat("read at offset ", at));
      if (at + got >= needed) return absl::OkStatus();
      // A direct read must continue at an aligned offset.
      const int64_t next = (at + got) / kAlignment * kAlignment;
      if (next <= at) {
        return absl::DataLossError(
            absl::StrCat(path, ": ends at offset ", at + got, ", before ", needed, "; copy or download the file again"));
      }
      at = next;
    }
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  std::vector<FileDescriptor> files_;
  std::unique_ptr<std::byte, Free> buffer_;
};

void AddText(Xxh3& hash, std::string_view text) {
  hash.Add(std::as_bytes(std::span(text.data(), text.size())));
}

std::string ExpertText(int32_t expert) {
  return expert < 0 ? "" : absl::StrCat(" of expert ", expert);
}

absl::StatusOr<uint64_t> Sample(const Checkpoint& checkpoint, const BlockSpec& block) {
  PlaceReader reader(checkpoint);
  Xxh3 hash;
  for (const TensorSpec& tensor : block.tensors) {
    // Hashes role, part, dtype and shape, but not the name: two folders may name one model's
    // tensors differently.
    const std::string name =
        absl::StrCat(BlockName(block.id), " ", static_cast<int>(tensor.role), " ", static_cast<int>(tensor.part), " ",
                     Text(DTypeName(tensor.info.dtype)), " ", absl::StrJoin(tensor.info.shape, ","), ExpertText(tensor.expert), "\n");
    AddText(hash, name);
    const TensorLocation at = checkpoint.location(tensor);
    for (const auto& [offset, bytes] : PlacesOf(at.bytes, name, tensor.expert >= 0)) {
      if (bytes == 0) continue;
      LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> values, reader.Read(at, offset, bytes));
      hash.Add(values);
    }
  }
  return hash.value();
}

// A key for the block's bytes on this machine. It changes when one of its files is written. Empty
// if a file cannot be examined.
std::string KeyOf(const Checkpoint& checkpoint, const BlockSpec& block) {
  std::set<int32_t> files;
  for (const TensorSpec& tensor : block.tensors) files.insert(checkpoint.location(tensor.name).file);
  std::string key = BlockName(block.id);
  for (const int32_t file : files) {
    const std::string& path = checkpoint.files()[static_cast<size_t>(file)].path;
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return "";
    absl::StrAppend(&key, "\n", path, " ", info.st_dev, " ", info.st_ino, " ", info.st_size, " ", info.st_mtim.tv_sec, " ",
                    info.st_mtim.tv_nsec);
  }
  return key;
}

absl::StatusOr<BlockDigest> DigestBlock(const Checkpoint& checkpoint, const BlockSpec& block, SampleMemory* memory) {
  BlockDigest digest{.block = block.id};
  if (const BlockExtent* const extent = checkpoint.StoreExtent(block.id); extent != nullptr && extent->xxh3)
    digest.xxh3 = *extent->xxh3, digest.bytes = extent->bytes;
  const std::string key = memory == nullptr ? "" : KeyOf(checkpoint, block);
  const std::optional<uint64_t> known = memory == nullptr || key.empty() ? std::nullopt : memory->Find(key);
  if (known) {
    digest.sample = *known;
    return digest;
  }
  LIME_ASSIGN_OR_RETURN(digest.sample, Sample(checkpoint, block));
  if (memory != nullptr && !key.empty()) memory->Remember(key, digest.sample);
  return digest;
}

std::string Counted(size_t others) {
  return others == 0 ? "" : absl::StrCat(", and so ", others == 1 ? "has 1 more block" : absl::StrCat("have ", others, " more blocks"));
}

// ---- The computation in config.json. Block stores and devices remember its checksum, so the text of
// a model never changes: fields that came later follow at the end, where they differ from their
// defaults.

constexpr int kOtherFamily = 5;

// Families whose number says what later families say by their fields.
int FamilyNumber(std::string_view model_type) {
  constexpr std::string_view kNumbered[] = {"llama", "mistral", "qwen2", "qwen3", "opt"};
  const auto found = std::ranges::find(kNumbered, model_type);
  return found == std::end(kNumbered) ? kOtherFamily : static_cast<int>(found - kNumbered);
}

// 0: no rotation.
int RopeNumber(RopeType type) {
  return 1 + static_cast<int>(type);
}

// The positions of the training, if the rotation depends on them; else 0.
int64_t TrainedPositions(const RopeConfig& rope) {
  const bool by_positions = rope.type == RopeType::kDynamic || rope.type == RopeType::kLlama3 || rope.type == RopeType::kYarn;
  return by_positions ? rope.original_max_position : 0;
}

std::string RopeText(const RopeConfig& rope) {
  return absl::StrFormat("%d %d %.17g %.17g %.17g %.17g %.17g %.17g %.17g %d %d", RopeNumber(rope.type), rope.dims, rope.theta, rope.factor,
                         rope.low_freq_factor, rope.high_freq_factor, rope.beta_fast, rope.beta_slow, rope.attention_factor, rope.truncate,
                         TrainedPositions(rope));
}

std::string LongRopeText(const RopeConfig& rope) {
  std::string text = absl::StrCat(" short ", rope.original_max_position);
  for (const double factor : rope.short_factors) absl::StrAppendFormat(&text, " %.17g", factor);
  text += " long";
  for (const double factor : rope.long_factors) absl::StrAppendFormat(&text, " %.17g", factor);
  return text;
}

void AppendLayers(const ModelConfig& config, std::string& text) {
  const LayerConfig& first = config.layers.front();
  const int64_t dims = first.rope >= 0 ? config.ropes[static_cast<size_t>(first.rope)].dims : first.head_dim;
  const bool alike = std::ranges::all_of(config.layers, [&](const LayerConfig& layer) { return layer == first; });
  if (alike && first.has_kv() && dims == first.head_dim) return;
  for (const RopeConfig& rope : config.ropes) absl::StrAppend(&text, " rotation ", RopeText(rope));
  for (const LayerConfig& layer : config.layers) {
    absl::StrAppendFormat(&text, " layer %d %d %d %d %d %d", static_cast<int>(layer.attention), layer.num_kv_heads, layer.head_dim,
                          layer.window, layer.rope, layer.intermediate_size);
    if (layer.experts) text += " experts";
    if (layer.keys_are_values) text += " keys_are_values";
    if (layer.shared_kv >= 0) absl::StrAppendFormat(&text, " %s %d", layer.takes_kv ? "takes_kv" : "sends_kv", layer.shared_kv);
  }
}

std::string ExpertsText(const ExpertsConfig& c) {
  return absl::StrFormat(" experts %d %d %d %d scoring %d %d %.17g %d groups %d %d options %d %d %d %d", c.count, c.per_token,
                         c.intermediate_size, c.shared_intermediate_size, static_cast<int>(c.scoring), c.normalized, c.weight_factor,
                         c.correction, c.groups, c.groups_kept, c.shared_scale, c.router_bias, c.bias, c.alternates);
}

void AppendLaterFields(const ModelConfig& config, std::string& text) {
  const ModelConfig defaults;
  const auto append = [&](const char* name, double value, double usual) {
    if (value != usual) absl::StrAppendFormat(&text, " %s %.17g", name, value);
  };
  AppendLayers(config, text);
  if (const auto& linear = config.linear_attention) {
    absl::StrAppendFormat(&text, " linear %d %d %d %d %d", linear->key_heads, linear->value_heads, linear->key_dim, linear->value_dim,
                          linear->conv_width);
    if (linear->by_key_head) text += " by_key_head";
  }
  if (config.experts) text += ExpertsText(*config.experts);
  if (config.experts && config.experts->norms_apart) text += " norms_apart";
  if (const auto& latent = config.latent_attention) {
    absl::StrAppendFormat(&text, " latents %d %d %d %d %d %.17g", latent->query_rank, latent->rank, latent->rotated, latent->plain,
                          latent->value_dim, latent->norm_eps);
  }
  if (FamilyNumber(config.model_type) == kOtherFamily) {
    append("norm_kind", static_cast<int>(config.norm), static_cast<int>(defaults.norm));
    append("gated_mlp", config.gated_mlp, defaults.gated_mlp);
    append("learned_positions", config.learned_positions, defaults.learned_positions);
  }
  for (const RopeConfig& rope : config.ropes) {
    if (rope.query_beta != 0) absl::StrAppendFormat(&text, " queries %.17g %d", rope.query_beta, rope.original_max_position);
  }
  for (const RopeConfig& rope : config.ropes) {
    if (rope.type == RopeType::kProportional) absl::StrAppendFormat(&text, " turning %d", rope.turning);
    if (rope.type == RopeType::kLongRope) text += LongRopeText(rope);
  }
  append("norm_offset", config.norm_offset, defaults.norm_offset);
  append("qk_norm_all_heads", config.qk_norm_all_heads, defaults.qk_norm_all_heads);
  append("attention_gate", config.attention_gate, defaults.attention_gate);
  append("score_scale", config.score_scale, defaults.score_scale);
  append("embedding_multiplier", config.embedding_multiplier, defaults.embedding_multiplier);
  append("residual_multiplier", config.residual_multiplier, defaults.residual_multiplier);
  append("logits_divisor", config.logits_divisor, defaults.logits_divisor);
  append("score_cap", config.score_cap, defaults.score_cap);
  append("logits_cap", config.logits_cap, defaults.logits_cap);
  append("parallel_halves", config.parallel_halves, defaults.parallel_halves);
  append("parallel_norms", config.parallel_norms, defaults.parallel_norms);
  append("qkv_by_head", config.qkv_by_head, defaults.qkv_by_head);
  append("after_norms", config.after_norms, defaults.after_norms);
  append("value_norm", config.value_norm, defaults.value_norm);
  append("layer_scale", config.layer_scale, defaults.layer_scale);
  append("layer_inputs", static_cast<double>(config.layer_inputs), 0);
}

}  // namespace

std::optional<uint64_t> SampleMemory::Find(const std::string& key) const {
  absl::MutexLock lock(&mutex_);
  const auto found = samples_.find(key);
  return found == samples_.end() ? std::nullopt : std::optional(found->second);
}

void SampleMemory::Remember(const std::string& key, uint64_t sample) {
  absl::MutexLock lock(&mutex_);
  if (samples_.size() >= kMostSamplesKept) samples_.clear();
  samples_[key] = sample;
}

absl::StatusOr<WeightsDigest> DigestWeights(const Checkpoint& checkpoint, const ModelSpec& spec, std::span<const BlockId> blocks,
                                            std::string model, SampleMemory* memory) {
  WeightsDigest digest{.model = std::move(model), .config = ConfigXxh3(spec.config)};
  digest.blocks.resize(blocks.size());
  LIME_RETURN_IF_ERROR(ParallelFor(static_cast<int64_t>(blocks.size()), [&](int64_t i) -> absl::Status {
    LIME_ASSIGN_OR_RETURN(digest.blocks[static_cast<size_t>(i)],
                          DigestBlock(checkpoint, spec.block(blocks[static_cast<size_t>(i)]), memory));
    return absl::OkStatus();
  }));
  return digest;
}

absl::StatusOr<WeightsDigest> DigestWeights(const Checkpoint& checkpoint, const ModelSpec& spec, std::string model) {
  std::vector<BlockId> blocks;
  for (const BlockSpec& block : spec.blocks) blocks.push_back(block.id);
  return DigestWeights(checkpoint, spec, blocks, std::move(model));
}

uint64_t WeightsXxh3(const WeightsDigest& digest) {
  std::string text = absl::StrFormat("%016x", digest.config);
  for (const BlockDigest& block : digest.blocks) absl::StrAppendFormat(&text, "\n%s %016x", BlockName(block.block), block.sample);
  return std::max<uint64_t>(1, XXH3_64bits(text.data(), text.size()));
}

uint64_t ConfigXxh3(const ModelConfig& config) {
  const LayerConfig& layer = config.layers.front();
  const RopeConfig rope = layer.rope >= 0 ? config.ropes[static_cast<size_t>(layer.rope)] : RopeConfig{};
  std::string text = absl::StrFormat(
      "%d layers %d hidden %d heads %d %d %d inner %d vocab %d eps %.17g activation %d rope %d %.17g %.17g %.17g %.17g %.17g %.17g %.17g "
      "%d %d window %d tie %d bias %d %d %d qk_norm %d offset %d norm %d %d",
      FamilyNumber(config.model_type), config.num_layers(), config.hidden_size, config.num_heads, layer.num_kv_heads, layer.head_dim,
      layer.intermediate_size, config.vocab_size, config.norm_eps, static_cast<int>(config.activation),
      config.ropes.empty() ? 0 : RopeNumber(rope.type), rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor,
      rope.beta_fast, rope.beta_slow, rope.attention_factor, rope.truncate, TrainedPositions(rope), layer.window, config.tie_embeddings,
      config.qkv_bias, config.attention_output_bias, config.mlp_bias, config.qk_norm, config.position_offset, config.norm_affine,
      config.final_norm);
  AppendLaterFields(config, text);
  return XXH3_64bits(text.data(), text.size());
}

absl::Status CheckWeights(const Checkpoint& checkpoint, const ModelSpec& spec, const WeightsDigest& expected, SampleMemory* memory) {
  const auto differs = [&](const std::string& what) {
    return absl::FailedPreconditionError(absl::StrCat("the weights in ", checkpoint.dir(), " differ from those of the coordinator's \"",
                                                      expected.model, "\": ", what,
                                                      "; give this device the same model, or send it with `lime push`"));
  };
  if (ConfigXxh3(spec.config) != expected.config) return differs("config.json describes another computation");
  std::vector<BlockId> blocks;
  for (const BlockDigest& block : expected.blocks) {
    const bool known = std::ranges::any_of(spec.blocks, [&](const BlockSpec& other) { return other.id == block.block; });
    if (!known) return differs(absl::StrCat("there is no ", BlockName(block.block)));
    blocks.push_back(block.block);
  }
  LIME_ASSIGN_OR_RETURN(const WeightsDigest here, DigestWeights(checkpoint, spec, blocks, expected.model, memory));
  std::vector<std::string> other;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const BlockDigest &a = here.blocks[i], &b = expected.blocks[i];
    // Otherwise one side has no checksum, or the block is laid out differently.
    const bool both_known = a.bytes > 0 && a.bytes == b.bytes;
    if (a.sample != b.sample || (both_known && a.xxh3 != b.xxh3)) other.push_back(BlockName(a.block));
  }
  if (other.empty()) return absl::OkStatus();
  return differs(absl::StrCat(other.front(), " has other values", Counted(other.size() - 1)));
}

absl::StatusOr<uint64_t> DigestTensors(const Checkpoint& checkpoint) {
  Xxh3 hash;
  const auto add = [&hash](std::string_view text) { hash.Add(std::as_bytes(std::span(text))); };
  add(checkpoint.config_json());
  std::vector<FileDescriptor> files;
  for (const CheckpointFile& file : checkpoint.files()) {
    LIME_ASSIGN_OR_RETURN(FileDescriptor opened, OpenForReading(file.path));
    files.push_back(std::move(opened));
  }
  std::vector<std::byte> sample;
  for (const auto& [name, info] : checkpoint.index()) {
    const TensorLocation& at = checkpoint.location(name);
    const auto file = static_cast<size_t>(at.file);
    add(absl::StrCat("\n", name, " ", Text(DTypeName(info.dtype)), " ", absl::StrJoin(info.shape, ","), "\n"));
    const Bytes bytes = std::min(at.bytes, kDigestSampleBytes);
    const int64_t samples = at.bytes <= kSamples * kDigestSampleBytes ? (at.bytes + kDigestSampleBytes - 1) / kDigestSampleBytes : kSamples;
    sample.resize(static_cast<size_t>(bytes));
    for (int64_t i = 0; i < samples; ++i) {
      const Bytes begin = samples > 1 ? (at.bytes - bytes) * i / (samples - 1) : 0;
      LIME_RETURN_IF_ERROR(ReadExactly(files[file], checkpoint.files()[file].path, at.offset + begin, sample));
      hash.Add(sample);
    }
  }
  return std::max<uint64_t>(1, hash.value());
}

absl::StatusOr<uint64_t> ModelDigest(const Checkpoint& checkpoint) {
  if (!checkpoint.is_block_store()) return DigestTensors(checkpoint);
  LIME_ASSIGN_OR_RETURN(const StoreManifest manifest, ReadStoreManifest(checkpoint.dir()));
  return manifest.source_xxh3;
}

}  // namespace lime
