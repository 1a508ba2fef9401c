#include "daemon/engine/stage_weights.h"

#include <algorithm>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "planner/base/check.h"
#include "planner/plan/model/block_parts.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_residency.h"
#include "planner/plan/sparse_parts.h"

namespace lime {
namespace {

// Cuts blocks as the plan does, parts with experts on demand into their units, and sparse parts into
// pieces. Blocks that the plan does not name are not read.
std::function<std::vector<BlockPart>(const BlockSpec&)> CutOf(const Plan& plan) {
  return [&plan](const BlockSpec& block) {
    std::vector<BlockPart> parts;
    const auto [begin, end] = PartsOf(plan, block.id);
    for (int part = begin; part < end; ++part) {
      const PlanPart& what = plan.parts[part];
      if (what.sparse()) {
        for (BlockPart& piece : SparsePieces(block, what)) parts.push_back(std::move(piece));
      } else if (what.on_demand()) {
        for (const auto unit : UnitsIn(what.rows)) parts.push_back({.rows = {unit.begin(), unit.end()}, .bytes = what.unit_bytes});
      } else if (!what.is_kv()) {
        parts.push_back({.rows = what.rows, .bytes = what.bytes});
      }
    }
    return parts;
  };
}

// How many parts a part before others of its block becomes in CutOf. A sparse part is the last one.
int UnitsBefore(const PlanPart& part) {
  return part.is_kv() ? 0 : part.has_experts_on_demand() ? static_cast<int>(UnitsIn(part.rows).size()) : 1;
}

// The index of a part among its block's parts as CutOf cuts them; on demand, of its first unit.
int IndexInBlock(const Plan& plan, int part) {
  int index = 0;
  for (int before = PartsOf(plan, plan.parts[part].block).first; before < part; ++before) index += UnitsBefore(plan.parts[before]);
  return index;
}

int BlockIndex(const ModelSpec& spec, BlockId id) {
  return static_cast<int>(std::ranges::find(spec.blocks, id, &BlockSpec::id) - spec.blocks.begin());
}

absl::StatusOr<std::unique_ptr<PartReader>> OpenReader(const Checkpoint& checkpoint, const ModelSpec& spec, const Plan& plan,
                                                       const StageWeights::Options& options) {
  PartReader::Options reading{.cut = CutOf(plan), .wrap_device = options.wrap_device};
  if (HasSparseParts(plan)) reading.channels = kStreamsBesideNeurons;
  return PartReader::Open(checkpoint, spec, reading);
}

// The largest place of a part that streams, or may stream later.
template <typename PlaceBytes>
Bytes LargestPlace(const Plan& plan, const std::vector<int>& parts, const PlaceBytes& place_bytes) {
  Bytes largest = 0;
  const bool any = GrowsKv(plan);
  for (const int part : parts) {
    if (plan.parts[part].streamed || (any && !plan.parts[part].on_demand())) largest = std::max(largest, place_bytes(part));
  }
  return largest;
}

}  // namespace

StageWeights::StageWeights(const ModelSpec& spec, const Plan& plan, StageKv* kv)
    : spec_(spec),
      plan_(plan),
      kv_(kv),
      whole_(plan.parts.size()),
      own_(plan.parts.size()),
      read_(std::make_unique<std::atomic<bool>[]>(plan.parts.size())) {
  for (int part = 0; part < plan.NumParts(); ++part) {
    const PlanPart& what = plan.parts[part];
    place_of_.emplace_back(BlockIndex(spec, what.block), IndexInBlock(plan, part));
    num_units_.push_back(what.sparse() ? static_cast<int>(SparsePieces(spec.block(what.block), what).size()) : UnitsBefore(what));
    streamed_.push_back(what.streamed);
  }
  streamed_before_ = streamed_;
}

absl::StatusOr<Bytes> StageWeights::MemoryFor(const Checkpoint& checkpoint, const ModelSpec& spec, const Plan& plan, int32_t device) {
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<PartReader> reader, OpenReader(checkpoint, spec, plan, {}));
  const PlanMemory& memory = plan.devices[device].memory;
  const auto place_bytes = [&](int part) { return PlaceBytesOf(*reader, spec, plan, part); };
  return memory.weights + memory.embedding + memory.ring + LargestPlace(plan, PartsOn(plan, device), place_bytes);
}

Bytes StageWeights::PlaceBytesOf(const PartReader& reader, const ModelSpec& spec, const Plan& plan, int part) {
  const PlanPart& what = plan.parts[part];
  return what.is_kv() ? what.bytes : reader.PlaceBytes(BlockIndex(spec, what.block), IndexInBlock(plan, part));
}

absl::StatusOr<std::unique_ptr<StageWeights>> StageWeights::Load(const Checkpoint& checkpoint, const ModelSpec& spec, const Plan& plan,
                                                                 int32_t device, Backend& backend, const Options& options) {
  std::unique_ptr<StageWeights> weights(new StageWeights(spec, plan, options.kv));
  LIME_ASSIGN_OR_RETURN(weights->reader_, OpenReader(checkpoint, spec, plan, options));
  const absl::Time begin = absl::Now();
  LIME_RETURN_IF_ERROR(weights->LoadAll(checkpoint, device, backend, options));
  weights->load_.seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  return weights;
}

absl::Status StageWeights::LoadAll(const Checkpoint& checkpoint, int32_t device, Backend& backend, const Options& options) {
  const std::vector<int> parts = PartsOn(plan_, device);
  const ResidentWeights resident = ResidentWeightsOn(plan_, device);
  parts_here_ = parts;
  backend_ = &backend;
  for (const int part : parts) whole_[part] = std::ranges::find(resident.whole, plan_.parts[part].block) != resident.whole.end();
  if (options.handover != nullptr) RetainFor(spec_, plan_, device, *options.handover);
  LIME_RETURN_IF_ERROR(LearnChecksums(options.load));
  LIME_RETURN_IF_ERROR(LoadBlocks(checkpoint, resident.whole, resident.pinned, backend, options));
  for (const int part : resident.parts) {
    std::optional<HugeBuffer> handover = options.handover != nullptr ? options.handover->Claim(plan_.parts[part]) : std::nullopt;
    if (!handover) {
      LIME_RETURN_IF_ERROR(ReadPart(part));
      continue;
    }
    own_[part] = *std::move(handover);
    read_[part] = true;
  }
  LIME_RETURN_IF_ERROR(OpenOnDemand(checkpoint, options));
  // A place that does not fit before the ring's end begins at 0. Less than one place stays unused.
  slack_ = LargestPlace(plan_, parts, [this](int part) { return PlaceBytes(part); });
  if (slack_ == 0) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(HugeBuffer memory, HugeBuffer::AllocatePresent(plan_.devices[device].memory.ring + slack_));
  SetRing(std::move(memory));
  ring_is_made_ = false;
  return absl::OkStatus();
}

absl::Status StageWeights::OpenOnDemand(const Checkpoint& checkpoint, const Options& options) {
  std::vector<int32_t> layers, whole;  // of sparse parts, and those with whole records
  size_t most = 0;
  for (const int part : parts_here_) {
    const PlanPart& what = plan_.parts[part];
    if (!what.on_demand()) continue;
    for (int unit = 0; unit < NumUnits(part); ++unit) {
      const Bytes bytes = PieceBytes(part, unit);
      if (what.sparse()) {
        piece_bytes_ = std::max(piece_bytes_, bytes);
      } else {
        LIME_CHECK_LE(bytes, what.unit_bytes);
      }
    }
    LIME_ASSIGN_OR_RETURN(own_[part], HugeBuffer::AllocatePresent(what.places * what.unit_bytes));
    if (!what.sparse()) continue;
    layers.push_back(what.block.layer);
    if (what.has_own_decider()) whole.push_back(what.block.layer);
    most = std::max(most, static_cast<size_t>(what.places));
  }
  if (layers.empty()) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(pieces_, HugeBuffer::AllocatePresent(kSparsePieces * piece_bytes_));
  slots_.reserve(most), came_.reserve(most), targets_.reserve(most);
  const auto done = [this, neurons_read = options.neurons_read](int32_t, std::span<const BundleSlot> neurons, const absl::Status& status) {
    came_.clear();
    for (const BundleSlot& slot : neurons) came_.push_back(slot.neuron);
    neurons_read(came_, status);
  };
  LIME_ASSIGN_OR_RETURN(
      neurons_,
      NeuronReader::Open(checkpoint, spec_, layers, {.done = done, .whole_records = std::move(whole), .wrap_device = options.wrap_device}));
  for (const int part : parts_here_) {
    if (plan_.parts[part].certified()) LIME_RETURN_IF_ERROR(BindCopy(part));
  }
  return absl::OkStatus();
}

absl::Status StageWeights::LoadBlocks(const Checkpoint& checkpoint, const std::vector<BlockId>& whole, const std::vector<BlockId>& pinned,
                                      Backend& backend, const Options& options) {
  std::vector<BlockId> missing;
  for (const BlockId id : whole) {
    std::optional<LoadedBlock> handover = options.handover != nullptr ? options.handover->Claim(id) : std::nullopt;
    if (!handover) {
      missing.push_back(id);
      continue;
    }
    blocks_.push_back({.block = *std::move(handover), .whole = true, .copied = true});
  }
  LIME_RETURN_IF_ERROR(LoadWhole(checkpoint, missing, pinned.empty(), options));
  for (const BlockId id : pinned) {
    const BlockSpec& of = spec_.block(id);
    const bool sparse =
        std::ranges::any_of(parts_here_, [&](int part) { return plan_.parts[part].block == id && plan_.parts[part].sparse(); });
    LIME_ASSIGN_OR_RETURN(LoadedBlock block, LoadPinned(checkpoint, of, [&](const TensorSpec& tensor) {
                            return IsPinned(tensor) || (sparse && IsKeptForNeurons(of, tensor));
                          }));
    blocks_.push_back({.block = std::move(block)});
  }
  for (const Bound& bound : blocks_) {
    LIME_RETURN_IF_ERROR(backend.BindBlock(spec_.block(bound.block.id), ToWeights(bound.block)));
    if (bound.whole && bound.copied) reader_->LearnChecksums(bound.block);  // it may stream later
  }
  return absl::OkStatus();
}

// All blocks in one buffer, so that only its ends are on small pages. The loader is chosen only if
// every block stays: if others stream, the blocks that stay are worth reading.
absl::Status StageWeights::LoadWhole(const Checkpoint& checkpoint, const std::vector<BlockId>& ids, bool all_whole,
                                     const Options& options) {
  const LoaderKind loader = options.loader == LoaderKind::kAuto && !all_whole ? LoaderKind::kRead : options.loader;
  if (loader != options.loader || (ids.empty() && !all_whole)) load_.loader = "read: resident blocks are copied into memory";
  if (ids.empty()) return absl::OkStatus();
  Bytes bytes = 0;
  const bool has_head = std::ranges::any_of(ids, [](BlockId id) { return id.kind == BlockKind::kHead; });
  for (const BlockId id : ids) {
    // Tied: the matrix of the head and that of the embedding are one tensor.
    const bool with_head = id.kind == BlockKind::kEmbedding && has_head && spec_.config.tie_embeddings;
    bytes += with_head ? PinnedBytes(spec_.block(id)) : spec_.block(id).bytes;
  }
  LIME_ASSIGN_OR_RETURN(const std::unique_ptr<WeightStore> store,
                        WeightStore::Open(checkpoint, spec_,
                                          {.loader = loader,
                                           .weight_bytes = bytes,
                                           .available_memory = all_whole ? 0 : std::numeric_limits<Bytes>::max(),
                                           .passes = options.passes}));
  LIME_ASSIGN_OR_RETURN(std::vector<LoadedBlock> loaded, store->LoadBlocks(ids, options.load));
  load_.steady = store->steady();
  const bool copied = store->choice().kind == LoaderKind::kRead;
  for (LoadedBlock& block : loaded) blocks_.push_back({.block = std::move(block), .whole = true, .copied = copied});
  if (load_.loader.empty()) load_.loader = store->Describe();
  load_.bytes += bytes;
  return absl::OkStatus();
}

void StageWeights::RetainFor(const ModelSpec& spec, const Plan& plan, int32_t device, WeightsHandover& handover) {
  const ResidentWeights resident = WeightsThatMayStay(ResidentWeightsOn(plan, device), spec.config.tie_embeddings);
  std::vector<const PlanPart*> parts;
  for (const int part : resident.parts) parts.push_back(&plan.parts[part]);
  handover.RetainOnly(resident.whole, parts);
}

void StageWeights::HandOver(WeightsHandover& handover) {
  for (Bound& bound : blocks_) {
    if (bound.whole && bound.copied) handover.Add(std::move(bound.block));
  }
  blocks_.clear();
  for (size_t part = 0; part < own_.size(); ++part) {
    if (own_[part].data() != nullptr && read_[part]) handover.Add(plan_.parts[part], std::move(own_[part]));
  }
}

absl::Status StageWeights::LearnChecksums(const LoadOptions& options) {
  std::map<int, std::vector<int>> parts;  // by block
  for (const int part : parts_here_) {
    if (whole_[part] || plan_.parts[part].is_kv()) continue;
    for (int unit = 0; unit < NumUnits(part); ++unit) parts[BlockOf(part)].push_back(PartInBlock(part) + unit);
  }
  for (const auto& [block, of_block] : parts) LIME_RETURN_IF_ERROR(reader_->LearnChecksums(block, of_block, options.cancelled));
  return absl::OkStatus();
}

// Reads a resident part of a block with streamed parts into memory of its own.
absl::Status StageWeights::ReadPart(int part) {
  LIME_ASSIGN_OR_RETURN(own_[part], Room(part));
  load_.bytes += plan_.parts[part].bytes;
  AwaitedReads reads;
  reader_->StartRead(BlockOf(part), PartInBlock(part), own_[part].data(), reads.Add());
  absl::Status status = reads.Await();
  read_[part] = status.ok();
  return status;
}

RowsInMemory StageWeights::Rows(int part, int i, int64_t step) const {
  return reader_->Rows(BlockOf(part), PartInBlock(part), i, StreamsIn(part, step) ? OldestLoad(part).place : own_[part].data());
}

void StageWeights::StartUnitRead(int part, int unit, int place, int64_t number, PartReader::Completion done) {
  reader_->StartRead(BlockOf(part), PartInBlock(part) + unit, PlaceOfUnit(part, place), std::move(done), TagOf(number));
}

int StageWeights::NumUnitRows(int part, int unit) const {
  return reader_->NumRows(BlockOf(part), PartInBlock(part) + unit);
}

RowsInMemory StageWeights::UnitRows(int part, int unit, int i, int place) const {
  return reader_->Rows(BlockOf(part), PartInBlock(part) + unit, i, PlaceOfUnit(part, place));
}

std::byte* StageWeights::PlaceOfUnit(int part, int place) const {
  LIME_CHECK(place >= 0 && place < plan_.parts[part].places) << "place " << place << " of part " << part;
  return own_[part].data() + place * plan_.parts[part].unit_bytes;
}

void StageWeights::StartNeuronReads(int part, std::span<const NeuronWindow::Load> loads) {
  slots_.clear();
  for (const auto& [neuron, row] : loads) slots_.push_back({.neuron = neuron, .memory = PlaceOfUnit(part, row)});
  neurons_->StartBurst(plan_.parts[part].block.layer, slots_);
}

NeuronInMemory StageWeights::Neuron(int part, int32_t neuron, int32_t row) const {
  const int32_t layer = plan_.parts[part].block.layer;
  const BundleLayout& layout = neurons_->layout(layer);
  const bool gated = layout.parts == 3;
  const std::byte* const record = RecordIn(part, neuron, row);
  const auto at = [&](int in_record) { return record + layout.PartAt(in_record) - layout.PartAt(neurons_->FirstPart(layer)); };
  return {.neuron = neuron,
          .decider = plan_.parts[part].has_own_decider() ? at(0) : nullptr,
          .up = gated ? at(1) : nullptr,
          .down = at(layout.parts - 1)};
}

std::byte* StageWeights::RecordIn(int part, int32_t neuron, int32_t row) const {
  return PlaceOfUnit(part, row) + neurons_->OffsetInSlot(plan_.parts[part].block.layer, neuron);
}

absl::Status StageWeights::BindCopy(int part) {
  const PlanPart& what = plan_.parts[part];
  const LayerBundles& bundles = neurons_->bundles(what.block.layer);
  const DeciderFile* const decider = bundles.decider();
  if (decider == nullptr || decider->shape.bits != what.decider_bits || decider->shape.directions != what.decider_directions)
    return absl::FailedPreconditionError(absl::StrCat(bundles.path(), ": has ", decider == nullptr ? "no copy" : "another copy",
                                                      " of the decider than the plan, which needs one of ", what.decider_bits,
                                                      " bits with ", what.decider_directions, " directions; plan again with this store"));
  LIME_CHECK_EQ(decider->bytes(), CopyMemory(spec_.block(what.block), what.decider_bits, what.decider_directions));
  LIME_ASSIGN_OR_RETURN(std::shared_ptr<const LoadedDecider> loaded, bundles.LoadDecider());
  load_.bytes += decider->bytes();
  const DeciderView view = loaded->view;
  return backend_->BindCopy(what.block, view, std::move(loaded));
}

void StageWeights::CopyNeurons(int part, const RowsInMemory& rows, std::span<const NeuronWindow::Load> neurons) {
  if (neurons.empty()) return;
  const BundleLayout& layout = neurons_->layout(plan_.parts[part].block.layer);
  const MatrixRows& range = rows.rows;
  const bool is_down = range.role == TensorRole::kDown;
  const int in_record = is_down ? layout.parts - 1 : range.role == TensorRole::kUp && layout.parts == 3 ? 1 : 0;
  const Bytes behind = layout.PartAt(in_record) - layout.PartAt(neurons_->FirstPart(plan_.parts[part].block.layer));
  targets_.clear();
  for (const auto& [neuron, row] : neurons) targets_.push_back({.neuron = neuron, .memory = RecordIn(part, neuron, row) + behind});
  MatrixPiece piece{.rows = rows.weight, .begin = range.begin, .end = range.end, .row_bytes = layout.part_bytes};
  if (!is_down) return CopyNeuronRows(piece, targets_);
  const auto bits = static_cast<int>(layout.part_bytes * 8 / spec_.config.hidden_size);
  piece.row_bytes = NeuronsOf(plan_, part) * bits / 8;
  CopyNeuronColumns(piece, bits, targets_);
}

void StageWeights::StartPieceRead(int part, int piece, int place, PartReader::Completion done) {
  reader_->StartRead(BlockOf(part), PartInBlock(part) + piece, pieces_.data() + place * piece_bytes_, std::move(done));
}

RowsInMemory StageWeights::PieceRows(int part, int piece, int i, int place) const {
  return reader_->Rows(BlockOf(part), PartInBlock(part) + piece, i, pieces_.data() + place * piece_bytes_);
}

const KvLoad* StageWeights::Kv(int part, int64_t step) const {
  return StreamsIn(part, step) ? OldestLoad(part).kv.get() : nullptr;
}

const StageWeights::Loaded& StageWeights::OldestLoad(int part) const {
  const auto loaded = std::ranges::find(loaded_, part, &Loaded::part);
  LIME_CHECK(loaded != loaded_.end()) << "part " << part << " is computed before it was loaded";
  return *loaded;
}

void StageWeights::StartLoad(int part, PartReader::Completion done) {
  const std::optional<Bytes> offset = ring_.Allocate(PlaceBytes(part));
  LIME_CHECK(offset.has_value()) << "the ring has no room for part " << part;
  std::byte* const place = ring_memory_.data() + *offset;
  loaded_.push_back({.part = part, .place = place, .kv = nullptr});
  if (plan_.parts[part].is_kv()) {
    loaded_.back().kv = kv_->StartLoad(part, place, std::move(done));
    return;
  }
  reader_->StartRead(BlockOf(part), PartInBlock(part), place, std::move(done));
}

void StageWeights::Change(const Plan& after, int64_t border, bool evicts_embedding) {
  evicts_embedding_ = evicts_embedding;
  streamed_before_ = streamed_;
  for (size_t part = 0; part < streamed_.size(); ++part) streamed_[part] = after.parts[part].streamed;
  border_ = border;
}

bool StageWeights::Streams() const {
  return std::ranges::any_of(parts_here_, [this](int part) { return streamed_[part]; });
}

bool StageWeights::MayEvict() const {
  if (ring_is_made_ && !Streams()) return true;
  if (std::ranges::any_of(parts_here_, [this](int part) { return streamed_[part] && (whole_[part] || own_[part].data() != nullptr); }))
    return true;
  return evicts_embedding_ &&
         std::ranges::any_of(blocks_, [](const Bound& bound) { return bound.whole && bound.block.id.kind == BlockKind::kEmbedding; });
}

EvictedWeights StageWeights::ReleaseEvicted() {
  EvictedWeights evicted;
  for (const int part : parts_here_) {
    if (!streamed_[part] || plan_.parts[part].is_kv()) continue;
    if (whole_[part]) Unbind(plan_.parts[part].block, evicted);
    read_[part] = false;
    if (own_[part].data() != nullptr) evicted.parts.push_back(std::move(own_[part]));
  }
  if (evicts_embedding_) Unbind({BlockKind::kEmbedding, 0}, evicted);
  if (ring_is_made_ && !Streams()) {
    evicted.parts.push_back(std::move(ring_memory_));
    ring_ = ByteRing(0), ring_is_made_ = false;
  }
  return evicted;
}

// From now on the backend has only what stays in memory while the block streams.
void StageWeights::Unbind(BlockId id, EvictedWeights& evicted) {
  const auto bound = std::ranges::find_if(blocks_, [id](const Bound& b) { return b.block.id == id; });
  LIME_CHECK(bound != blocks_.end()) << "an evicted block is not in memory";
  if (!std::exchange(bound->whole, false)) return;
  if (id.kind != BlockKind::kEmbedding) {
    const auto [begin, end] = PartsOf(plan_, id);
    std::fill(whole_.begin() + begin, whole_.begin() + end, false);
  }
  const BlockSpec& spec = spec_.block(id);
  LoadedBlock& matrices = evicted.blocks.emplace_back(bound->block);
  for (size_t i = 0; i < spec.tensors.size(); ++i) (IsPinned(spec.tensors[i]) ? matrices : bound->block).tensors[i].data = nullptr;
  const absl::Status status = backend_->BindBlock(spec, ToWeights(bound->block));
  LIME_CHECK(status.ok()) << status.message();  // it was bound before
}

EvictedWeights::~EvictedWeights() {
  for (const LoadedBlock& block : blocks) {
    for (const LoadedTensor& tensor : block.tensors) {
      if (tensor.data != nullptr) ReturnPages(tensor.data, tensor.bytes);
    }
  }
}

bool StageWeights::NeedsRing() const {
  return ring_memory_.data() == nullptr && Streams();
}

absl::StatusOr<HugeBuffer> StageWeights::MakeRing(Bytes ring) const {
  Bytes largest = 0;
  for (const int part : parts_here_) largest = std::max(largest, PlaceBytes(part));
  return HugeBuffer::AllocatePresent(ring + largest);
}

void StageWeights::SetRing(HugeBuffer memory) {
  ring_memory_ = std::move(memory);
  ring_ = ByteRing(ring_memory_.bytes());
  ring_is_made_ = true;
}

void StageWeights::StartResidentLoad(int part, HugeBuffer room, PartReader::Completion done) {
  own_[part] = std::move(room);
  reader_->StartRead(BlockOf(part), PartInBlock(part), own_[part].data(), [this, part, done = std::move(done)](const absl::Status& status) {
    read_[part] = status.ok();
    done(status);
  });
}

void StageWeights::ReleaseOldest() {
  ring_.ReleaseOldest();
  loaded_.pop_front();
}

}  // namespace lime
