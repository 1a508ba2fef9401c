// The "decoder" of tokenizer.json, reduced to what can be printed token by token: the bytes of each
// id, and a rule that strips the beginning of the text. A text is the joined bytes of its ids, with
// broken UTF-8 replaced by U+FFFD.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/text/components/json_access.h"

namespace lime {

// Removes `content` up to `count` times from the beginning of the decoded text.
struct StripRule {
  std::string content;
  int64_t count = 0;
};

class Decoder {
 public:
  // If `json` is null, the decoder joins the pieces with spaces, as the tokenizers library does.
  static absl::StatusOr<Decoder> Parse(const TokenizerJson& json);

  // The bytes of `piece`. `first`: no token came before it.
  absl::StatusOr<std::string> TokenBytes(std::string_view piece, bool first) const;

  // Whether TokenBytes depends on `first`.
  bool first_differs() const { return first_differs_; }

  // True: each byte of broken UTF-8 becomes U+FFFD, as with byte-fallback tokens. False: each
  // ill-formed part does.
  bool replaces_by_byte() const { return replaces_by_byte_; }

  const StripRule& strip() const { return strip_; }

 private:
  using Step = std::function<absl::StatusOr<std::string>(const std::string& bytes, bool first)>;

  absl::Status Append(const TokenizerJson& json);
  absl::Status AppendMetaspace(const TokenizerJson& json);
  absl::Status AppendStrip(const TokenizerJson& json);

  std::vector<Step> steps_;
  bool fused_ = false;  // later steps see the whole text
  bool first_differs_ = false;
  bool replaces_by_byte_ = false;
  StripRule strip_;
};

// The bytes of every id.
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
  std::vector<uint32_t> begins_;  // size + 1 offsets
};

}  // namespace lime
