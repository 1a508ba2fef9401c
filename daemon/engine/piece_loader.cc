#include "daemon/engine/piece_loader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/steady_clock.h"
#include "planner/base/check.h"

namespace lime {
namespace {

using Use = WeightStream::Use;

}  // namespace

Bytes PieceLoader::LeastRing(const PieceReader& reader, int num_blocks) {
  Bytes largest = 0;
  for (int block = 1; block < num_blocks; ++block) {
    for (int piece = 0; piece < reader.NumPieces(block); ++piece) largest = std::max(largest, reader.PlaceBytes(block, piece));
  }
  return 2 * largest;
}

absl::StatusOr<std::unique_ptr<PieceLoader>> PieceLoader::Create(std::unique_ptr<PieceReader> reader, int num_blocks,
                                                                 const Options& options) {
  const Bytes least = LeastRing(*reader, num_blocks);
  if (options.ring_bytes < least) {
    return absl::ResourceExhaustedError(absl::StrCat("the byte ring for streamed pieces has ", FormatBytes(options.ring_bytes),
                                                     " and must hold two pieces, ", FormatBytes(least),
                                                     "; raise --memory or --pool, or lower --context"));
  }
  LIME_ASSIGN_OR_RETURN(HugeBuffer ring, HugeBuffer::Allocate(options.ring_bytes));
  if (options.prefault) LIME_RETURN_IF_ERROR(ring.Prefault());
  std::vector<WeightStream::Block> blocks;
  for (int block = 1; block < num_blocks; ++block) {
    WeightStream::Block& spec = blocks.emplace_back();
    spec.resident = options.resident[block];
    for (int piece = 0; piece < reader->NumPieces(block); ++piece) spec.piece_bytes.push_back(reader->PlaceBytes(block, piece));
  }
  return std::unique_ptr<PieceLoader>(new PieceLoader(std::move(reader), options, std::move(ring), std::move(blocks)));
}

PieceLoader::PieceLoader(std::unique_ptr<PieceReader> reader, const Options& options, HugeBuffer ring,
                         std::vector<WeightStream::Block> blocks)
    : options_(options),
      ring_(std::move(ring)),
      place_sums_(1),
      stream_(blocks, ring_.bytes()),
      step_(options.first_step - 1),
      reader_(std::move(reader)) {
  for (const WeightStream::Block& block : blocks) {
    std::vector<Bytes>& sums = place_sums_.emplace_back(1, 0);
    for (const Bytes bytes : block.piece_bytes) sums.push_back(sums.back() + bytes);
  }
  absl::MutexLock lock(&mutex_);
  own_.resize(place_sums_.size());
}

PieceLoader::~PieceLoader() {
  {
    absl::MutexLock lock(&mutex_);
    status_.Update(absl::CancelledError("closed"));  // nothing new is started
  }
  reader_->Cancel();
  reader_.reset();
}

// ---- A step

absl::Status PieceLoader::BeginStep(bool with_head) {
  absl::MutexLock lock(&mutex_);
  if (interrupted_) {
    status_ = absl::CancelledError("begun anew");  // nothing is started until all that is under way has ended
    const std::function<std::string()> what = [] { return std::string("what an interrupted step has asked for"); };
    StallWatch watch(options_.report, what, reader_->bytes_read());
    while (stream_.loads_under_way() > 0) {
      changed_.WaitWithTimeout(&mutex_, StallWatch::kPoll);
      watch.Poll(reader_->bytes_read());
      if (options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed)) return status_;
    }
    watch.End();
    std::vector<int32_t> freed;
    stream_.Restart(freed);
    for (const int32_t block : freed) Freed(block);
    status_ = absl::OkStatus();
  }
  interrupted_ = true;  // until the last block has ended
  ++step_;
  LIME_CHECK_EQ(stream_.block(), 0);
  if (!with_head) stream_.SkipNextUse(stream_.num_blocks() - 1);
  StartLoads();
  return status_;
}

Use PieceLoader::BeginBlock() {
  absl::MutexLock lock(&mutex_);
  const Use use = stream_.CurrentUse();
  StartLoads();
  return use;
}

absl::StatusOr<const std::byte*> PieceLoader::AwaitPiece(int piece) {
  absl::MutexLock lock(&mutex_);
  const int block = stream_.block() + 1;
  LIME_RETURN_IF_ERROR(Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stream_.ReadyPiece() != nullptr; },
                             [&] { return reader_->Describe(block, piece); }));
  const WeightStream::Load& load = *stream_.ReadyPiece();
  LIME_CHECK(load.block + 1 == block && load.piece == piece) << load.block + 1 << "." << load.piece << " for " << block << "." << piece;
  return load.in_ring ? ring_.data() + load.offset : own_[block].data() + place_sums_[block][piece];
}

void PieceLoader::ReleasePiece() {
  absl::MutexLock lock(&mutex_);
  stream_.ReleasePiece();
  StartLoads();
}

absl::Status PieceLoader::FinishBlock() {
  absl::MutexLock lock(&mutex_);
  StartLoads();
  if (!status_.ok()) return status_;
  const int block = stream_.block();
  LIME_RETURN_IF_ERROR(Await([this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !stream_.DropsPending(); },
                             [&] { return reader_->Describe(block + 1, 0); }));
  if (stream_.FinishBlock()) Freed(block);
  if (stream_.block() == 0) interrupted_ = false;
  StartLoads();
  return absl::OkStatus();
}

// The computation waits here, and only here, for the disk.
absl::Status PieceLoader::Await(const std::function<bool()>& ready, const std::function<std::string()>& what) {
  if (!status_.ok() || ready()) return status_;  // after a failed read nothing is handed out: it may be what failed
  const double begin_ms = options_.trace != nullptr ? SteadyMs() : 0;
  StallWatch watch(options_.report, what, reader_->bytes_read());
  while (!ready() && status_.ok()) {
    changed_.WaitWithTimeout(&mutex_, StallWatch::kPoll);
    if (options_.cancelled != nullptr && options_.cancelled->load(std::memory_order_relaxed)) {
      status_ = absl::CancelledError("interrupted while waiting for weights");  // and nothing more is started
      break;
    }
    watch.Poll(reader_->bytes_read());
  }
  if (options_.trace != nullptr) {
    options_.trace->Add(
        {.kind = TimelineSpan::Kind::kWaitWeights, .begin_ms = begin_ms, .end_ms = SteadyMs(), .step = step_, .part = stream_.block() + 1});
  }
  stats_.waited += watch.elapsed();
  stats_.stalls += watch.stalled() ? 1 : 0;
  if (status_.ok()) watch.End();
  return status_;
}

// ---- Loads

void PieceLoader::StartLoads() {
  if (!status_.ok()) return;
  starting_.clear();
  const bool idle = stream_.loads_under_way() == 0;
  stream_.Advance(starting_);
  if (idle && !starting_.empty()) {
    busy_since_ = absl::Now();
    if (options_.trace != nullptr) reading_since_ms_ = SteadyMs();
  }
  for (const WeightStream::Load& load : starting_) {
    const int block = load.block + 1;
    std::byte* const place = load.in_ring ? ring_.data() + load.offset : own_[block].data() + place_sums_[block][load.piece];
    reader_->StartRead(block, load.piece, place, [this, id = load.id](const absl::Status& status) { OnLoaded(id, status); });
  }
}

void PieceLoader::OnLoaded(int64_t id, const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  status_.Update(status);
  if (options_.trace != nullptr) NoteLoaded(id);
  stream_.OnLoaded(id);
  if (stream_.loads_under_way() == 0) stats_.busy += absl::Now() - busy_since_;
  StartLoads();
  changed_.SignalAll();
}

// Reads are asked for ahead, and the disk does one after another: each is at work since the one before has ended.
void PieceLoader::NoteLoaded(int64_t id) {
  const int32_t block = stream_.load(id).block;
  const bool ahead = !interrupted_ || block < stream_.block();  // it is for the next step
  const double begin_ms = std::exchange(reading_since_ms_, SteadyMs());
  options_.trace->Add({.kind = TimelineSpan::Kind::kLoad,
                       .begin_ms = begin_ms,
                       .end_ms = reading_since_ms_,
                       .step = step_ + (ahead ? 1 : 0),
                       .part = block + 1});
}

PieceLoader::Stats PieceLoader::stats() const {
  absl::MutexLock lock(&mutex_);
  Stats stats = stats_;
  stats.bytes_read = reader_->bytes_read();
  if (stream_.loads_under_way() > 0) stats.busy += absl::Now() - busy_since_;
  return stats;
}

// ---- Residency

WeightStream::State PieceLoader::state(int block) const {
  absl::MutexLock lock(&mutex_);
  return stream_.state(block - 1);
}

const std::byte* PieceLoader::FilledPiece(int block, int piece) const {
  absl::MutexLock lock(&mutex_);
  return own_[block].data() == nullptr ? nullptr : own_[block].data() + place_sums_[block][piece];
}

bool PieceLoader::Shed(int block) {
  absl::MutexLock lock(&mutex_);
  if (!stream_.Shed(block - 1)) return false;
  own_[block] = HugeBuffer();
  StartLoads();
  return true;
}

absl::StatusOr<HugeBuffer> PieceLoader::MakeRoom(int block, const std::atomic<bool>* stop) const {
  LIME_ASSIGN_OR_RETURN(HugeBuffer own, HugeBuffer::Allocate(FilledBytes(block)));
  LIME_RETURN_IF_ERROR(own.Prefault(stop));
  return own;
}

void PieceLoader::Fill(int block, HugeBuffer own) {
  absl::MutexLock lock(&mutex_);
  if (stream_.state(block - 1) == WeightStream::State::kStreamed) {
    LIME_CHECK_GE(own.bytes(), FilledBytes(block)) << "room of block " << block;
    own_[block] = std::move(own);
  }
  stream_.Fill(block - 1);
  StartLoads();
}

void PieceLoader::Freed(int stream_block) {
  own_[stream_block + 1] = HugeBuffer();
  freed_.push_back(stream_block + 1);
}

std::vector<int> PieceLoader::TakeFreed() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(freed_, {});
}

}  // namespace lime
