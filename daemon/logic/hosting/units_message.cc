#include "daemon/logic/hosting/units_message.h"

#include <algorithm>
#include <type_traits>
#include <utility>

#include "common/activation.h"
#include "common/little_endian.h"
#include "planner/plan/plan_blocks.h"
#include "planner/plan/plan_rows.h"

namespace lime {
namespace {

// In place of the kind of a message about KV.
constexpr uint32_t kQuery = 0x75716d6c, kAnswer = 0x75616d6c, kGuess = 0x75676d6c;  // "lmqu", "lmau", "lmgu"

template <typename... What>
absl::Status WrongUnitsMessage(const What&... what) {
  return Invalid("message about units: ", what...);
}

void AppendAll(std::vector<std::byte>& bytes, const std::vector<int32_t>& numbers) {
  Append(bytes, static_cast<uint32_t>(numbers.size()));
  for (const int32_t number : numbers) Append(bytes, number);
}

class UnitsMessageParser {
 public:
  explicit UnitsMessageParser(std::span<const std::byte> payload) : remaining_(payload) {}

  absl::StatusOr<UnitsMessage> Parse() {
    uint32_t kind = 0;
    LIME_RETURN_IF_ERROR(Number(kind));
    if (kind == kQuery) return Query();
    if (kind == kAnswer) return Answer();
    return kind == kGuess ? Guess() : WrongUnitsMessage("kind ", kind, " is unknown");
  }

 private:
  absl::StatusOr<UnitsMessage> Query() {
    UnitsQuery query;
    uint8_t decodes = 0;
    LIME_RETURN_IF_ERROR(Number(query.number));
    LIME_RETURN_IF_ERROR(Number(query.part));
    LIME_RETURN_IF_ERROR(Number(decodes));
    LIME_RETURN_IF_ERROR(Number(query.per_row));
    if (query.number < 0) return WrongUnitsMessage("number ", query.number, " is negative");
    LIME_RETURN_IF_ERROR(CheckPart(query.part));
    if (decodes > 1) return WrongUnitsMessage("a flag is ", int{decodes});
    if (query.per_row < 1 || query.per_row > kMaxUnitsPerRow)
      return WrongUnitsMessage("rows have ", query.per_row, " units, need 1 to ", kMaxUnitsPerRow);
    query.decodes = decodes == 1;
    LIME_RETURN_IF_ERROR(Numbers(kMaxUnitRows * query.per_row, query.units));
    if (std::ssize(query.units) % query.per_row != 0)
      return WrongUnitsMessage(query.units.size(), " units are not ", query.per_row, " for each row");
    for (size_t row = 0; row < query.units.size(); row += static_cast<size_t>(query.per_row))
      LIME_RETURN_IF_ERROR(CheckRow(std::span(query.units).subspan(row, static_cast<size_t>(query.per_row))));
    query.rows = std::exchange(remaining_, {});
    if (query.rows.empty() || std::ssize(query.rows) % query.num_rows() != 0)
      return WrongUnitsMessage(query.rows.size(), " bytes are not the input of ", query.num_rows(), " rows");
    return query;
  }

  absl::StatusOr<UnitsMessage> Answer() {
    UnitsAnswer answer;
    LIME_RETURN_IF_ERROR(Number(answer.number));
    if (answer.number < 0) return WrongUnitsMessage("number ", answer.number, " is negative");
    LIME_RETURN_IF_ERROR(Units(kMaxUnits, answer.units));
    answer.results = std::exchange(remaining_, {});
    if (answer.results.empty() || answer.results.size() % sizeof(float) != 0)
      return WrongUnitsMessage(answer.results.size(), " bytes are not results of units");
    return answer;
  }

  absl::StatusOr<UnitsMessage> Guess() {
    UnitsGuess guess;
    LIME_RETURN_IF_ERROR(Number(guess.part));
    LIME_RETURN_IF_ERROR(CheckPart(guess.part));
    LIME_RETURN_IF_ERROR(Units(kMaxAheadPlaces, guess.units));
    if (!remaining_.empty()) return WrongUnitsMessage(remaining_.size(), " bytes follow a guess");
    return guess;
  }

  static absl::Status CheckPart(int32_t part) {
    if (part >= 0 && part < kMaxPlanBlocks) return absl::OkStatus();
    return WrongUnitsMessage("part ", part, " is larger than any plan allows");
  }

  absl::Status CheckRow(std::span<const int32_t> units) const {
    int32_t before = -1;
    bool ended = false;
    for (const int32_t unit : units) {
      ended = ended || unit == -1;
      if (ended ? unit != -1 : unit <= before || unit >= kMaxUnits)
        return WrongUnitsMessage("unit ", unit, " of a row follows ", ended ? -1 : before);
      before = unit;
    }
    return units.front() < 0 ? WrongUnitsMessage("a row has no units") : absl::OkStatus();
  }

  template <typename T>
  absl::Status Number(T& number) {
    if (remaining_.size() < sizeof(number)) return WrongUnitsMessage("it ends ", sizeof(number) - remaining_.size(), " bytes early");
    Get(remaining_.data(), number);
    remaining_ = remaining_.subspan(sizeof(number));
    return absl::OkStatus();
  }

  absl::Status Numbers(int64_t most, std::vector<int32_t>& numbers) {
    uint32_t count = 0;
    LIME_RETURN_IF_ERROR(Number(count));
    if (count == 0 || count > most) return WrongUnitsMessage("it names ", count, " units, need 1 to ", most);
    if (remaining_.size() / sizeof(int32_t) < count) return WrongUnitsMessage(count, " units do not fit in ", remaining_.size(), " bytes");
    numbers.resize(count);
    for (int32_t& number : numbers) LIME_RETURN_IF_ERROR(Number(number));
    return absl::OkStatus();
  }

  // Units of a part, in any order.
  absl::Status Units(int64_t most, std::vector<int32_t>& units) {
    LIME_RETURN_IF_ERROR(Numbers(most, units));
    for (const int32_t unit : units) {
      if (unit < 0 || unit >= kMaxUnits) return WrongUnitsMessage("unit ", unit, " is outside 0 to ", kMaxUnits - 1);
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> remaining_;
};

constexpr Bytes kGuessBytes = 16 + kMaxAheadPlaces * static_cast<Bytes>(sizeof(int32_t));

// Of one row: its input and its units; the results of all of them.
Bytes QueryRowBytes(const ModelSpec& spec) {
  return spec.config.hidden_size * ElementBytes(spec.working_dtype) + spec.config.experts->per_token * static_cast<Bytes>(sizeof(int32_t));
}
Bytes ResultBytes(const ModelSpec& spec) {
  return spec.config.hidden_size * static_cast<Bytes>(sizeof(float));
}

}  // namespace

bool IsUnitsMessage(std::span<const std::byte> payload) {
  uint32_t kind = 0;
  if (payload.size() < sizeof(kind)) return false;
  Get(payload.data(), kind);
  return kind == kQuery || kind == kAnswer || kind == kGuess;
}

std::vector<std::byte> Encode(const UnitsMessage& message) {
  std::vector<std::byte> bytes;
  const auto append_raw = [&bytes](std::span<const std::byte> raw) { bytes.insert(bytes.end(), raw.begin(), raw.end()); };
  if (const auto* query = std::get_if<UnitsQuery>(&message)) {
    bytes.reserve(32 + query->units.size() * sizeof(int32_t) + query->rows.size());
    Append(bytes, kQuery), Append(bytes, query->number), Append(bytes, query->part);
    Append(bytes, static_cast<uint8_t>(query->decodes)), Append(bytes, query->per_row);
    AppendAll(bytes, query->units);
    append_raw(query->rows);
  } else if (const auto* answer = std::get_if<UnitsAnswer>(&message)) {
    bytes.reserve(16 + answer->units.size() * sizeof(int32_t) + answer->results.size());
    Append(bytes, kAnswer), Append(bytes, answer->number);
    AppendAll(bytes, answer->units);
    append_raw(answer->results);
  } else {
    const UnitsGuess& guess = std::get<UnitsGuess>(message);
    bytes.reserve(static_cast<size_t>(kGuessBytes));
    Append(bytes, kGuess), Append(bytes, guess.part);
    AppendAll(bytes, guess.units);
  }
  return bytes;
}

absl::StatusOr<UnitsMessage> ParseUnitsMessage(std::span<const std::byte> payload) {
  return UnitsMessageParser(payload).Parse();
}

absl::Status CheckUnitsMessages(const Plan& plan, const ModelSpec& spec) {
  if (!HasHostedUnits(plan)) return absl::OkStatus();
  const int64_t rows = MaxRows(plan), per_row = spec.config.experts->per_token;
  const Bytes query = rows * QueryRowBytes(spec), answer = std::max(rows, per_row) * ResultBytes(spec);
  if (rows <= kMaxUnitRows && per_row <= kMaxUnitsPerRow && std::max(query, answer) < kMaxActivationBytes - kKiB * 64)
    return absl::OkStatus();
  return Invalid("a question about experts for ", rows, " rows of ", per_row, " experts may need ", FormatBytes(std::max(query, answer)),
                 "; the limits are ", kMaxUnitRows, " rows of ", kMaxUnitsPerRow, " experts and ", FormatBytes(kMaxActivationBytes),
                 "; plan shorter chunks");
}

Bytes UnitsMessageBytes(const ModelSpec& spec, int64_t rows, int64_t owners, int64_t hosts) {
  if (owners + hosts == 0) return 0;
  const int64_t per_row = spec.config.experts->per_token;
  const Bytes query = rows * QueryRowBytes(spec), one_answer = std::max(rows, per_row) * ResultBytes(spec);
  // A host keeps a question while another one is read, and computes results while all others of the
  // micro-batch are on their way. An owner reads one answer of each host at a time.
  const Bytes of_owner = 2 * query + rows * per_row * ResultBytes(spec) + kGuessBytes;
  return owners * of_owner + (owners > 0 ? one_answer : 0) + hosts * (query + one_answer + kGuessBytes);
}

Bytes UnitsMessageBytes(const Plan& plan, int32_t device, const ModelSpec& spec) {
  int64_t owners = 0, hosts = 0;
  for (int32_t d = 0; d < plan.NumDevices(); ++d) {
    owners += HostsUnitsOf(plan, device, d) ? 1 : 0;
    hosts += HostsUnitsOf(plan, d, device) ? 1 : 0;
  }
  return UnitsMessageBytes(spec, MaxRows(plan), owners, hosts);
}

}  // namespace lime
