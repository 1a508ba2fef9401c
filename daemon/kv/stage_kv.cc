#include "daemon/kv/stage_kv.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_rows.h"

namespace lime {

class KvLoad {
 public:
  struct Sequence {
    int64_t life = 0;
    int64_t begun = 0;  // pieces that are read, from the part's first on
    // How many of these came with the right checksum; known when the load has ended.
    int64_t there = 0;
    std::vector<uint64_t> hashes;  // of the pieces that are read
  };

  int part = 0;
  std::byte* place = nullptr;
  Bytes piece_bytes = 0;
  int64_t pieces = 0;  // of the part, for each sequence
  std::vector<Sequence> sequences;

  std::byte* Place(int64_t sequence, int64_t piece) const { return place + (sequence * pieces + piece) * piece_bytes; }
};

namespace {

// Ends a load when all of its reads have ended.
class LoadEnd {
 public:
  LoadEnd(const KvFile& file, std::shared_ptr<KvLoad> load, int reads, std::function<void(absl::Status)> done)
      : file_(file), load_(std::move(load)), remaining_(reads), done_(std::move(done)) {}

  // Thread: the reader's, one call after another. A checksum is wrong if another sequence has taken
  // the place meanwhile, or the disk has erred. Attend reads such a piece again if it needs it.
  void Ended(int64_t sequence, const absl::Status& status) {
    status_.Update(status);
    KvLoad::Sequence& s = load_->sequences[static_cast<size_t>(sequence)];
    while (status.ok() && s.there < s.begun && file_.HashOf(load_->Place(sequence, s.there)) == s.hashes[static_cast<size_t>(s.there)])
      ++s.there;
    if (--remaining_ == 0) done_(status_);
  }

 private:
  const KvFile& file_;
  const std::shared_ptr<KvLoad> load_;
  int remaining_;
  const std::function<void(absl::Status)> done_;
  absl::Status status_;
};

// Pages [first, second) of the states of a sequence that continue.
std::pair<int64_t, int64_t> PagesThatContinue(const KvSequence& sequence, int64_t pages_of_state) {
  const auto continues = [](int64_t positions) { return positions > 0; };
  const std::vector<int64_t>& states = sequence.states;
  const auto first = std::ranges::find_if(states, continues);
  const auto last = std::find_if(states.rbegin(), states.rend(), continues);
  if (first == states.end()) return {0, 0};
  return {(first - states.begin()) * pages_of_state, (states.rend() - last) * pages_of_state};
}

}  // namespace

StageKv::StageKv(const Plan& plan, Options options)
    : plan_(plan),
      options_(std::move(options)),
      pieces_((plan.context + kKvPiece - 1) / kKvPiece),
      window_(WindowOf(plan)),
      book_(plan, ShapeOf(plan, options_)) {
  const std::vector<int64_t> most_pages = MostPagesOn(plan, options_.stage.device);
  for (size_t i = 0; i < options_.stage.layers.size(); ++i) {
    const bool gives_back = window_.positions > 0 && most_pages[i] == window_.pages;
    if (gives_back && plan.state_snapshots > 0) window_layers_.push_back(options_.stage.layers[i]);
  }
}

KvBook::Shape StageKv::ShapeOf(const Plan& plan, const Options& options) {
  const PlanDevice& device = plan.devices[options.stage.device];
  const bool on_host = HasKvOnHost(device);
  return {.device = options.stage.device,
          .layers = std::ssize(options.stage.layers),
          .leaves = device.max_layer_pages > 0 && !options.stage.layers.empty() && (!on_host || HostedPieces(plan, device) > 0),
          .after_a_step = on_host};
}

absl::StatusOr<std::unique_ptr<StageKv>> StageKv::Create(const Plan& plan, Options options) {
  std::unique_ptr<StageKv> kv(new StageKv(plan, std::move(options)));
  const int64_t layers = std::ssize(kv->options_.stage.layers);
  const Bytes of_snapshots = std::ssize(kv->window_layers_) * SnapshotBytes(plan, kv->window_);
  if (of_snapshots > 0) {
    LIME_ASSIGN_OR_RETURN(kv->snapshots_, HugeBuffer::AllocatePresent(of_snapshots));
  }
  if (plan.devices[kv->options_.stage.device].max_layer_pages == 0 || layers == 0) return kv;
  const Bytes piece_bytes = KvPieceBytes(plan);
  if (HasKvOnHost(plan.devices[kv->options_.stage.device])) {
    // All pieces have room here.
    if (HostedPieces(plan, plan.devices[kv->options_.stage.device]) == 0) return kv;
    LIME_ASSIGN_OR_RETURN(kv->lent_, LentKv::Create(plan, kv->options_.stage, kv->book().away()));
  } else {
    const KvFile::Shape shape{.layers = layers, .sequences = plan.sequences, .pieces = kv->pieces_, .piece_bytes = piece_bytes};
    LIME_ASSIGN_OR_RETURN(kv->file_, KvFile::Create(kv->options_.folder, shape, kv->options_.wrap_device));
  }
  LIME_ASSIGN_OR_RETURN(kv->staging_, HugeBuffer::AllocatePresent(piece_bytes));
  kv->writer_.emplace();
  return kv;
}

StageKv::~StageKv() {
  {
    absl::MutexLock lock(options_.mutex);
    stopping_ = true;
  }
  writer_.reset();
}

void StageKv::Show(int32_t sequence) {
  for (size_t i = 0; i < options_.stage.layers.size(); ++i)
    options_.stage.backend->SetPages(sequence, options_.stage.layers[i], book_.pages().Pages(sequence, static_cast<int64_t>(i)));
}

// ---- From one plan to the next

absl::Status StageKv::TakeOver(const KvTakeover& from) {
  if (!RetainsAllKv(plan_)) return absl::FailedPreconditionError("a plan that evicts KV cannot take over KV");
  LIME_ASSIGN_OR_RETURN(const std::vector<int64_t> away, AwayAtFirst(plan_, options_.stage.device, from.sequences));
  LIME_RETURN_IF_ERROR(book_.TakeOver(from.sequences, away));
  while (const std::optional<int32_t> sequence = book_.NextShown()) Show(*sequence);
  for (int64_t i = 0; i < std::ssize(options_.stage.layers); ++i) {
    const std::vector<KvExtent> wanted = WantedOf(options_.stage.layers[static_cast<size_t>(i)], from.sequences, away);
    const auto sink = [&](int32_t slot, int64_t first, std::span<const std::byte> pages) {
      const auto sequence = std::ranges::find(from.sequences, slot, &KvSequence::from);
      if (sequence == from.sequences.end()) return Invalid("KV of slot ", slot, " arrived, but that slot does not continue");
      return StorePages(i, sequence->to, first, pages);
    };
    LIME_RETURN_IF_ERROR(from.read(options_.stage.layers[static_cast<size_t>(i)], options_.stage.backend->numerics_id(), wanted, sink));
  }
  for (const int32_t layer : options_.state_layers) LIME_RETURN_IF_ERROR(TakeOverStates(from, layer));
  return absl::OkStatus();
}

// The states of a slot, as they follow one another: the state, then its snapshots.
std::span<std::byte> StageKv::StateAt(int32_t sequence, int64_t copy, int32_t layer) const {
  Backend& backend = *options_.stage.backend;
  return copy == 0 ? backend.State(sequence, layer) : backend.Snapshot(sequence, static_cast<int32_t>(copy - 1), layer);
}

absl::Status StageKv::TakeOverStates(const KvTakeover& from, int32_t layer) {
  const int64_t pages_of_state = StatePages(std::ssize(StateAt(0, 0, layer)), plan_.page_bytes);
  std::vector<KvExtent> wanted;
  for (const KvSequence& sequence : from.sequences) {
    const auto [first, end] = PagesThatContinue(sequence, pages_of_state);
    if (first < end) wanted.push_back({.sequence = sequence.from, .first = first, .end = end});
  }
  const auto sink = [&](int32_t slot, int64_t first, std::span<const std::byte> pages) {
    const auto sequence = std::ranges::find(from.sequences, slot, &KvSequence::from);
    const int64_t count = std::ssize(pages) / plan_.page_bytes;
    if (sequence == from.sequences.end() || first < 0 || first + count > std::ssize(sequence->states) * pages_of_state ||
        count * plan_.page_bytes != std::ssize(pages))
      return Invalid(pages.size(), " bytes of states of slot ", slot, " from page ", first,
                     " on arrived, but that slot continues with fewer");
    for (int64_t i = 0; i < count; ++i) {
      const int64_t copy = (first + i) / pages_of_state, at = (first + i) % pages_of_state * plan_.page_bytes;
      const std::span<std::byte> state = StateAt(sequence->to, copy, layer).subspan(static_cast<size_t>(at));
      const auto bytes = std::min(state.size(), static_cast<size_t>(plan_.page_bytes));
      std::memcpy(state.data(), pages.data() + i * plan_.page_bytes, bytes);
    }
    return absl::OkStatus();
  };
  LIME_RETURN_IF_ERROR(from.read(layer, options_.stage.backend->numerics_id(), wanted, sink));
  for (const KvSequence& sequence : from.sequences) {
    for (int64_t copy = 0; copy < std::ssize(sequence.states); ++copy) {
      const int64_t expected = sequence.states[static_cast<size_t>(copy)];
      int64_t positions = 0;
      std::memcpy(&positions, StateAt(sequence.to, copy, layer).data(), sizeof positions);
      if (expected > 0 && positions != expected)
        return absl::DataLossError(
            absl::StrCat("a state of layer ", layer, " and slot ", sequence.from, " has ", positions, " positions, not ", expected));
    }
  }
  return absl::OkStatus();
}

StatesLeft StageKv::HandOverStates() const {
  StatesLeft left{
      .memory = options_.stage.backend->ShareStates(), .bytes = options_.stage.backend->StateBytes(), .of_slot = 1 + plan_.state_snapshots};
  for (const int32_t layer : options_.state_layers) {
    for (int32_t s = 0; s < plan_.sequences; ++s) {
      for (int64_t copy = 0; copy < left.of_slot; ++copy) left.layers[layer].push_back(StateAt(s, copy, layer));
    }
  }
  return left;
}

// The pages of a layer that this device needs.
std::vector<KvExtent> StageKv::WantedOf(int32_t layer, const std::vector<KvSequence>& sequences, const std::vector<int64_t>& away) const {
  const KvWindow& window = plan_.parts[PartsOf(plan_, {BlockKind::kAttention, layer}).first].window;
  std::vector<KvExtent> wanted;
  for (size_t s = 0; s < away.size(); ++s) {
    const int64_t positions = sequences[s].positions, end = KvPages::PagesFor(positions, 1);
    const int64_t first = lent_ != nullptr ? away[s] * kKvPiecePages : window.FirstPageTaken(positions);
    if (first < end) wanted.push_back({.sequence = sequences[s].from, .first = first, .end = end});
  }
  return wanted;
}

absl::Status StageKv::StorePages(int64_t layer, int32_t sequence, int64_t first, std::span<const std::byte> pages) {
  const std::span<const int32_t> held = book_.pages().Pages(sequence, layer);
  const int64_t count = std::ssize(pages) / plan_.page_bytes;
  if (first < 0 || first + count > std::ssize(held) || count * plan_.page_bytes != std::ssize(pages))
    return Invalid(pages.size(), " bytes of KV from page ", first, " on arrived, but slot ", sequence, " has ", held.size(), " pages");
  if (first < book_.away().away(sequence) * kKvPiecePages) return StoreOnDisk(layer, sequence, first, pages);
  for (int64_t i = 0; i < count; ++i)
    std::memcpy(options_.stage.backend->KvPage(held[static_cast<size_t>(first + i)]), pages.data() + i * plan_.page_bytes,
                static_cast<size_t>(plan_.page_bytes));
  return absl::OkStatus();
}

// Collects runs until the piece is complete.
absl::Status StageKv::StoreOnDisk(int64_t layer, int32_t sequence, int64_t first, std::span<const std::byte> pages) {
  const int64_t count = std::ssize(pages) / plan_.page_bytes, piece = first / kKvPiecePages, at = first % kKvPiecePages;
  if (file_ == nullptr || at + count > kKvPiecePages)
    return Invalid("KV from page ", first, " on arrived, but slot ", sequence, " does not keep it on this device");
  std::memcpy(staging_.data() + at * plan_.page_bytes, pages.data(), pages.size());
  if (at + count < kKvPiecePages) return absl::OkStatus();
  file_->hash(layer, sequence, piece) = file_->HashOf(staging_.data());
  LIME_RETURN_IF_ERROR(file_->Write(layer, sequence, piece, staging_.data()));
  bytes_written_ += staging_.bytes();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<KvHandover>> StageKv::HandOver(const std::string& numerics_id, std::shared_ptr<const std::byte> memory,
                                                              KvOfOthers others) {
  {
    absl::MutexLock lock(options_.mutex);
    stopping_ = true;
  }
  writer_.reset();
  {
    absl::MutexLock lock(&loads_mutex_);  // the ring, which their reads fill, is freed next
    loads_mutex_.Await(absl::Condition(
        +[](int64_t* count) { return *count == 0; }, &loads_under_way_));
  }
  if (!RetainsAllKv(plan_)) return absl::FailedPreconditionError("the plan evicts KV");
  snapshots_ = HugeBuffer();  // the next plan takes its own
  absl::MutexLock lock(options_.mutex);
  const KvAway& away = book_.away();
  std::vector<KvLent> lent;
  for (int32_t s = 0; lent_ != nullptr && s < plan_.sequences; ++s) {
    if (away.away(s) > 0) lent.push_back({.sequence = s, .pieces = away.away(s), .life = away.life(s)});
  }
  return std::make_shared<KvHandover>(KvHandover::Content{.numerics_id = numerics_id,
                                                          .page_bytes = plan_.page_bytes,
                                                          .layers = options_.stage.layers,
                                                          .sequences = plan_.sequences,
                                                          .memory = std::move(memory),
                                                          .memory_bytes = book_.pages().num_pages() * plan_.page_bytes,
                                                          .pages = std::move(book_.pages()),
                                                          .file = std::move(file_),
                                                          .lent = std::move(lent),
                                                          .others = std::move(others),
                                                          .states = HandOverStates()});
}

std::optional<Bytes> StageKv::disk_room() const {
  if (file_ != nullptr) return file_->Room();
  const absl::StatusOr<Bytes> free = FreeDiskBytes(options_.folder);
  return free.ok() ? std::optional(*free) : std::nullopt;
}

// ---- Decisions

void StageKv::Follow() {
  options_.mutex->AssertHeld();
  if (const std::optional<KvBook::PageCopy> copy = book_.NextCopy()) CopyPages(*copy);
  if (const std::optional<StateBook::Restore> restore = book_.NextRestore()) Restore(*restore);
  while (const std::optional<int32_t> sequence = book_.NextShown()) Show(*sequence);
  while (const std::optional<KvBook::Ended> ended = book_.NextEnded()) {
    if (lent_ != nullptr) lent_->Free(ended->sequence, ended->life);
  }
  WriteNext();
}

// No step is under way, so nothing writes these pages. If a layer gives pages back, the first
// ones have later positions by now.
void StageKv::CopyPages(const KvBook::PageCopy& copy) {
  for (int64_t layer = 0; layer < std::ssize(options_.stage.layers); ++layer) {
    const std::span<const int32_t> from = book_.pages().Pages(copy.from, layer), to = book_.pages().Pages(copy.to, layer);
    const int64_t first = std::max<int64_t>(0, copy.pages - book_.pages().MostPages(layer));
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(copy.pages); ++i)
      std::memcpy(options_.stage.backend->KvPage(to[i]), options_.stage.backend->KvPage(from[i]), static_cast<size_t>(plan_.page_bytes));
  }
}

std::byte* StageKv::SnapshotAt(int64_t with_window, int32_t sequence, int32_t snapshot) const {
  const int64_t at = (with_window * plan_.sequences + sequence) * plan_.state_snapshots + snapshot;
  return snapshots_.data() + at * SnapshotPages(window_) * plan_.page_bytes;
}

// The rows of a micro-batch leave the pages that the row behind any of them attends to (WindowPages).
void StageKv::TakeSnapshots(int32_t layer, const MicroBatch& batch) {
  const auto found = std::ranges::find(window_layers_, layer);
  if (found == window_layers_.end()) return;
  for (const BatchRow& row : batch.rows) {
    if (row.snapshot < 0) continue;
    std::byte* to = SnapshotAt(found - window_layers_.begin(), row.sequence, row.snapshot);
    const int64_t end = (row.position + 1) / kPageTokens;
    absl::MutexLock lock(options_.mutex);
    const std::span<const int32_t> pages = book_.pages().Pages(row.sequence, options_.stage.LayerIndex(layer));
    for (int64_t page = window_.FirstPage(row.position + 1); page < end; ++page, to += plan_.page_bytes)
      std::memcpy(to, options_.stage.backend->KvPage(pages[static_cast<size_t>(page)]), static_cast<size_t>(plan_.page_bytes));
  }
}

// No step is under way, so nothing uses these states and pages.
void StageKv::Restore(const StateBook::Restore& restore) {
  for (const int32_t layer : options_.state_layers) {
    const std::span<const std::byte> from = options_.stage.backend->Snapshot(restore.from, restore.snapshot, layer);
    std::memcpy(options_.stage.backend->State(restore.to, layer).data(), from.data(), from.size());
  }
  for (size_t i = 0; i < window_layers_.size(); ++i) {
    const std::byte* from = SnapshotAt(static_cast<int64_t>(i), restore.from, restore.snapshot);
    const std::span<const int32_t> pages = book_.pages().Pages(restore.to, options_.stage.LayerIndex(window_layers_[i]));
    for (int64_t page = window_.FirstPage(restore.positions); page < restore.positions / kPageTokens; ++page, from += plan_.page_bytes)
      std::memcpy(options_.stage.backend->KvPage(pages[static_cast<size_t>(page)]), from, static_cast<size_t>(plan_.page_bytes));
  }
}

void StageKv::EndStep() {
  options_.mutex->AssertHeld();
  if (lent_ != nullptr) lent_->EndStep();
}

// ---- Writing

void StageKv::WriteNext() {
  if (!writer_ || stopping_) return;
  const std::optional<KvAway::Piece> piece = book_.NextWrite();
  if (piece) writer_->Post([this, piece = *piece] { WritePiece(piece); });
}

// Thread: the writer.
void StageKv::WritePiece(const KvAway::Piece& piece) {
  std::vector<uint64_t> hashes(options_.stage.layers.size());
  absl::Status status;
  for (int64_t layer = 0; status.ok() && layer < std::ssize(hashes); ++layer) {
    status = WriteLayer(piece, layer, hashes[static_cast<size_t>(layer)]);
  }
  absl::MutexLock lock(options_.mutex);
  const bool ended = book_.away().life(piece.sequence) != piece.life;
  for (int64_t layer = 0; status.ok() && !ended && layer < std::ssize(hashes); ++layer) {
    if (file_ != nullptr) file_->hash(layer, piece.sequence, piece.piece) = hashes[static_cast<size_t>(layer)];
    bytes_written_ += staging_.bytes();
  }
  book_.Written(piece, status);
  if (stopping_) return;
  WriteNext();
  options_.wrote();
}

// Copies pages under the lock, so that no other sequence gets them meanwhile.
absl::Status StageKv::WriteLayer(const KvAway::Piece& piece, int64_t layer, uint64_t& hash) {
  {
    absl::MutexLock lock(options_.mutex);
    if (stopping_ || book_.away().life(piece.sequence) != piece.life) return absl::CancelledError("its sequence has ended");
    const std::span<const int32_t> pages = book_.pages().Pages(piece.sequence, layer);
    for (int64_t i = 0; i < kKvPiecePages; ++i) {
      const int32_t page = pages[static_cast<size_t>(piece.piece * kKvPiecePages + i)];
      std::memcpy(staging_.data() + i * plan_.page_bytes, options_.stage.backend->KvPage(page), static_cast<size_t>(plan_.page_bytes));
    }
  }
  if (lent_ != nullptr) return Lend(piece, layer);
  hash = file_->HashOf(staging_.data());
  return file_->Write(layer, piece.sequence, piece.piece, staging_.data());
}

// Sends chunks, which wait for all other messages of the link. Then waits until the host confirms
// them. If the host is lost, the plan ends.
absl::Status StageKv::Lend(const KvAway::Piece& piece, int64_t layer) {
  absl::MutexLock lock(options_.mutex);
  const std::span<const std::byte> bytes(staging_.data(), static_cast<size_t>(KvPieceBytes(plan_)));
  lent_->Lend(piece, layer, bytes);
  options_.mutex->Await(absl::Condition(this, &StageKv::HostHasNext));
  return stopping_ ? absl::CancelledError("the plan was unloaded") : absl::OkStatus();
}

// ---- Loads and their use

std::shared_ptr<KvLoad> StageKv::StartLoad(int part, std::byte* place, std::function<void(absl::Status)> done) {
  options_.mutex->AssertHeld();
  const PlanPart& what = plan_.parts[part];
  const int64_t layer = options_.stage.LayerIndex(what.block.layer), first = what.kv_begin / kKvPiece;
  auto load = std::make_shared<KvLoad>();
  load->part = part, load->place = place, load->piece_bytes = KvPieceBytes(plan_), load->pieces = what.kv_end / kKvPiece - first;
  load->sequences.resize(static_cast<size_t>(plan_.sequences));
  int reads = 0;
  for (int32_t s = 0; s < plan_.sequences; ++s) {
    KvLoad::Sequence& sequence = load->sequences[static_cast<size_t>(s)];
    sequence.life = book_.away().life(s);
    sequence.begun = std::clamp<int64_t>(book_.away().away(s) - first, 0, load->pieces);
    for (int64_t i = 0; i < sequence.begun; ++i) sequence.hashes.push_back(file_->hash(layer, s, first + i));
    reads += sequence.begun > 0 ? 1 : 0;
  }
  {
    absl::MutexLock lock(&loads_mutex_);
    ++loads_under_way_;
  }
  const auto ended = [this, done = std::move(done)](const absl::Status& status) {
    done(status);
    absl::MutexLock lock(&loads_mutex_);
    --loads_under_way_;
  };
  const auto end = std::make_shared<LoadEnd>(*file_, load, std::max(1, reads), ended);
  for (int32_t s = 0; s < plan_.sequences; ++s) {
    const int64_t count = load->sequences[static_cast<size_t>(s)].begun;
    if (count > 0)
      file_->StartRead(layer, s, first, count, load->Place(s, 0), [end, s](const absl::Status& status) { end->Ended(s, status); });
  }
  if (reads == 0) file_->Post([end] { end->Ended(0, absl::OkStatus()); });
  return load;
}

void StageKv::Locate(const KvLoad& load, const MicroBatch& batch) {
  options_.mutex->AssertHeld();
  const PlanPart& part = plan_.parts[load.part];
  const int64_t layer = options_.stage.LayerIndex(part.block.layer), first = part.kv_begin / kKvPiece;
  attending_.layer = part.block.layer, attending_.begin = first, attending_.end = first + load.pieces;
  attending_.places.assign(static_cast<size_t>(plan_.sequences * load.pieces), nullptr);
  attending_.missing.clear();
  for (size_t row = 0; row < batch.rows.size(); ++row) {
    const int32_t s = batch.rows[row].sequence;
    if (row > 0 && batch.rows[row - 1].sequence == s) continue;
    const KvLoad::Sequence& sequence = load.sequences[static_cast<size_t>(s)];
    const int64_t there = sequence.life == book_.away().life(s) ? sequence.there : 0;
    for (int64_t i = 0; i < std::min(load.pieces, book_.away().away(s) - first); ++i) {
      attending_.places[static_cast<size_t>(s * load.pieces + i)] = load.Place(s, i);
      if (i >= there) attending_.missing.push_back({layer, s, first + i, file_->hash(layer, s, first + i), load.Place(s, i)});
    }
  }
}

absl::Status StageKv::Attend() {
  for (const Missing& missing : attending_.missing) {
    const absl::Status read = file_->Read(missing.layer, missing.sequence, missing.piece, missing.hash, missing.place);
    if (!read.ok()) return absl::Status(read.code(), absl::StrCat("layer ", attending_.layer, ": ", read.message()));
  }
  return options_.stage.backend->AttendToPieces(attending_.layer, attending_.begin, attending_.end, attending_.places);
}

void StageKv::Cancel() {
  if (file_ != nullptr) file_->Cancel();
}

}  // namespace lime
