#include "daemon/kv/hosting/lent_kv.h"

#include <algorithm>
#include <cstring>

#include "planner/base/check.h"

namespace lime {
namespace {

constexpr Bytes kChunkBytes = 16 * kKiB;
// For one layer of a piece: a link has room for this number of waiting messages.
constexpr int64_t kMostChunks = 512;
constexpr double kNewestShare = 0.125;  // weight of the newest answer in the smoothed time

}  // namespace

LentKv::LentKv(const Plan& plan, Options options, const KvAway& away)
    : plan_(plan),
      options_(std::move(options)),
      away_(away),
      device_(plan.devices[options_.device]),
      lender_({.layers = std::ssize(options_.layers),
               .piece_bytes = KvPieceBytes(plan),
               .chunk_bytes = std::max(kChunkBytes, KvPieceBytes(plan) / kMostChunks)}),
      sequences_(static_cast<size_t>(plan.sequences)) {
  const size_t records = static_cast<size_t>(options_.max_rows * options_.backend->RecordFloats());
  asking_.pieces.resize(sequences_.size());
  asking_.queries.reserve(records);
  asking_.records.resize(records);
}

absl::StatusOr<std::unique_ptr<LentKv>> LentKv::Create(const Plan& plan, Options options, const KvAway& away) {
  std::unique_ptr<LentKv> lent(new LentKv(plan, std::move(options), away));
  const int64_t places = lent->device_.kv_fetch_pieces, layers = std::ssize(lent->options_.layers);
  if (places == 0) return lent;
  lent->fetcher_.emplace(
      KvFetcher::Shape{.layers = layers, .sequences = plan.sequences, .piece_bytes = KvPieceBytes(plan), .places = places});
  lent->size_.emplace(layers, KvPieceBytes(plan));
  if (!lent->device_.asks_kv) lent->fetcher_->SetLayers(layers);
  lent->asking_.places.reserve(static_cast<size_t>(plan.sequences * ((plan.context + kKvPiece - 1) / kKvPiece)));
  LIME_ASSIGN_OR_RETURN(lent->room_, HugeBuffer::AllocatePresent(places * KvPieceBytes(plan)));
  return lent;
}

// ---- Lending

void LentKv::Lend(const KvAway::Piece& piece, int64_t layer, std::span<const std::byte> bytes) {
  for (const KvChunk& chunk : lender_.Begin(piece, static_cast<int32_t>(layer), bytes)) options_.send(Encode(chunk), /*may_wait=*/true);
}

void LentKv::Free(int32_t sequence, int64_t life) {
  // Nothing of it is fetched after this message.
  if (fetcher_) fetcher_->SetSequence(sequence, life + 1, 0, 0);
  options_.send(Encode(KvFree{.sequence = sequence, .life = life}), /*may_wait=*/false);
}

// ---- Use

absl::StatusOr<bool> LentKv::Ask(const Visit& visit, const MicroBatch& batch) {
  asking_.part = visit.part, asking_.microbatch = visit.microbatch, asking_.num_rows = batch.rows.size();
  asking_.layer = static_cast<int32_t>(options_.LayerIndex(plan_.parts[visit.part].block.layer));
  asking_.answer = Answer::kNone;
  KvQuery query{.number = asking_.number + 1, .layer = asking_.layer};
  Collect(batch, query);
  if (fetcher_) {
    Follow();
    fetcher_->SetInUse(std::nullopt);
    if (visit.last) fetcher_->SetNext(asking_.layer);
  }
  const bool any = !query.sequences.empty();
  const bool fetched = any && fetcher_ && (!device_.asks_kv || fetcher_->Fetches(asking_.layer));
  const Bytes missing = fetched ? Missing() : 0;
  awaits_pieces_ = missing > 0 && IsSoonHere(missing);
  if (awaits_pieces_) {
    fetcher_->SetAwaited(asking_.layer);
  } else if (fetched && missing == 0) {
    UsePieces();
  } else if (any) {
    if (fetched) size_->Late();
    LIME_RETURN_IF_ERROR(SendQuery(std::move(query), batch));
  }
  FetchNext();
  return awaits_pieces_ || asking_.under_way;
}

int64_t LentKv::FirstSeen(const BatchRow& row) const {
  return options_.window > 0 ? std::max<int64_t>(0, row.position + 1 - options_.window) : 0;
}

// For every sequence of a batch: the pieces with the host, if the sequence's first row sees any.
void LentKv::Collect(const MicroBatch& batch, KvQuery& query) {
  std::ranges::fill(asking_.pieces, 0);
  asking_.rows.clear();
  for (size_t row = 0; row < batch.rows.size(); ++row) {
    const int32_t s = batch.rows[row].sequence;
    const bool first = row == 0 || batch.rows[row - 1].sequence != s;
    const int64_t begin = FirstSeen(batch.rows[row]);
    if (first) sequences_[static_cast<size_t>(s)] = {.life = away_.life(s), .first = begin / kKvPiece};
    if (first && begin < away_.away(s) * kKvPiece) {  // else no row of it sees any
      asking_.pieces[static_cast<size_t>(s)] = static_cast<int32_t>(away_.away(s));
      query.sequences.push_back({.sequence = s, .life = away_.life(s), .pieces = static_cast<int32_t>(away_.away(s)), .positions = {}});
    }
    if (asking_.pieces[static_cast<size_t>(s)] == 0) continue;
    query.sequences.back().positions.push_back(batch.rows[row].position);
    asking_.rows.push_back(row);
  }
}

absl::Status LentKv::SendQuery(KvQuery query, const MicroBatch& batch) {
  LIME_ASSIGN_OR_RETURN(const std::span<const float> all, options_.backend->Queries(plan_.parts[asking_.part].block.layer));
  const size_t width = all.size() / batch.rows.size();
  std::vector<float>& queries = asking_.queries;
  queries.clear();
  for (const size_t row : asking_.rows)
    queries.insert(queries.end(), all.begin() + static_cast<std::ptrdiff_t>(row * width),
                   all.begin() + static_cast<std::ptrdiff_t>((row + 1) * width));
  query.queries = std::as_bytes(std::span(queries));
  asking_.number = query.number, asking_.under_way = true, asking_.since_ms = options_.now_ms();
  options_.send(Encode(query), /*may_wait=*/false);
  return absl::OkStatus();
}

absl::StatusOr<std::optional<std::pair<int32_t, int32_t>>> LentKv::OnAnswer(const KvMessage& message) {
  if (const auto* stored = std::get_if<KvStored>(&message)) {
    LIME_RETURN_IF_ERROR(lender_.OnStored(stored->number));
    return std::nullopt;
  }
  if (const auto* fetched = std::get_if<KvFetched>(&message)) {
    LIME_ASSIGN_OR_RETURN(const bool all, OnFetched(*fetched));
    return all ? std::optional(std::pair(asking_.part, asking_.microbatch)) : std::nullopt;
  }
  const auto* records = std::get_if<KvRecords>(&message);
  if (records == nullptr) return absl::InvalidArgumentError("a host of KV neither lends nor asks");
  LIME_RETURN_IF_ERROR(OnRecords(*records));
  return std::pair(asking_.part, asking_.microbatch);
}

absl::Status LentKv::OnRecords(const KvRecords& records) {
  if (!asking_.under_way || records.number != asking_.number)
    return Invalid("an answer to query ", records.number, " of KV arrived, but that query was not sent");
  const size_t floats = static_cast<size_t>(options_.backend->RecordFloats()), row_bytes = floats * sizeof(float);
  if (records.records.size() != asking_.rows.size() * row_bytes)
    return Invalid("an answer to a query of KV has ", records.records.size(), " bytes, but its ", asking_.rows.size(), " rows need ",
                   asking_.rows.size() * row_bytes);
  for (size_t i = 0; i < asking_.rows.size(); ++i) {
    std::memcpy(asking_.records.data() + asking_.rows[i] * floats, records.records.data() + i * row_bytes, row_bytes);
  }
  asking_.under_way = false, asking_.answer = Answer::kRecords;
  const double waited_ms = options_.now_ms() - asking_.since_ms;
  ask_ms_ = ask_ms_ ? *ask_ms_ + kNewestShare * (waited_ms - *ask_ms_) : waited_ms;
  return absl::OkStatus();
}

absl::Status LentKv::UseAnswer() {
  const int32_t layer = plan_.parts[asking_.part].block.layer;
  switch (std::exchange(asking_.answer, Answer::kNone)) {
    case Answer::kNone:  // the host has nothing that the batch sees
      return absl::OkStatus();
    case Answer::kPieces:
      return options_.backend->AttendToPieces(layer, 0, asking_.end, asking_.places);
    case Answer::kRecords: {
      const size_t floats = asking_.num_rows * static_cast<size_t>(options_.backend->RecordFloats());
      return options_.backend->ContinueFromRecords(layer, asking_.pieces, std::span<const float>(asking_.records).first(floats));
    }
  }
  return absl::OkStatus();
}

// ---- What comes back

// Tells the fetcher the current sequences and pieces: some end, and more pieces go, between steps.
void LentKv::Follow() {
  for (int32_t s = 0; s < plan_.sequences; ++s) fetcher_->SetSequence(s, away_.life(s), FirstWanted(s), away_.away(s));
}

// Pieces of one layer that are with the host and that attention sees.
int64_t LentKv::PiecesOfLayer() const {
  int64_t pieces = 0;
  for (int32_t s = 0; s < plan_.sequences; ++s) pieces += away_.away(s) - FirstWanted(s);
  return pieces;
}

int64_t LentKv::FirstWanted(int32_t s) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(s)];
  return sequence.life == away_.life(s) ? std::min(sequence.first, away_.away(s)) : 0;
}

// Bytes that the current visit needs of its layer and that are not here.
Bytes LentKv::Missing() const {
  Bytes missing = 0;
  for (int32_t s = 0; s < plan_.sequences; ++s) {
    const auto [life, first] = sequences_[static_cast<size_t>(s)];
    const int32_t pieces = asking_.pieces[static_cast<size_t>(s)];
    if (pieces > 0) missing += fetcher_->Missing(asking_.layer, s, life, first, pieces);
  }
  return missing;
}

// Whether fetching is sooner than an answer of the host, or the plan asks the host for no answers.
bool LentKv::IsSoonHere(Bytes missing) const {
  if (!device_.asks_kv) return true;
  const std::optional<double> rate = size_->rate();
  return HasRoom() && rate && static_cast<double>(missing) / *rate <= ask_ms_.value_or(device_.ask_kv_ms);
}

void LentKv::UsePieces() {
  asking_.end = std::ranges::max(asking_.pieces);
  asking_.places.assign(static_cast<size_t>(plan_.sequences * asking_.end), nullptr);
  for (int32_t s = 0; s < plan_.sequences; ++s) {
    const auto [life, first] = sequences_[static_cast<size_t>(s)];
    for (int64_t piece = first; piece < asking_.pieces[static_cast<size_t>(s)]; ++piece) {
      const std::optional<Bytes> at = fetcher_->Find(asking_.layer, s, life, piece);
      LIME_CHECK(at.has_value()) << "piece " << piece << " of sequence " << s << " is not there";
      asking_.places[static_cast<size_t>(s * asking_.end + piece)] = room_.data() + *at;
    }
  }
  fetcher_->SetInUse(asking_.layer);
  fetcher_->SetAwaited(std::nullopt);
  awaits_pieces_ = false;
  asking_.answer = Answer::kPieces;
}

// True if this was the last piece that a visit waits for.
absl::StatusOr<bool> LentKv::OnFetched(const KvFetched& fetched) {
  if (!fetcher_) return absl::InvalidArgumentError("KV came back, but none was requested");
  LIME_ASSIGN_OR_RETURN(const KvFetcher::Placed placed, fetcher_->On(fetched));
  std::memcpy(room_.data() + placed.offset, fetched.bytes.data(), fetched.bytes.size());
  fetched_ += std::ssize(fetched.bytes);
  if (!placed.ends_piece) return false;
  size_->Arrived(options_.now_ms());
  const bool all = awaits_pieces_ && Missing() == 0;
  if (all) UsePieces();
  FetchNext();
  return all;
}

void LentKv::FetchNext() {
  if (!fetcher_) return;
  for (bool first = !fetcher_->under_way();; first = false) {
    const std::optional<KvFetch> fetch = fetcher_->Begin();
    if (!fetch) return;
    if (first) size_->Begun(options_.now_ms());
    options_.send(Encode(*fetch), /*may_wait=*/false);
  }
}

void LentKv::EndStep() {
  if (!fetcher_) return;
  Follow();
  fetcher_->SetInUse(std::nullopt);
  fetcher_->SetNext(0);
  const int64_t pieces = PiecesOfLayer();
  const int64_t layers =
      size_->StepEnded(options_.now_ms(), {.pieces = HasRoom() ? pieces : 0,
                                           .stay = pieces > 0 ? (device_.kv_fetch_pieces - kKvFetchesUnderWay) / pieces : 0,
                                           .answer_ms = ask_ms_.value_or(device_.ask_kv_ms)});
  if (device_.asks_kv) fetcher_->SetLayers(layers);
  FetchNext();
}

}  // namespace lime
