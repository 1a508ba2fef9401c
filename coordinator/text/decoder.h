// The "decoder" of tokenizer.json, reduced to what can be printed token by token: the bytes of each id, and what the
// beginning of the text loses. The bytes of a text are those of its ids joined, and broken UTF-8 in them becomes U+FFFD.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/json_access.h"

namespace lime {

// What the front of the decoded text loses: up to `count` times `content`.
struct StripRule {
  std::string content;
  int64_t count = 0;
};

class Decoder {
 public:
  // Null joins the pieces with spaces, as the tokenizers library does.
  static absl::StatusOr<Decoder> Parse(const Json& json);

  // The bytes that `piece` stands for; `first`: no token came before.
  absl::StatusOr<std::string> TokenBytes(std::string_view piece, bool first) const;

  // TokenBytes depends on `first`.
  bool first_differs() const { return first_differs_; }

  // Broken UTF-8 gives one U+FFFD a byte, as bytes that fell back to tokens do; otherwise one for each ill-formed part.
  bool replaces_by_byte() const { return replaces_by_byte_; }

  const StripRule& strip() const { return strip_; }

 private:
  using Step = std::function<absl::StatusOr<std::string>(std::string bytes, bool first)>;

  absl::Status Append(const Json& json);
  absl::Status AppendMetaspace(const Json& json);
  absl::Status AppendStrip(const Json& json);

  std::vector<Step> steps_;
  bool fused_ = false;  // what follows sees the whole text
  bool first_differs_ = false;
  bool replaces_by_byte_ = false;
  StripRule strip_;
};

// The bytes of every id, ready to be joined.
class ByteTable {
 public:
  // `piece(id)` is empty for an id without a piece.
  static absl::StatusOr<ByteTable> Create(const Decoder& decoder, bool first, int32_t size,
                                          const std::function<std::string_view(int32_t)>& piece);

  // Empty for an id out of range.
  std::string_view Bytes(int32_t id) const {
    if (id < 0 || static_cast<size_t>(id) + 1 >= begins_.size()) return {};
    return std::string_view(bytes_).substr(begins_[id], begins_[id + 1] - begins_[id]);
  }

 private:
  std::string bytes_;
  std::vector<uint32_t> begins_;  // size + 1 of them
};

}  // namespace lime
