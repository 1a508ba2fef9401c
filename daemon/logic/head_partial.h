// What goes from one part of the head to the next, where devices share it by ranges of the vocabulary: of each row that asks for logits
// those of the ids so far, then the hidden states of the micro-batch, of which the next part makes more.
//
// A row tells all of them, or where its token depends on no others (LogitsUsed) the largest, and those equal to the least of them. Who
// takes it writes them where it makes its own; what was not told is -infinity there, as if sampling had filtered it out. So whoever makes
// the last ones samples from a row like any other, and takes the token that it would have taken had it made them all, bit for bit.
//
// Little-endian: the rows that ask for logits, u32; for each in order how many ids it tells, u32, and each id, u32, ascending, with its
// logit, fp32 - or kAllIds, and the logits of all ids so far, fp32; the hidden states, as they lie in memory.
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

// What it takes at most beside the hidden states.
constexpr Bytes MostLogitBytes(int64_t messages, int64_t rows, int64_t ids) {
  return messages * 4 + rows * (4 + 4 * ids);
}

// Writes payloads in memory of payloads before, and allocates nothing once it has written such a one.
class HeadPartialEncoder {
 public:
  // `logits` [rows, vocab], of which the first `ids` of each row are known; `used`: how many of the largest each row's token depends on.
  std::vector<std::byte> Encode(std::span<const float> logits, int64_t vocab, int64_t ids, std::span<const int64_t> used,
                                std::span<const std::byte> hidden, std::vector<std::byte> memory = {});

 private:
  std::optional<float> Least(std::span<const float> logits, int64_t k);
  void FindIdsToTell(std::span<const float> logits, int64_t used);
  void AppendRow(std::span<const float> logits, int64_t used, std::vector<std::byte>& bytes);

  std::vector<float> largest_;  // a heap, the least at the front
  std::vector<uint32_t> ids_;   // to tell of the row at hand
};

// What a row tells, in a payload that is someone else's.
class LogitsSoFar {
 public:
  int64_t count() const { return count_; }
  // logits: of all ids so far.
  void CopyTo(std::span<float> logits) const;

 private:
  friend class HeadPartialParser;
  const std::byte* told_ = nullptr;
  int64_t count_ = 0;
  bool all_ = false;
};

struct HeadPartial {
  std::vector<LogitsSoFar> rows;
  std::span<const std::byte> hidden;
};

// A view of `payload`. InvalidArgument for what does not end where it says, more rows than `most_rows`, a row that tells of no id or of so
// many that all logits were shorter, ids that are not ascending or not below `ids`, and logits that are no numbers beside them.
// In the memory of one that was used before, which an error does not give back.
absl::StatusOr<HeadPartial> ParseHeadPartial(std::span<const std::byte> payload, int64_t ids, int64_t most_rows, HeadPartial memory = {});

}  // namespace lime
