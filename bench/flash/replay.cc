#include "bench/flash/replay.h"

#include <xxhash.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "common/steady_clock.h"
#include "daemon/weights/bundle_scatter.h"
#include "planner/base/check.h"

namespace lime::flash {
namespace {

constexpr Bytes kLongestRead = 1 * kMiB;  // of joined reads, as NeuronReader has it

class Replayer {
 public:
  Replayer(const FlashFiles& files, const FlashDisks& disks, std::span<const TokenMasks* const> masks,
           std::span<const std::vector<int32_t>> paths, const ReplayOptions& options)
      : files_(files), disks_(disks), masks_(masks), paths_(paths), options_(options), layout_(files.layers().front().shape().layout) {
    first_part_ = options.rule.decider ? 1 : 0;
    part_slot_ = RoundUp(layout_.part_bytes, kBundleReadAlign) + (layout_.part_bytes % kBundleReadAlign == 0 ? 0 : kBundleReadAlign);
    slot_ = options.rule.bundled ? layout_.SlotBytes(first_part_) : part_slot_ * layout_.parts;
    streamed_ = options.rule.neurons ? files.Streamed(options.memory.streamed) : std::vector<Extent>(whole().begin(), whole().end());
  }

  absl::StatusOr<RungCounts> Run() {
    if (options_.rule.neurons) LIME_RETURN_IF_ERROR(Allocate());
    const size_t tokens = masks_.front()->size();
    for (size_t token = options_.rule.neurons ? options_.warm : options_.first; token < tokens; ++token) {
      const bool counts = token >= options_.first;
      if (counts) LIME_RETURN_IF_ERROR(Stream());
      for (size_t layer = 0; options_.rule.neurons && layer < masks_.size(); ++layer)
        LIME_RETURN_IF_ERROR(Step(layer, (*masks_[layer])[token], counts));
      counts_.tokens += counts;
    }
    counts_.held = Held();
    return counts_;
  }

 private:
  std::span<const Extent> whole() const { return options_.rule.rung == Rung::kNaive ? files_.blocks() : files_.mlps(); }

  Bytes Held() const {
    const FlashShape& shape = files_.shape();
    if (options_.rule.rung == Rung::kNaive) return 0;
    if (!options_.rule.neurons) return shape.weights - shape.mlps;
    return options_.rule.window ? options_.memory.held : shape.weights - shape.mlps + shape.predictor + rows_.bytes();
  }

  absl::Status Allocate() {
    size_t largest = 0;
    for (const TokenMasks* of_layer : masks_) {
      for (const std::vector<int32_t>& mask : *of_layer) largest = std::max(largest, mask.size());
    }
    rows_of_layer_ = options_.rule.window ? options_.memory.rows : static_cast<int32_t>(std::max<size_t>(largest, 1));
    LIME_ASSIGN_OR_RETURN(rows_, HugeBuffer::AllocatePresent((options_.rule.window ? std::ssize(masks_) : 1) * rows_of_layer_ * slot_));
    for (const LayerBundles& layer : files_.layers()) {
      if (!options_.rule.window) break;
      LIME_ASSIGN_OR_RETURN(
          windows_.emplace_back(),
          NeuronWindow::Create({.window = {.neurons = layer.shape().neurons, .rows = rows_of_layer_, .masks = options_.masks},
                                .placement = options_.placement}));
    }
    if (!options_.rule.joined) return absl::OkStatus();
    gap_bytes_ = options_.burst.WorthReading();
    LIME_ASSIGN_OR_RETURN(gap_, HugeBuffer::AllocatePresent(GapMemory(layout_, first_part_, gap_bytes_)));
    return absl::OkStatus();
  }

  // What a rung reads whole for each token.
  absl::Status Stream() {
    if (streamed_.empty()) return absl::OkStatus();
    LIME_ASSIGN_OR_RETURN(const double ms, disks_.blocks.Sequential(streamed_));
    Bytes bytes = 0;
    for (const Extent& extent : streamed_) {
      bytes += extent.bytes;
      counts_.reads += (extent.bytes + kLongestRead - 1) / kLongestRead;
    }
    counts_.load.streamed += bytes;
    counts_.io_ms += ms;
    return absl::OkStatus();
  }

  absl::Status Step(size_t layer, std::span<const int32_t> mask, bool counts) {
    if (!options_.rule.window) {
      loads_.clear();
      for (const int32_t neuron : mask) loads_.push_back({neuron, static_cast<int32_t>(loads_.size())});
      return counts ? Load(layer, loads_) : absl::OkStatus();
    }
    NeuronWindow& window = *windows_[layer];
    double begin = SteadyMs();
    LIME_RETURN_IF_ERROR(window.BeginStep(mask));
    while (window.NextRound()) {
      for (const NeuronWindow::Move& move : window.moves())
        std::memcpy(RowOf(layer, move.to), RowOf(layer, move.from), static_cast<size_t>(slot_));
      if (counts) {
        counts_.manage_ms += SteadyMs() - begin;
        counts_.moves += std::ssize(window.moves());
        LIME_RETURN_IF_ERROR(Load(layer, window.loads()));
      }
      begin = SteadyMs();
    }
    return absl::OkStatus();
  }

  std::byte* RowOf(size_t layer, int32_t row) const {
    return rows_.data() + (options_.rule.window ? static_cast<int64_t>(layer) * rows_of_layer_ + row : row) * slot_;
  }

  absl::Status Load(size_t layer, std::span<const NeuronWindow::Load> loads) {
    if (loads.empty()) return absl::OkStatus();
    reads_.clear();
    if (options_.rule.bundled)
      BundleReads(layer, loads);
    else
      RowReads(layer, loads);
    LIME_ASSIGN_OR_RETURN(const double ms, disks_.bundles.Burst(reads_));
    counts_.neurons += std::ssize(loads);
    counts_.reads += std::ssize(reads_);
    ++counts_.load.bursts;
    counts_.load.reads += std::ssize(reads_);
    for (const FlashDisk::Read& read : reads_) counts_.load.neurons += read.extent.bytes;
    counts_.io_ms += ms;
    return absl::OkStatus();
  }

  // As if the file had one matrix after another, row by row. A file has no checksums of these rows, but one would
  // be computed of each.
  void RowReads(size_t layer, std::span<const NeuronWindow::Load> loads) {
    const LayerBundles& bundles = files_.layers()[layer];
    for (const NeuronWindow::Load& load : loads) {
      for (int part = 0; part < layout_.parts; ++part) {
        const int64_t row = int64_t{part} * bundles.shape().neurons + load.neuron;
        const EnclosingRange range = Enclosing(bundles.begin() + row * layout_.part_bytes, layout_.part_bytes);
        std::byte* const memory = RowOf(layer, load.row) + part * part_slot_;
        reads_.push_back({.extent = {static_cast<int>(layer), range.offset, range.bytes}, .memory = memory, .check = [this, memory] {
                            sum_.fetch_xor(XXH3_64bits(memory, static_cast<size_t>(layout_.part_bytes)), std::memory_order_relaxed);
                            return absl::OkStatus();
                          }});
      }
    }
  }

  void BundleReads(size_t layer, std::span<const NeuronWindow::Load> loads) {
    const LayerBundles& bundles = files_.layers()[layer];
    wanted_.clear();
    for (const NeuronWindow::Load& load : loads) {
      const int32_t place = options_.rule.joined ? paths_[layer][static_cast<size_t>(load.neuron)] : load.neuron;
      wanted_.push_back({files_.NeuronAt(layer, place), RowOf(layer, load.row)});
    }
    std::ranges::sort(wanted_, {}, [&](const BundleSlot& slot) { return bundles.places()[static_cast<size_t>(slot.neuron)]; });
    ScatterReads(bundles, wanted_,
                 {.first_part = first_part_,
                  .gap_bytes = gap_bytes_,
                  .longest_bytes = options_.rule.joined ? kLongestRead : layout_.stride,
                  .gap_memory = {gap_.data(), static_cast<size_t>(gap_.bytes())}},
                 scattered_);
    size_t next = 0;
    for (const ScatteredRead& read : scattered_.reads) {
      const std::span<const BundleSlot> neurons = std::span(wanted_).subspan(next, read.num_neurons);
      next += read.num_neurons;
      reads_.push_back({.extent = {static_cast<int>(layer), read.offset, read.bytes},
                        .segments = std::span(scattered_.segments).subspan(read.first_segment, read.num_segments),
                        .check = [this, &bundles, neurons] { return Check(bundles, neurons); }});
    }
  }

  absl::Status Check(const LayerBundles& bundles, std::span<const BundleSlot> neurons) const {
    const auto bytes = static_cast<size_t>(layout_.record_bytes - layout_.PartAt(first_part_));
    for (const BundleSlot& slot : neurons) {
      const std::byte* const record = slot.memory + bundles.RangeOf(slot.neuron, first_part_).skipped;
      LIME_RETURN_IF_ERROR(bundles.Check(slot.neuron, first_part_, {record, bytes}));
    }
    return absl::OkStatus();
  }

  const FlashFiles& files_;
  const FlashDisks& disks_;
  const std::span<const TokenMasks* const> masks_;
  const std::span<const std::vector<int32_t>> paths_;
  const ReplayOptions& options_;
  const BundleLayout layout_;
  int first_part_ = 0;              // of a record, that is read
  Bytes part_slot_ = 0, slot_ = 0;  // memory of a part that is read alone, and of a neuron
  std::vector<Extent> streamed_;
  int32_t rows_of_layer_ = 0;
  HugeBuffer rows_, gap_;
  Bytes gap_bytes_ = 0;
  std::vector<std::unique_ptr<NeuronWindow>> windows_;
  std::vector<NeuronWindow::Load> loads_;  // without a window
  std::vector<BundleSlot> wanted_;
  ScatteredReads scattered_;
  std::vector<FlashDisk::Read> reads_;
  std::atomic<uint64_t> sum_ = 0;  // of checksums that nobody compares.  Thread: any
  RungCounts counts_;
};

// A store has the embedding once more as head if the two are tied; in memory it is one tensor.
bool HeadIsEmbedding(const ModelSpec& spec) {
  const BlockSpec &head = spec.block({BlockKind::kHead, 0}), &embedding = spec.block({BlockKind::kEmbedding, 0});
  const auto output = head.Find(TensorRole::kOutput, TensorPart::kWeight);
  const auto rows = embedding.Find(TensorRole::kTokenEmbedding, TensorPart::kWeight);
  return output && rows && head.tensors[*output].name == embedding.tensors[*rows].name;
}

}  // namespace

absl::StatusOr<FlashFiles> FlashFiles::Open(const Checkpoint& checkpoint, const ModelSpec& spec) {
  LIME_ASSIGN_OR_RETURN(BundleStore bundles, BundleStore::Open(checkpoint, spec));
  FlashFiles files(std::move(bundles));
  FlashShape& shape = files.shape_;
  int64_t mlps = 0;
  for (const BlockSpec& block : spec.blocks) {
    const BlockExtent* const at = checkpoint.StoreExtent(block.id);
    if (at == nullptr || (block.id.kind == BlockKind::kHead && HeadIsEmbedding(spec))) continue;
    files.blocks_.push_back({at->file, at->offset, at->bytes});
    shape.weights += at->bytes;
    if (!IsMlpHalf(block.id.kind)) continue;
    files.mlps_.push_back(files.blocks_.back());
    shape.mlps += at->bytes;
    ++mlps;
  }
  const std::span<const LayerBundles> layers = files.layers();
  if (layers.empty() || std::ssize(layers) != mlps)
    return absl::FailedPreconditionError(absl::StrCat(checkpoint.dir(), ": has bundles of ", layers.size(), " of its ", mlps,
                                                      " MLPs, need all; prepare it again with --bundles"));
  const BundleShape& first = layers.front().shape();
  for (const LayerBundles& layer : layers) {
    if (layer.shape().neurons != first.neurons || layer.shape().layout != first.layout)
      return absl::FailedPreconditionError(
          absl::StrCat(checkpoint.dir(), ": its layers differ in size, which this benchmark does not support"));
    std::vector<int32_t>& at_place = files.at_place_.emplace_back(layer.places().size());
    for (size_t neuron = 0; neuron < at_place.size(); ++neuron)
      at_place[static_cast<size_t>(layer.places()[neuron])] = static_cast<int32_t>(neuron);
  }
  shape.layers = static_cast<int32_t>(layers.size());
  shape.neurons = first.neurons;
  shape.slot = first.layout.slot_bytes;
  shape.tail_slot = first.layout.SlotBytes(1);
  shape.decider = mlps * first.neurons * first.layout.part_bytes;
  if (std::ranges::all_of(layers, [](const LayerBundles& layer) { return layer.decider() != nullptr; })) {
    for (const LayerBundles& layer : layers) shape.copies += layer.decider()->bytes();
  }
  return files;
}

std::vector<std::string> FlashFiles::bundle_paths() const {
  std::vector<std::string> paths;
  for (const LayerBundles& layer : layers()) paths.push_back(layer.path());
  return paths;
}

std::vector<Extent> FlashFiles::Streamed(Bytes bytes) const {
  std::vector<Extent> extents;
  for (const Extent& block : blocks_) {
    if (bytes <= 0) break;
    extents.push_back({block.file, block.offset, std::min(block.bytes, bytes)});
    bytes -= extents.back().bytes;
  }
  return extents;
}

absl::StatusOr<RungCounts> Replay(const FlashFiles& files, const FlashDisks& disks, std::span<const TokenMasks* const> masks,
                                  std::span<const std::vector<int32_t>> paths, const ReplayOptions& options) {
  LIME_CHECK_EQ(masks.size(), files.layers().size());
  LIME_CHECK(options.warm <= options.first && options.first < masks.front()->size()) << options.first;
  return Replayer(files, disks, masks, paths, options).Run();
}

}  // namespace lime::flash
