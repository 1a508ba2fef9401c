#include "daemon/logic/hosting/kv_message.h"

#include <algorithm>
#include <concepts>
#include <tuple>
#include <type_traits>
#include <utility>

#include "common/activation.h"
#include "common/little_endian.h"
#include "planner/plan/hosting/kv_on_host.h"
#include "planner/plan/instance/instance.h"
#include "planner/plan/kv_spill.h"
#include "planner/plan/plan_rows.h"

namespace lime {
namespace {

constexpr int64_t kQueryValueBytes = 4;  // fp32

template <typename... What>
absl::Status WrongKvMessage(const What&... what) {
  return Invalid("KV message: ", what...);
}

// The fields of a message after its kind: numbers, the sequences of a query, and at the end raw
// bytes as they lie in memory. The kind is the message's index in KvMessage, from 1.
template <typename Message>
auto FieldsOf(Message& m) {
  using Kind = std::remove_const_t<Message>;
  if constexpr (std::is_same_v<Kind, KvChunk>) {
    return std::tie(m.number, m.sequence, m.life, m.layer, m.piece, m.offset, m.bytes);
  } else if constexpr (std::is_same_v<Kind, KvStored>) {
    return std::tie(m.number);
  } else if constexpr (std::is_same_v<Kind, KvFree>) {
    return std::tie(m.sequence, m.life);
  } else if constexpr (std::is_same_v<Kind, KvQuery>) {
    return std::tie(m.number, m.layer, m.sequences, m.queries);
  } else if constexpr (std::is_same_v<Kind, KvRecords>) {
    return std::tie(m.number, m.records);
  } else if constexpr (std::is_same_v<Kind, KvFetch>) {
    return std::tie(m.number, m.sequence, m.life, m.layer, m.piece);
  } else {
    return std::tie(m.number, m.offset, m.bytes);
  }
}

// ---- Writing

using lime::Append;  // numbers

void Append(std::vector<std::byte>& bytes, std::span<const std::byte> raw) {
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

void Append(std::vector<std::byte>& bytes, const std::vector<KvQuery::Sequence>& sequences) {
  Append(bytes, static_cast<uint32_t>(sequences.size()));
  for (const KvQuery::Sequence& sequence : sequences) {
    Append(bytes, sequence.sequence), Append(bytes, sequence.life), Append(bytes, sequence.pieces);
    Append(bytes, static_cast<uint32_t>(sequence.positions.size()));
    for (const int32_t position : sequence.positions) Append(bytes, position);
  }
}

// ---- Reading

absl::Status CheckNumber(int64_t number) {
  return number < 0 ? WrongKvMessage("number ", number, " is negative") : absl::OkStatus();
}

absl::Status CheckSequence(int32_t sequence, int64_t life) {
  if (sequence < 0 || sequence >= kMaxKvSequences)
    return WrongKvMessage("sequence ", sequence, " is outside the limit of ", kMaxKvSequences);
  if (life < 0) return WrongKvMessage("life ", life, " of sequence ", sequence, " is negative");
  return absl::OkStatus();
}

absl::Status CheckLayer(int32_t layer) {
  return layer < 0 || layer >= kMaxPlanBlocks ? WrongKvMessage("layer ", layer, " is larger than any plan allows") : absl::OkStatus();
}

absl::Status CheckPiece(int64_t piece) {
  return piece < 0 || piece >= kMaxKvPieces ? WrongKvMessage("piece ", piece, " is outside the limit of ", kMaxKvPieces) : absl::OkStatus();
}

// A range of bytes in a layer's piece.
absl::Status CheckPart(Bytes offset, std::span<const std::byte> bytes) {
  if (bytes.empty()) return WrongKvMessage("a chunk is empty");
  if (offset < 0 || offset > kMaxKvLayerPieceBytes - std::ssize(bytes))
    return WrongKvMessage(bytes.size(), " bytes at offset ", offset, " do not fit in a layer's piece, which has at most ",
                          kMaxKvLayerPieceBytes);
  return absl::OkStatus();
}

template <typename Message>
absl::Status Check(const Message& m) {
  if constexpr (requires { m.number; }) LIME_RETURN_IF_ERROR(CheckNumber(m.number));
  if constexpr (requires { m.sequence; }) LIME_RETURN_IF_ERROR(CheckSequence(m.sequence, m.life));
  if constexpr (requires { m.layer; }) LIME_RETURN_IF_ERROR(CheckLayer(m.layer));
  if constexpr (requires { m.piece; }) LIME_RETURN_IF_ERROR(CheckPiece(m.piece));
  if constexpr (requires { m.offset; }) LIME_RETURN_IF_ERROR(CheckPart(m.offset, m.bytes));
  if constexpr (std::is_same_v<Message, KvQuery>) {
    int64_t rows = 0;
    for (const KvQuery::Sequence& sequence : m.sequences) rows += std::ssize(sequence.positions);
    if (m.queries.empty() || std::ssize(m.queries) % (rows * kQueryValueBytes) != 0)
      return WrongKvMessage(m.queries.size(), " bytes of queries do not match ", rows, " rows");
  }
  return absl::OkStatus();
}

class KvMessageParser {
 public:
  explicit KvMessageParser(std::span<const std::byte> payload) : remaining_(payload) {}

  absl::StatusOr<KvMessage> Parse() {
    uint32_t kind = 0;
    LIME_RETURN_IF_ERROR(Parse(kind));
    constexpr size_t kKinds = std::variant_size_v<KvMessage>;
    if (kind < 1 || kind > kKinds) return WrongKvMessage("kind ", kind, " is unknown");
    return ParseKindAt(kind - 1, std::make_index_sequence<kKinds>());
  }

 private:
  template <size_t... I>
  absl::StatusOr<KvMessage> ParseKindAt(size_t index, std::index_sequence<I...>) {
    constexpr absl::StatusOr<KvMessage> (*kParsers[])(KvMessageParser&) = {
        [](KvMessageParser& parser) { return parser.ParseKind<std::variant_alternative_t<I, KvMessage>>(); }...};
    return kParsers[index](*this);
  }

  template <typename Message>
  absl::StatusOr<KvMessage> ParseKind() {
    Message message;
    LIME_RETURN_IF_ERROR(std::apply([this](auto&... fields) { return this->ParseAll(fields...); }, FieldsOf(message)));
    if (!remaining_.empty()) return WrongKvMessage(remaining_.size(), " bytes follow its end");
    LIME_RETURN_IF_ERROR(Check(message));
    return message;
  }

  template <typename... Field>
  absl::Status ParseAll(Field&... fields) {
    absl::Status status;
    ((status.ok() ? status = Parse(fields) : status), ...);
    return status;
  }

  template <std::integral Number>
  absl::Status Parse(Number& number) {
    if (remaining_.size() < sizeof(number)) return WrongKvMessage("it ends ", sizeof(number) - remaining_.size(), " bytes early");
    Get(remaining_.data(), number);
    remaining_ = remaining_.subspan(sizeof(number));
    return absl::OkStatus();
  }

  absl::Status Parse(std::span<const std::byte>& raw) {
    raw = std::exchange(remaining_, {});
    return absl::OkStatus();
  }

  absl::Status Parse(std::vector<KvQuery::Sequence>& all) {
    uint32_t count = 0;
    LIME_RETURN_IF_ERROR(Parse(count));
    if (count == 0 || count > kMaxKvSequences) return WrongKvMessage("a query names ", count, " sequences, need 1 to ", kMaxKvSequences);
    int64_t rows = 0;
    for (uint32_t i = 0; i < count; ++i) {
      LIME_ASSIGN_OR_RETURN(KvQuery::Sequence sequence, ParseSequence(kMaxKvQueryRows - rows));
      rows += std::ssize(sequence.positions);
      all.push_back(std::move(sequence));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<KvQuery::Sequence> ParseSequence(int64_t most_rows) {
    KvQuery::Sequence sequence;
    uint32_t rows = 0;
    LIME_RETURN_IF_ERROR(ParseAll(sequence.sequence, sequence.life, sequence.pieces, rows));
    LIME_RETURN_IF_ERROR(CheckSequence(sequence.sequence, sequence.life));
    if (sequence.pieces < 1 || sequence.pieces > kMaxKvPieces)
      return WrongKvMessage("a sequence has ", sequence.pieces, " pieces, need 1 to ", kMaxKvPieces);
    if (rows == 0 || rows > most_rows)
      return WrongKvMessage("a sequence has ", rows, " rows, but a query may have ", most_rows, " more of its ", kMaxKvQueryRows);
    if (remaining_.size() / sizeof(int32_t) < rows)
      return WrongKvMessage("positions of ", rows, " rows do not fit in ", remaining_.size(), " bytes");
    sequence.positions.resize(rows);
    for (int32_t& position : sequence.positions) {
      LIME_RETURN_IF_ERROR(Parse(position));
      if (position < 0) return WrongKvMessage("position ", position, " is negative");
    }
    return sequence;
  }

  std::span<const std::byte> remaining_;
};

}  // namespace

std::vector<std::byte> Encode(const KvMessage& message) {
  std::vector<std::byte> bytes;
  bytes.reserve(64);  // raw bytes then make it grow once
  Append(bytes, static_cast<uint32_t>(message.index() + 1));
  const auto append_all = [&bytes](const auto&... fields) { (Append(bytes, fields), ...); };
  std::visit([&](const auto& kind) { std::apply(append_all, FieldsOf(kind)); }, message);
  return bytes;
}

absl::StatusOr<KvMessage> ParseKvMessage(std::span<const std::byte> payload) {
  return KvMessageParser(payload).Parse();
}

absl::Status CheckKvMessages(const Plan& plan, const ModelConfig& config) {
  if (std::ranges::none_of(plan.devices, HasKvOnHost)) return absl::OkStatus();
  const Bytes row = config.num_heads * (config.MostHeadDim() + 2) * static_cast<Bytes>(sizeof(float));
  if (plan.sequences <= kMaxKvSequences && MaxRows(plan) <= kMaxKvQueryRows && MaxRows(plan) * row <= kMaxActivationBytes)
    return absl::OkStatus();
  return Invalid("a query about KV of ", plan.sequences, " sequences and ", MaxRows(plan), " rows may need ",
                 FormatBytes(MaxRows(plan) * row), "; the limits are ", kMaxKvSequences, " sequences, ", kMaxKvQueryRows, " rows and ",
                 FormatBytes(kMaxActivationBytes), "; plan shorter chunks or fewer sequences");
}

Bytes AskingBytes(const Plan& plan, int32_t device, const ModelConfig& config) {
  const Bytes row = config.num_heads * (2 * config.MostHeadDim() + 2) * static_cast<Bytes>(sizeof(float));
  const Bytes asking = 2 * MaxRows(plan) * row;
  Bytes bytes = HasKvOnHost(plan.devices[device]) ? asking : 0;
  for (const PlanDevice& other : plan.devices) {
    if (!HasKvOnHost(other) || other.kv_host != device) continue;
    bytes += asking + (other.kv_fetch_pieces > 0 ? kKvFetchesUnderWay * KvPieceBytes(plan) : 0);
  }
  return bytes;
}

}  // namespace lime
