#include "daemon/logic/kv_message.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/little_endian.h"
#include "planner/plan/instance.h"

namespace lime {
namespace {

// What a message begins with.
enum class KvKind : uint32_t {
  kChunk = 1,    // KvChunk
  kKept = 2,     // KvKept
  kFree = 3,     // KvFree
  kQuery = 4,    // KvQuery
  kRecords = 5,  // KvRecords
  kFetch = 6,    // KvFetch
  kFetched = 7,  // KvFetched
};

constexpr int64_t kQueryValueBytes = 4;  // fp32

template <typename... What>
absl::Status WrongKvMessage(const What&... what) {
  return absl::InvalidArgumentError(absl::StrCat("KV message: ", what...));
}

template <typename... T>
void Append(std::vector<std::byte>& bytes, T... numbers) {
  const size_t at = bytes.size();
  bytes.resize(at + (sizeof(T) + ...));
  std::byte* out = bytes.data() + at;
  ((out = Put(numbers, out)), ...);
}

void AppendBytes(std::vector<std::byte>& bytes, std::span<const std::byte> raw) {
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

std::vector<std::byte> Begin(KvKind kind, size_t raw_bytes = 0) {
  std::vector<std::byte> bytes;
  bytes.reserve(64 + raw_bytes);
  Append(bytes, static_cast<uint32_t>(kind));
  return bytes;
}

std::vector<std::byte> EncodeKind(const KvChunk& chunk) {
  std::vector<std::byte> bytes = Begin(KvKind::kChunk, chunk.bytes.size());
  Append(bytes, chunk.number, chunk.sequence, chunk.life, chunk.layer, chunk.piece, chunk.offset);
  AppendBytes(bytes, chunk.bytes);
  return bytes;
}

std::vector<std::byte> EncodeKind(const KvKept& kept) {
  std::vector<std::byte> bytes = Begin(KvKind::kKept);
  Append(bytes, kept.number);
  return bytes;
}

std::vector<std::byte> EncodeKind(const KvFree& free) {
  std::vector<std::byte> bytes = Begin(KvKind::kFree);
  Append(bytes, free.sequence, free.life);
  return bytes;
}

std::vector<std::byte> EncodeKind(const KvQuery& query) {
  std::vector<std::byte> bytes = Begin(KvKind::kQuery, query.queries.size());
  Append(bytes, query.number, query.layer, static_cast<uint32_t>(query.sequences.size()));
  for (const KvQuery::Sequence& sequence : query.sequences) {
    Append(bytes, sequence.sequence, sequence.life, sequence.pieces, static_cast<uint32_t>(sequence.positions.size()));
    for (const int32_t position : sequence.positions) Append(bytes, position);
  }
  AppendBytes(bytes, query.queries);
  return bytes;
}

std::vector<std::byte> EncodeKind(const KvRecords& records) {
  std::vector<std::byte> bytes = Begin(KvKind::kRecords, records.records.size());
  Append(bytes, records.number);
  AppendBytes(bytes, records.records);
  return bytes;
}

std::vector<std::byte> EncodeKind(const KvFetch& fetch) {
  std::vector<std::byte> bytes = Begin(KvKind::kFetch);
  Append(bytes, fetch.number, fetch.sequence, fetch.life, fetch.layer, fetch.piece);
  return bytes;
}

std::vector<std::byte> EncodeKind(const KvFetched& fetched) {
  std::vector<std::byte> bytes = Begin(KvKind::kFetched, fetched.bytes.size());
  Append(bytes, fetched.number, fetched.offset);
  AppendBytes(bytes, fetched.bytes);
  return bytes;
}

absl::Status CheckNumber(int64_t number) {
  return number < 0 ? WrongKvMessage("number ", number) : absl::OkStatus();
}

absl::Status CheckSequence(int32_t sequence, int64_t life) {
  if (sequence < 0 || sequence >= kMaxKvSequences) return WrongKvMessage("sequence ", sequence, ", at most ", kMaxKvSequences);
  if (life < 0) return WrongKvMessage("life ", life, " of sequence ", sequence);
  return absl::OkStatus();
}

absl::Status CheckLayer(int32_t layer) {
  return layer < 0 || layer >= kMaxPlanBlocks ? WrongKvMessage("layer ", layer, " is beyond all plans") : absl::OkStatus();
}

absl::Status CheckPiece(int64_t piece) {
  return piece < 0 || piece >= kMaxKvPieces ? WrongKvMessage("piece ", piece, ", at most ", kMaxKvPieces) : absl::OkStatus();
}

// Bytes of a layer's piece.
absl::Status CheckPart(Bytes offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return WrongKvMessage("a chunk of no bytes");
  if (offset < 0 || offset > kMaxKvLayerPieceBytes - std::ssize(bytes))
    return WrongKvMessage(bytes.size(), " bytes at ", offset, ", and a layer's piece has at most ", kMaxKvLayerPieceBytes);
  return absl::OkStatus();
}

class KvMessageParser {
 public:
  explicit KvMessageParser(std::span<const std::byte> payload) : left_(payload) {}

  absl::StatusOr<KvMessage> Parse() {
    uint32_t kind = 0;
    LIME_RETURN_IF_ERROR(Take(kind));
    switch (static_cast<KvKind>(kind)) {
      case KvKind::kChunk:
        return ParseChunk();
      case KvKind::kKept:
        return ParseKept();
      case KvKind::kFree:
        return ParseFree();
      case KvKind::kQuery:
        return ParseQuery();
      case KvKind::kRecords:
        return ParseRecords();
      case KvKind::kFetch:
        return ParseFetch();
      case KvKind::kFetched:
        return ParseFetched();
    }
    return WrongKvMessage("kind ", kind);
  }

 private:
  template <typename... T>
  absl::Status Take(T&... numbers) {
    constexpr size_t kBytes = (sizeof(T) + ...);
    if (left_.size() < kBytes) return WrongKvMessage("it ends ", kBytes - left_.size(), " bytes early");
    const std::byte* in = left_.data();
    ((in = Get(in, numbers)), ...);
    left_ = left_.subspan(kBytes);
    return absl::OkStatus();
  }

  absl::Status CheckEnd() const { return left_.empty() ? absl::OkStatus() : WrongKvMessage(left_.size(), " bytes behind its end"); }

  absl::StatusOr<KvMessage> ParseChunk() {
    KvChunk chunk;
    LIME_RETURN_IF_ERROR(Take(chunk.number, chunk.sequence, chunk.life, chunk.layer, chunk.piece, chunk.offset));
    LIME_RETURN_IF_ERROR(CheckNumber(chunk.number));
    LIME_RETURN_IF_ERROR(CheckSequence(chunk.sequence, chunk.life));
    LIME_RETURN_IF_ERROR(CheckLayer(chunk.layer));
    LIME_RETURN_IF_ERROR(CheckPiece(chunk.piece));
    LIME_RETURN_IF_ERROR(CheckPart(chunk.offset, left_));
    chunk.bytes = left_;
    return chunk;
  }

  absl::StatusOr<KvMessage> ParseKept() {
    KvKept kept;
    LIME_RETURN_IF_ERROR(Take(kept.number));
    LIME_RETURN_IF_ERROR(CheckNumber(kept.number));
    LIME_RETURN_IF_ERROR(CheckEnd());
    return kept;
  }

  absl::StatusOr<KvMessage> ParseFree() {
    KvFree free;
    LIME_RETURN_IF_ERROR(Take(free.sequence, free.life));
    LIME_RETURN_IF_ERROR(CheckSequence(free.sequence, free.life));
    LIME_RETURN_IF_ERROR(CheckEnd());
    return free;
  }

  absl::StatusOr<KvMessage> ParseQuery() {
    KvQuery query;
    uint32_t sequences = 0;
    LIME_RETURN_IF_ERROR(Take(query.number, query.layer, sequences));
    LIME_RETURN_IF_ERROR(CheckNumber(query.number));
    LIME_RETURN_IF_ERROR(CheckLayer(query.layer));
    if (sequences == 0 || sequences > kMaxKvSequences)
      return WrongKvMessage("a query for ", sequences, " sequences, at most ", kMaxKvSequences);
    int64_t rows = 0;
    for (uint32_t i = 0; i < sequences; ++i) {
      LIME_ASSIGN_OR_RETURN(KvQuery::Sequence sequence, TakeSequence(kMaxKvQueryRows - rows));
      rows += std::ssize(sequence.positions);
      query.sequences.push_back(std::move(sequence));
    }
    if (left_.empty() || std::ssize(left_) % (rows * kQueryValueBytes) != 0)
      return WrongKvMessage(left_.size(), " bytes of queries for ", rows, " rows");
    query.queries = left_;
    return query;
  }

  absl::StatusOr<KvQuery::Sequence> TakeSequence(int64_t most_rows) {
    KvQuery::Sequence sequence;
    uint32_t rows = 0;
    LIME_RETURN_IF_ERROR(Take(sequence.sequence, sequence.life, sequence.pieces, rows));
    LIME_RETURN_IF_ERROR(CheckSequence(sequence.sequence, sequence.life));
    if (sequence.pieces < 1 || sequence.pieces > kMaxKvPieces) return WrongKvMessage(sequence.pieces, " pieces, at most ", kMaxKvPieces);
    if (rows == 0 || rows > most_rows)
      return WrongKvMessage("a sequence of ", rows, " rows, at most ", most_rows, " of ", kMaxKvQueryRows, " are left");
    if (left_.size() / sizeof(int32_t) < rows) return WrongKvMessage("positions of ", rows, " rows in ", left_.size(), " bytes");
    sequence.positions.resize(rows);
    for (int32_t& position : sequence.positions) {
      LIME_RETURN_IF_ERROR(Take(position));
      if (position < 0) return WrongKvMessage("position ", position);
    }
    return sequence;
  }

  absl::StatusOr<KvMessage> ParseRecords() {
    KvRecords records;
    LIME_RETURN_IF_ERROR(Take(records.number));
    LIME_RETURN_IF_ERROR(CheckNumber(records.number));
    records.records = left_;
    return records;
  }

  absl::StatusOr<KvMessage> ParseFetch() {
    KvFetch fetch;
    LIME_RETURN_IF_ERROR(Take(fetch.number, fetch.sequence, fetch.life, fetch.layer, fetch.piece));
    LIME_RETURN_IF_ERROR(CheckNumber(fetch.number));
    LIME_RETURN_IF_ERROR(CheckSequence(fetch.sequence, fetch.life));
    LIME_RETURN_IF_ERROR(CheckLayer(fetch.layer));
    LIME_RETURN_IF_ERROR(CheckPiece(fetch.piece));
    LIME_RETURN_IF_ERROR(CheckEnd());
    return fetch;
  }

  absl::StatusOr<KvMessage> ParseFetched() {
    KvFetched fetched;
    LIME_RETURN_IF_ERROR(Take(fetched.number, fetched.offset));
    LIME_RETURN_IF_ERROR(CheckNumber(fetched.number));
    LIME_RETURN_IF_ERROR(CheckPart(fetched.offset, left_));
    fetched.bytes = left_;
    return fetched;
  }

  std::span<const std::byte> left_;
};

}  // namespace

std::vector<std::byte> Encode(const KvMessage& message) {
  return std::visit([](const auto& kind) { return EncodeKind(kind); }, message);
}

absl::StatusOr<KvMessage> ParseKvMessage(std::span<const std::byte> payload) {
  return KvMessageParser(payload).Parse();
}

}  // namespace lime
