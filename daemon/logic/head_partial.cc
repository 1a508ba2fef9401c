#include "daemon/logic/head_partial.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <utility>

#include "common/little_endian.h"
#include "planner/base/check.h"

namespace lime {
namespace {

static_assert(std::endian::native == std::endian::little, "logits travel as they lie in memory");

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kPairBytes = 8, kLogitBytes = 4;

template <typename... What>
absl::Status WrongPartial(const What&... what) {
  return Invalid("head partial: ", what...);
}

}  // namespace

// The k-th largest logit. Nothing if one is NaN or infinite: sampling has to see it where it is.
// REQUIRES: 1 <= k <= logits.size()
std::optional<float> HeadPartialEncoder::Least(std::span<const float> logits, int64_t k) {
  largest_.clear();
  for (const float logit : logits) {
    if (!(logit < kInfinity)) return std::nullopt;
    const bool full = std::ssize(largest_) == k;
    if (full && logit <= largest_.front()) continue;
    if (full) std::ranges::pop_heap(largest_, std::greater()), largest_.pop_back();
    largest_.push_back(logit);
    std::ranges::push_heap(largest_, std::greater());
  }
  return largest_.front();
}

// The ids of the `used` largest logits, and of all that equal the smallest of these, ascending.
// None if all logits are shorter.
void HeadPartialEncoder::FindIdsToSend(std::span<const float> logits, int64_t used) {
  ids_.clear();
  const size_t most = logits.size() * kLogitBytes / kPairBytes;
  if (used < 1 || used > static_cast<int64_t>(most)) return;
  const std::optional<float> least = Least(logits, used);
  if (!least) return;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] < *least) continue;
    if (ids_.size() == most) return ids_.clear();
    ids_.push_back(static_cast<uint32_t>(id));
  }
}

void HeadPartialEncoder::AppendRow(std::span<const float> logits, int64_t used, std::vector<std::byte>& bytes) {
  FindIdsToSend(logits, used);
  Append(bytes, ids_.empty() ? kAllIds : static_cast<uint32_t>(ids_.size()));
  for (const uint32_t id : ids_) Append(bytes, id), Append(bytes, std::bit_cast<uint32_t>(logits[id]));
  const std::span<const std::byte> all = std::as_bytes(logits);
  if (ids_.empty()) bytes.insert(bytes.end(), all.begin(), all.end());
}

std::vector<std::byte> HeadPartialEncoder::Encode(std::span<const float> logits, int64_t vocab, int64_t ids, std::span<const int64_t> used,
                                                  std::span<const std::byte> hidden, std::vector<std::byte> memory) {
  LIME_CHECK(std::ssize(logits) >= std::ssize(used) * vocab && ids <= vocab);
  memory.clear();
  memory.reserve(hidden.size() + used.size() * 64);
  Append(memory, static_cast<uint32_t>(used.size()));
  for (size_t row = 0; row < used.size(); ++row) {
    AppendRow(logits.subspan(row * static_cast<size_t>(vocab), static_cast<size_t>(ids)), used[row], memory);
  }
  memory.insert(memory.end(), hidden.begin(), hidden.end());
  return memory;
}

void LogitsSoFar::CopyTo(std::span<float> logits) const {
  if (all_) {
    LIME_CHECK(std::ssize(logits) == count_);
    std::memcpy(logits.data(), encoded_, logits.size_bytes());
    return;
  }
  std::ranges::fill(logits, -kInfinity);
  const std::byte* in = encoded_;
  for (int64_t i = 0; i < count_; ++i) {
    uint32_t id = 0, bits = 0;
    in = Get(Get(in, id), bits);
    logits[id] = std::bit_cast<float>(bits);
  }
}

class HeadPartialParser {
 public:
  HeadPartialParser(std::span<const std::byte> payload, int64_t ids) : remaining_(payload), ids_(ids) {}

  absl::StatusOr<HeadPartial> Parse(int64_t most_rows, HeadPartial partial) {
    LIME_ASSIGN_OR_RETURN(const uint32_t rows, ReadNumber());
    if (rows > most_rows) return WrongPartial("it has logits of ", rows, " rows, the limit is ", most_rows);
    partial.rows.clear();
    for (uint32_t row = 0; row < rows; ++row) {
      LIME_ASSIGN_OR_RETURN(LogitsSoFar logits, ReadRow());
      partial.rows.push_back(logits);
    }
    partial.hidden = remaining_;
    return partial;
  }

 private:
  absl::StatusOr<std::span<const std::byte>> ReadBytes(int64_t bytes) {
    if (std::ssize(remaining_) < bytes) return WrongPartial("it ends ", bytes - std::ssize(remaining_), " bytes early");
    const std::span<const std::byte> read = remaining_.first(static_cast<size_t>(bytes));
    remaining_ = remaining_.subspan(read.size());
    return read;
  }

  absl::StatusOr<uint32_t> ReadNumber() {
    LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, ReadBytes(sizeof(uint32_t)));
    uint32_t number = 0;
    Get(bytes.data(), number);
    return number;
  }

  absl::StatusOr<LogitsSoFar> ReadRow() {
    LIME_ASSIGN_OR_RETURN(const uint32_t count, ReadNumber());
    LogitsSoFar row;
    row.all_ = count == kAllIds;
    row.count_ = row.all_ ? ids_ : int64_t{count};
    if (!row.all_ && (count == 0 || count * kPairBytes > ids_ * kLogitBytes))
      return WrongPartial("a row has logits of ", count, " of ", ids_, " ids, which is out of range");
    LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> encoded, ReadBytes(row.count_ * (row.all_ ? kLogitBytes : kPairBytes)));
    row.encoded_ = encoded.data();
    if (!row.all_) LIME_RETURN_IF_ERROR(CheckPairs(row));
    return row;
  }

  absl::Status CheckPairs(const LogitsSoFar& row) const {
    const std::byte* in = row.encoded_;
    int64_t next = 0;
    for (int64_t i = 0; i < row.count_; ++i) {
      uint32_t id = 0, bits = 0;
      in = Get(Get(in, id), bits);
      if (id < next || id >= ids_) return WrongPartial("id ", id, " is not one of ", next, " to ", ids_ - 1);
      if (!(std::bit_cast<float>(bits) < kInfinity)) return WrongPartial("the logit of id ", id, " cannot be among the largest");
      next = int64_t{id} + 1;
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> remaining_;
  const int64_t ids_;
};

absl::StatusOr<HeadPartial> ParseHeadPartial(std::span<const std::byte> payload, int64_t ids, int64_t most_rows, HeadPartial memory) {
  return HeadPartialParser(payload, ids).Parse(most_rows, std::move(memory));
}

}  // namespace lime
