#include "daemon/engine/streamer.h"

#include <algorithm>
#include <utility>

#include "daemon/engine/block_weights.h"
#include "daemon/engine/traced.h"
#include "planner/base/check.h"

namespace lime {
namespace {

using Use = WeightStream::Use;
using State = WeightStream::State;

// Whole, as it was loaded.
bool InMemory(const LoadedBlock& block) {
  return std::ranges::all_of(block.tensors, [](const LoadedTensor& tensor) { return tensor.data != nullptr; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Streamer>> Streamer::Create(const Checkpoint& checkpoint, const ModelSpec& spec, Backend& backend,
                                                           std::unique_ptr<PieceReader> reader, std::vector<LoadedBlock>& blocks,
                                                           const Options& options) {
  std::unique_ptr<Streamer> streamer(new Streamer(spec, backend, options));
  PieceLoader::Options loading{.ring_bytes = options.ring_bytes,
                               .resident = {},
                               .prefault = options.prefault,
                               .cancelled = options.cancelled,
                               .report = options.report,
                               .trace = options.trace,
                               .first_step = options.first_step};
  const int num_blocks = static_cast<int>(spec.blocks.size());
  for (int block = 0; block < num_blocks; ++block) loading.resident.push_back(InMemory(blocks[block]));
  LIME_ASSIGN_OR_RETURN(streamer->loader_, PieceLoader::Create(std::move(reader), num_blocks, loading));
  LIME_ASSIGN_OR_RETURN(
      streamer->rows_,
      RowReader::Open(
          checkpoint, spec,
          {.max_rows = options.max_rows, .cancelled = options.cancelled, .report = options.report, .wrap_device = options.wrap_device}));
  streamer->tokens_.reserve(static_cast<size_t>(options.max_rows));
  streamer->blocks_ = std::move(blocks);
  return streamer;
}

Streamer::~Streamer() {
  DropRoom();
}

// ---- A step

absl::Status Streamer::Step(const MicroBatch& batch, const std::function<void(int done, int total)>& on_block) {
  const bool with_head = std::ranges::any_of(batch.rows, [](const BatchRow& row) { return row.wants_logits; });
  LIME_RETURN_IF_ERROR(loader_->BeginStep(with_head));
  LIME_RETURN_IF_ERROR(Traced(options_.trace, loader_->step(), 0, [&] { return Embed(batch); }));
  for (int block = 1; block < static_cast<int>(spec_.blocks.size()); ++block) {
    if (options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed)) {
      return absl::CancelledError("interrupted between two blocks");
    }
    if (on_block) on_block(block, static_cast<int>(spec_.blocks.size()));
    if (between_blocks_) between_blocks_();
    TakeRoom().IgnoreError();  // memory that is not there after all is asked for again by who wants it
    LIME_RETURN_IF_ERROR(RunBlock(block));
    GiveBackFreed();
  }
  return absl::OkStatus();
}

absl::Status Streamer::Embed(const MicroBatch& batch) {
  if (IsWhole(0)) return backend_.Embed();
  tokens_.clear();
  for (const BatchRow& row : batch.rows) tokens_.push_back(row.token);
  LIME_RETURN_IF_ERROR(rows_->Read(tokens_));
  return backend_.EmbedRows(rows_->rows());
}

absl::Status Streamer::RunBlock(int block) {
  const Use use = loader_->BeginBlock();
  if (use == Use::kStream || use == Use::kFill) {
    for (int piece = 0; piece < loader_->reader().NumPieces(block); ++piece) {
      LIME_ASSIGN_OR_RETURN(const std::byte* const place, loader_->AwaitPiece(piece));
      LIME_RETURN_IF_ERROR(Traced(options_.trace, loader_->step(), block, [&] { return ComputePiece(block, piece, place); }));
      loader_->ReleasePiece();
    }
  } else if (use == Use::kResident) {
    LIME_RETURN_IF_ERROR(Traced(options_.trace, loader_->step(), block,
                                [&] { return IsWhole(block) ? ComputeWhole(spec_.blocks[block].id) : ComputeFilled(block); }));
  }
  return loader_->FinishBlock();
}

absl::Status Streamer::ComputeWhole(BlockId id) {
  switch (id.kind) {
    case BlockKind::kEmbedding:
      return absl::OkStatus();
    case BlockKind::kAttention:
      return backend_.Attention(id.layer);
    case BlockKind::kMlp:
      return backend_.Mlp(id.layer);
    case BlockKind::kHead:
      return backend_.Head();
  }
  return absl::OkStatus();
}

absl::Status Streamer::ComputePiece(int block, int piece, const std::byte* place) {
  const PieceReader& reader = loader_->reader();
  for (int i = 0; i < reader.NumRows(block, piece); ++i) {
    LIME_RETURN_IF_ERROR(backend_.ComputeRows(spec_.blocks[block].id, reader.Rows(block, piece, i, place)));
  }
  return absl::OkStatus();
}

absl::Status Streamer::ComputeFilled(int block) {
  for (int piece = 0; piece < loader_->reader().NumPieces(block); ++piece) {
    const std::byte* const place = loader_->FilledPiece(block, piece);
    LIME_CHECK(place != nullptr) << "block " << block << " is resident without memory";
    LIME_RETURN_IF_ERROR(ComputePiece(block, piece, place));
  }
  return absl::OkStatus();
}

// ---- Residency

bool Streamer::IsWhole(int block) const {
  return InMemory(blocks_[block]);
}

Bytes Streamer::MatrixBytes(int block) const {
  return spec_.blocks[block].bytes - KeptBytes(spec_.blocks[block]);
}

Bytes Streamer::resident_bytes() const {
  Bytes bytes = IsWhole(0) && !spec_.config.tie_embeddings ? MatrixBytes(0) : 0;
  for (int block = 1; block < static_cast<int>(blocks_.size()); ++block) {
    if (loader_->state(block) != State::kStreamed) bytes += MatrixBytes(block);
  }
  return room_ == nullptr ? bytes : bytes + MatrixBytes(room_->block);
}

int Streamer::num_resident() const {
  int count = IsWhole(0) ? 1 : 0;
  for (int block = 1; block < static_cast<int>(blocks_.size()); ++block) count += loader_->state(block) != State::kStreamed ? 1 : 0;
  return count;
}

Bytes Streamer::StreamedBytes() const {
  Bytes bytes = 0;
  for (int block = 1; block < static_cast<int>(blocks_.size()); ++block) {
    if (loader_->state(block) == State::kStreamed) bytes += MatrixBytes(block);
  }
  return bytes;
}

Bytes Streamer::Shed(Bytes bytes) {
  const int head = static_cast<int>(blocks_.size()) - 1;
  Bytes given = DropRoom();
  const auto shed = [&](int block) {
    const State state = loader_->state(block);
    if (state == State::kStreamed) return;
    given += MatrixBytes(block);
    if (state == State::kShedding) return;
    shed_.push_back(block);
    if (loader_->Shed(block)) GiveBack(block);
  };
  for (int block = head - 1; block > 0 && given < bytes; --block) shed(block);
  if (given < bytes) shed(head);
  if (given < bytes && IsWhole(0) && !spec_.config.tie_embeddings) {
    given += MatrixBytes(0);
    given_up_ += MatrixBytes(0);
    GiveBack(0);
  }
  return given;
}

absl::StatusOr<bool> Streamer::Regain(Bytes bytes) {
  LIME_RETURN_IF_ERROR(TakeRoom());
  if (room_ != nullptr) return true;
  if (shed_.empty()) return false;
  const int block = shed_.back();
  const bool in_memory = loader_->state(block) == State::kShedding;
  if (!in_memory && MatrixBytes(block) > bytes) return false;
  shed_.pop_back();
  in_memory ? loader_->Fill(block, {}) : BeginRoom(block);
  return true;
}

void Streamer::BeginRoom(int block) {
  if (!worker_) worker_.emplace();
  room_ = std::make_shared<Room>();
  room_->block = block;
  worker_->Post([loader = loader_.get(), room = room_] {
    room->memory = loader->MakeRoom(room->block, &room->stop);
    room->done.store(true, std::memory_order_release);
  });
}

// Where the memory is there, the block's next use reads it.
absl::Status Streamer::TakeRoom() {
  if (room_ == nullptr || !room_->done.load(std::memory_order_acquire)) return absl::OkStatus();
  const std::shared_ptr<Room> room = std::exchange(room_, nullptr);
  if (!room->memory.ok()) shed_.push_back(room->block);
  LIME_RETURN_IF_ERROR(room->memory.status());
  loader_->Fill(room->block, *std::move(room->memory));
  return absl::OkStatus();
}

// Gives the room up that is being made. Returns the bytes of its block.
Bytes Streamer::DropRoom() {
  if (room_ == nullptr) return 0;
  const std::shared_ptr<Room> room = std::exchange(room_, nullptr);
  room->stop.store(true, std::memory_order_relaxed);
  shed_.push_back(room->block);
  return MatrixBytes(room->block);
}

void Streamer::GiveBackFreed() {
  for (const int block : loader_->TakeFreed()) {
    GiveBack(block);
    if (std::ranges::find(shed_, block) == shed_.end()) shed_.push_back(block);  // a fill that a failed step has ended
  }
}

// A tied embedding goes with the head, whose memory it is.
void Streamer::GiveBack(int block) {
  const auto free = [this](int b) {
    if (!IsWhole(b)) return;
    FreeMatrices(blocks_[b], spec_.blocks[b]);
    const absl::Status bound = backend_.BindBlock(spec_.blocks[b], ToWeights(blocks_[b]));
    LIME_CHECK(bound.ok()) << bound.message();  // it was bound before
  };
  free(block);
  if (spec_.config.tie_embeddings && block == static_cast<int>(blocks_.size()) - 1) free(0);
}

void FreeMatrices(LoadedBlock& block, const BlockSpec& spec) {
  for (size_t i = 0; i < block.tensors.size(); ++i) {
    LoadedTensor& tensor = block.tensors[i];
    if (IsKept(spec.tensors[i]) || tensor.data == nullptr) continue;
    ReturnPages(std::exchange(tensor.data, nullptr), tensor.bytes);
  }
}

}  // namespace lime
