#include "daemon/logic/head_partial.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>

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

// The k-th largest logit; nothing for NaN or infinity, which sampling has to see where they are.  REQUIRES: 1 <= k <= logits.size()
std::optional<float> Least(std::span<const float> logits, int64_t k) {
  std::vector<float> largest;  // a heap, the least at the front
  for (const float logit : logits) {
    if (!(logit < kInfinity)) return std::nullopt;
    const bool full = std::ssize(largest) == k;
    if (full && logit <= largest.front()) continue;
    if (full) std::ranges::pop_heap(largest, std::greater()), largest.pop_back();
    largest.push_back(logit);
    std::ranges::push_heap(largest, std::greater());
  }
  return largest.front();
}

// The ids of the `used` largest logits and of their equals, ascending; none where all logits are shorter.
std::vector<uint32_t> IdsToTell(std::span<const float> logits, int64_t used) {
  const size_t most = logits.size() * kLogitBytes / kPairBytes;
  if (used < 1 || used > static_cast<int64_t>(most)) return {};
  const std::optional<float> least = Least(logits, used);
  if (!least) return {};
  std::vector<uint32_t> ids;
  for (size_t id = 0; id < logits.size(); ++id) {
    if (logits[id] < *least) continue;
    if (ids.size() == most) return {};
    ids.push_back(static_cast<uint32_t>(id));
  }
  return ids;
}

void Append(uint32_t number, std::vector<std::byte>& bytes) {
  bytes.resize(bytes.size() + sizeof(number));
  Put(number, bytes.data() + bytes.size() - sizeof(number));
}

void AppendRow(std::span<const float> logits, int64_t used, std::vector<std::byte>& bytes) {
  const std::vector<uint32_t> ids = IdsToTell(logits, used);
  Append(ids.empty() ? kAllIds : static_cast<uint32_t>(ids.size()), bytes);
  for (const uint32_t id : ids) Append(id, bytes), Append(std::bit_cast<uint32_t>(logits[id]), bytes);
  const std::span<const std::byte> all = std::as_bytes(logits);
  if (ids.empty()) bytes.insert(bytes.end(), all.begin(), all.end());
}

}  // namespace

std::vector<std::byte> EncodeHeadPartial(std::span<const float> logits, int64_t vocab, int64_t ids, std::span<const int64_t> used,
                                         std::span<const std::byte> hidden) {
  LIME_CHECK(std::ssize(logits) >= std::ssize(used) * vocab && ids <= vocab);
  std::vector<std::byte> bytes;
  bytes.reserve(hidden.size() + used.size() * 64);
  Append(static_cast<uint32_t>(used.size()), bytes);
  for (size_t row = 0; row < used.size(); ++row) {
    AppendRow(logits.subspan(row * static_cast<size_t>(vocab), static_cast<size_t>(ids)), used[row], bytes);
  }
  bytes.insert(bytes.end(), hidden.begin(), hidden.end());
  return bytes;
}

void LogitsSoFar::CopyTo(std::span<float> logits) const {
  if (all_) {
    LIME_CHECK(std::ssize(logits) == count_);
    std::memcpy(logits.data(), told_, logits.size_bytes());
    return;
  }
  std::ranges::fill(logits, -kInfinity);
  const std::byte* in = told_;
  for (int64_t i = 0; i < count_; ++i) {
    uint32_t id = 0, bits = 0;
    in = Get(Get(in, id), bits);
    logits[id] = std::bit_cast<float>(bits);
  }
}

class HeadPartialParser {
 public:
  HeadPartialParser(std::span<const std::byte> payload, int64_t ids) : left_(payload), ids_(ids) {}

  absl::StatusOr<HeadPartial> Parse(int64_t most_rows) {
    LIME_ASSIGN_OR_RETURN(const uint32_t rows, TakeNumber());
    if (rows > most_rows) return WrongPartial("logits of ", rows, " rows, at most ", most_rows);
    HeadPartial partial;
    for (uint32_t row = 0; row < rows; ++row) {
      LIME_ASSIGN_OR_RETURN(LogitsSoFar logits, TakeRow());
      partial.rows.push_back(logits);
    }
    partial.hidden = left_;
    return partial;
  }

 private:
  absl::StatusOr<std::span<const std::byte>> Take(int64_t bytes) {
    if (std::ssize(left_) < bytes) return WrongPartial("it ends ", bytes - std::ssize(left_), " bytes early");
    const std::span<const std::byte> taken = left_.first(static_cast<size_t>(bytes));
    left_ = left_.subspan(taken.size());
    return taken;
  }

  absl::StatusOr<uint32_t> TakeNumber() {
    LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> bytes, Take(sizeof(uint32_t)));
    uint32_t number = 0;
    Get(bytes.data(), number);
    return number;
  }

  absl::StatusOr<LogitsSoFar> TakeRow() {
    LIME_ASSIGN_OR_RETURN(const uint32_t count, TakeNumber());
    LogitsSoFar row;
    row.all_ = count == kAllIds;
    row.count_ = row.all_ ? ids_ : int64_t{count};
    if (!row.all_ && (count == 0 || count * kPairBytes > ids_ * kLogitBytes)) return WrongPartial(count, " ids of ", ids_, " are told");
    LIME_ASSIGN_OR_RETURN(const std::span<const std::byte> told, Take(row.count_ * (row.all_ ? kLogitBytes : kPairBytes)));
    row.told_ = told.data();
    if (!row.all_) LIME_RETURN_IF_ERROR(CheckPairs(row));
    return row;
  }

  absl::Status CheckPairs(const LogitsSoFar& row) const {
    const std::byte* in = row.told_;
    int64_t next = 0;
    for (int64_t i = 0; i < row.count_; ++i) {
      uint32_t id = 0, bits = 0;
      in = Get(Get(in, id), bits);
      if (id < next || id >= ids_) return WrongPartial("id ", id, " where one of ", next, " to ", ids_ - 1, " may come");
      if (!(std::bit_cast<float>(bits) < kInfinity)) return WrongPartial("the logit of id ", id, " is none that can be among the largest");
      next = int64_t{id} + 1;
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> left_;
  const int64_t ids_;
};

absl::StatusOr<HeadPartial> ParseHeadPartial(std::span<const std::byte> payload, int64_t ids, int64_t most_rows) {
  return HeadPartialParser(payload, ids).Parse(most_rows);
}

}  // namespace lime
