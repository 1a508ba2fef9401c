#include "daemon/kv/hosting/hosted_kv.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "planner/base/check.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/kv_spill.h"

namespace lime {
namespace {

constexpr Bytes kReturnedChunkBytes = 16 * kKiB;
constexpr int64_t kMostReturnedChunks = 128;  // for each piece that goes back

template <typename... What>
absl::Status WrongHosted(const What&... what) {
  return Invalid("hosted KV: ", what...);
}

}  // namespace

Bytes KvOfOthers::bytes() const {
  Bytes bytes = 0;
  for (const HostedHandover& of : all) bytes += of.memory.bytes();
  return bytes;
}

absl::StatusOr<std::span<const std::byte>> KvOfOthers::Pages(int32_t layer, const KvExtent& of, int64_t first, int64_t count,
                                                             Bytes page_bytes) const {
  for (const HostedHandover& other : all) {
    const auto at = std::ranges::lower_bound(other.layers, layer);
    if (at == other.layers.end() || *at != layer) continue;
    LIME_ASSIGN_OR_RETURN(
        const std::vector<Bytes> pieces,
        other.places.Pieces(of.sequence, of.life, static_cast<int32_t>(at - other.layers.begin()), first / kKvPiecePages + 1));
    return std::span<const std::byte>(other.memory.data() + pieces.back() + first % kKvPiecePages * page_bytes,
                                      static_cast<size_t>(count * page_bytes));
  }
  return absl::NotFoundError(absl::StrCat("no device has lent KV of layer ", layer, " to this device"));
}

HostedKv::HostedKv(const Plan& plan, const ModelSpec& spec, Options options)
    : plan_(plan), options_(std::move(options)), query_floats_(static_cast<size_t>(spec.config.num_heads * spec.config.MostHeadDim())) {}

absl::StatusOr<std::unique_ptr<HostedKv>> HostedKv::Create(const Plan& plan, const ModelSpec& spec, Options options) {
  std::unique_ptr<HostedKv> hosted(new HostedKv(plan, spec, std::move(options)));
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    const int64_t places = HostedPieces(plan, plan.devices[d]);
    if (places == 0 || plan.devices[d].kv_host != hosted->options_.device) continue;
    const KvHost::Shape shape{.layers = std::ssize(LayersOn(plan, d)),
                              .sequences = plan.sequences,
                              .pieces_per_sequence = (plan.context + kKvPiece - 1) / kKvPiece,
                              .piece_bytes = KvPieceBytes(plan),
                              .places = places};
    if (shape.layers == 0) continue;
    LIME_ASSIGN_OR_RETURN(HugeBuffer memory, HugeBuffer::AllocatePresent(shape.bytes()));
    Owner& owner = hosted->owners_.emplace(d, Owner{.host = KvHost(shape), .memory = std::move(memory)}).first->second;
    owner.query.floats.reserve(static_cast<size_t>(hosted->options_.max_rows) * hosted->query_floats_);
  }
  if (!hosted->owners_.empty())
    hosted->records_.resize(static_cast<size_t>(hosted->options_.max_rows * hosted->options_.backend->RecordFloats()));
  return hosted;
}

absl::Status HostedKv::TakeOver(const std::vector<KvSequence>& sequences, const KvPageReader& read) {
  for (auto& [device, owner] : owners_) LIME_RETURN_IF_ERROR(TakeOver(sequences, read, device, owner));
  return absl::OkStatus();
}

absl::Status HostedKv::TakeOver(const std::vector<KvSequence>& sequences, const KvPageReader& read, int32_t device, Owner& owner) {
  LIME_ASSIGN_OR_RETURN(const std::vector<int64_t> away, AwayAtFirst(plan_, device, sequences));
  std::vector<KvExtent> wanted;
  for (size_t s = 0; s < away.size(); ++s) {
    LIME_RETURN_IF_ERROR(owner.host.TakeOver(sequences[s].to, away[s]));
    if (away[s] > 0) wanted.push_back({.sequence = sequences[s].from, .first = 0, .end = away[s] * kKvPiecePages});
  }
  if (wanted.empty()) return absl::OkStatus();  // no device expects to be asked
  const std::vector<int32_t> layers = LayersOn(plan_, device);
  for (int32_t i = 0; i < std::ssize(layers); ++i) {
    const auto sink = [&](int32_t slot, int64_t first, std::span<const std::byte> pages) -> absl::Status {
      const auto sequence = std::ranges::find(sequences, slot, &KvSequence::from);
      const int64_t offset = first % kKvPiecePages * plan_.page_bytes;
      if (sequence == sequences.end() || offset + std::ssize(pages) > KvPieceBytes(plan_))
        return WrongHosted("pages from ", first, " on of slot ", slot, " do not belong to a piece that this device needs");
      LIME_ASSIGN_OR_RETURN(const std::vector<Bytes> pieces, owner.host.Pieces(sequence->to, 0, i, first / kKvPiecePages + 1));
      std::memcpy(owner.memory.data() + pieces.back() + offset, pages.data(), pages.size());
      return absl::OkStatus();
    };
    LIME_RETURN_IF_ERROR(read(layers[static_cast<size_t>(i)], options_.backend->numerics_id(), wanted, sink));
  }
  return absl::OkStatus();
}

KvOfOthers HostedKv::HandOver() {
  KvOfOthers handover;
  for (auto& [device, owner] : owners_) {
    bool any = false;
    for (int32_t s = 0; s < plan_.sequences; ++s) any = any || owner.host.stored(s) > 0;
    if (any)
      handover.all.push_back({.layers = LayersOn(plan_, device), .places = std::move(owner.host), .memory = std::move(owner.memory)});
  }
  owners_.clear();
  return handover;
}

absl::Status HostedKv::OnMessage(int32_t from, const KvMessage& message) {
  const auto owner = owners_.find(from);
  if (owner == owners_.end()) return WrongHosted("device ", from, " has no KV on this device");
  if (const auto* chunk = std::get_if<KvChunk>(&message)) return On(from, owner->second, *chunk);
  if (const auto* free = std::get_if<KvFree>(&message)) return On(from, owner->second, *free);
  if (const auto* query = std::get_if<KvQuery>(&message)) return On(from, owner->second, *query);
  if (const auto* fetch = std::get_if<KvFetch>(&message)) return On(from, owner->second, *fetch);
  return WrongHosted("device ", from, " sent an answer, but this device asked nothing");
}

bool HostedKv::Waits(int32_t from) const {
  return std::ranges::find(waiting_, from) != waiting_.end();
}

// A sequence that a query names must stay as it is until the query is answered.
absl::Status HostedKv::On(int32_t from, Owner& owner, const KvChunk& chunk) {
  for (const KvQuery::Sequence& asked : owner.query.what.sequences) {
    if (Waits(from) && asked.sequence == chunk.sequence && asked.life != chunk.life)
      return WrongHosted("device ", from, " asks about sequence ", chunk.sequence, " and begins it anew");
  }
  LIME_ASSIGN_OR_RETURN(const KvHost::Placed placed, owner.host.OnChunk(chunk));
  if (placed.offset) std::memcpy(owner.memory.data() + *placed.offset, chunk.bytes.data(), chunk.bytes.size());
  if (placed.ends_layer) options_.send(from, Encode(KvStored{chunk.number}), /*may_wait=*/false);
  return absl::OkStatus();
}

absl::Status HostedKv::On(int32_t from, Owner& owner, const KvFree& free) {
  const auto& asked = owner.query.what.sequences;
  if (Waits(from) && std::ranges::find(asked, free.sequence, &KvQuery::Sequence::sequence) != asked.end())
    return WrongHosted("device ", from, " asks about sequence ", free.sequence, " and ends it");
  return owner.host.OnFree(free.sequence, free.life);
}

absl::Status HostedKv::On(int32_t from, Owner& owner, const KvQuery& query) {
  if (Waits(from)) return WrongHosted("device ", from, " asks twice");
  LIME_RETURN_IF_ERROR(CheckRows(query));
  std::vector<std::vector<const std::byte*>> all_places;
  for (const KvQuery::Sequence& sequence : query.sequences) {
    LIME_ASSIGN_OR_RETURN(const std::vector<Bytes> offsets,
                          owner.host.Pieces(sequence.sequence, sequence.life, query.layer, sequence.pieces));
    std::vector<const std::byte*>& places = all_places.emplace_back();
    for (const Bytes offset : offsets) places.push_back(owner.memory.data() + offset);
  }
  owner.query.what = query, owner.query.what.queries = {};
  owner.query.places = std::move(all_places);
  owner.query.floats.resize(query.queries.size() / sizeof(float));
  std::memcpy(owner.query.floats.data(), query.queries.data(), query.queries.size());
  waiting_.push_back(from);
  return absl::OkStatus();
}

// Sends the piece's bytes as they are now: the owner may free the piece while they travel.
absl::Status HostedKv::On(int32_t from, Owner& owner, const KvFetch& fetch) {
  if (plan_.devices[from].kv_fetch_pieces == 0) return WrongHosted("device ", from, " has no room for fetched KV");
  if (fetch.number != owner.fetches) return WrongHosted("fetch ", fetch.number, " arrived, expected fetch ", owner.fetches);
  LIME_ASSIGN_OR_RETURN(const std::vector<Bytes> offsets, owner.host.Pieces(fetch.sequence, fetch.life, fetch.layer, fetch.piece + 1));
  ++owner.fetches;
  const Bytes piece = KvPieceBytes(plan_), chunk = std::max(kReturnedChunkBytes, piece / kMostReturnedChunks);
  for (Bytes offset = 0; offset < piece; offset += chunk) {
    const std::span<const std::byte> bytes(owner.memory.data() + offsets.back() + offset,
                                           static_cast<size_t>(std::min(chunk, piece - offset)));
    options_.send(from, Encode(KvFetched{.number = fetch.number, .offset = offset, .bytes = bytes}), /*may_wait=*/true);
  }
  return absl::OkStatus();
}

absl::Status HostedKv::CheckRows(const KvQuery& query) const {
  size_t rows = 0;
  for (const KvQuery::Sequence& sequence : query.sequences) {
    if (sequence.pieces < 1 || sequence.positions.empty())
      return WrongHosted("a query asks for no positions of sequence ", sequence.sequence);
    for (const int32_t position : sequence.positions) {
      if (position / kKvPiece < sequence.pieces || position >= plan_.context)
        return WrongHosted("position ", position, " asks for ", sequence.pieces, " pieces of a context of ", plan_.context);
    }
    rows += sequence.positions.size();
  }
  if (rows == 0 || static_cast<int64_t>(rows) > options_.max_rows)
    return WrongHosted("a query has ", rows, " rows, the plan allows 1 to ", options_.max_rows);
  const size_t bytes = rows * query_floats_ * sizeof(float);
  if (query.queries.size() != bytes)
    return WrongHosted(query.queries.size(), " bytes of queries arrived for ", rows, " rows, which need ", bytes);
  return absl::OkStatus();
}

int32_t HostedKv::BeginAnswer() {
  LIME_CHECK(asked());
  answered_ = &owners_.at(waiting_.front());
  return waiting_.front();
}

absl::Status HostedKv::Answer() {
  const Query& query = answered_->query;
  const std::span<const float> queries = query.floats;
  const std::span<float> records = records_;
  const size_t record_floats = static_cast<size_t>(options_.backend->RecordFloats());
  size_t row = 0;
  for (size_t s = 0; s < query.what.sequences.size(); ++s) {
    const std::vector<int32_t>& positions = query.what.sequences[s].positions;
    LIME_RETURN_IF_ERROR(options_.backend->AttendFor(positions, queries.subspan(row * query_floats_, positions.size() * query_floats_),
                                                     query.places[s],
                                                     records.subspan(row * record_floats, positions.size() * record_floats)));
    row += positions.size();
  }
  return absl::OkStatus();
}

void HostedKv::EndAnswer() {
  const Query& query = answered_->query;
  const int32_t from = waiting_.front();
  waiting_.pop_front();
  const size_t rows = query.floats.size() / query_floats_;
  const std::span<const float> records = std::span(records_).first(rows * static_cast<size_t>(options_.backend->RecordFloats()));
  options_.send(from, Encode(KvRecords{.number = query.what.number, .records = std::as_bytes(records)}), /*may_wait=*/false);
}

}  // namespace lime
