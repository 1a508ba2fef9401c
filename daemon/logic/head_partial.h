// The payload from one part of the head to the next, when devices share the head by ranges of the
// vocabulary. For each row that wants logits it has logits of the ids so far. After them it has the
// hidden states of the micro-batch, from which the next part makes more logits.
//
// A row sends all of these logits if its token depends on all of them (LogitsUsed). Otherwise it
// sends only the largest ones, and all that equal the smallest of these. The receiver writes them
// into the row in which it makes its own. Ids that were not sent are -infinity there, as if
// sampling had filtered them out. So the last device samples from a row like any other. It gets the
// token, bit for bit, that it would get if it had made all logits itself.
//
// Little-endian: the number of rows that want logits, u32; for each row in order the number of ids
// that it sends, u32, and each id, u32, ascending, with its logit, fp32 - or kAllIds, and the
// logits of all ids so far, fp32; the hidden states, as they lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

inline constexpr uint32_t kAllIds = UINT32_MAX;

// Bytes at most, without the hidden states.
constexpr Bytes MostLogitBytes(int64_t messages, int64_t rows, int64_t ids) {
  return messages * 4 + rows * (4 + 4 * ids);
}

// Writes payloads into memory of earlier ones. Allocates nothing once an earlier payload was as
// long.
class HeadPartialEncoder {
 public:
  // `logits` [rows, vocab]: the first `ids` of each row are known. `used`: how many of the largest
  // logits the token of each row depends on.
  std::vector<std::byte> Encode(std::span<const float> logits, int64_t vocab, int64_t ids, std::span<const int64_t> used,
                                std::span<const std::byte> hidden, std::vector<std::byte> memory = {});

 private:
  std::optional<float> Least(std::span<const float> logits, int64_t k);
  void FindIdsToSend(std::span<const float> logits, int64_t used);
  void AppendRow(std::span<const float> logits, int64_t used, std::vector<std::byte>& bytes);

  std::vector<float> largest_;  // a heap, the smallest at the front
  std::vector<uint32_t> ids_;   // to send for the current row
};

// The logits that a row has sent: a view of a payload that someone else owns.
class LogitsSoFar {
 public:
  int64_t count() const { return count_; }
  // `logits`: of all ids so far.
  void CopyTo(std::span<float> logits) const;

 private:
  friend class HeadPartialParser;
  const std::byte* encoded_ = nullptr;
  int64_t count_ = 0;
  bool all_ = false;
};

struct HeadPartial {
  std::vector<LogitsSoFar> rows;
  std::span<const std::byte> hidden;
};

// A view of `payload`. InvalidArgument for a payload that is too short, for more rows than
// `most_rows`, and for a row that sends no id or so many ids that all logits would be shorter. Also
// for ids that do not ascend or are not below `ids`, and for logits of ids that are NaN or
// infinite. Uses the memory of an earlier HeadPartial, which is lost after an error.
absl::StatusOr<HeadPartial> ParseHeadPartial(std::span<const std::byte> payload, int64_t ids, int64_t most_rows, HeadPartial memory = {});

}  // namespace lime
