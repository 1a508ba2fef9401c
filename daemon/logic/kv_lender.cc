#include "daemon/logic/kv_lender.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "planner/base/check.h"

namespace lime {

KvLender::KvLender(const Shape& shape) : shape_(shape) {
  LIME_CHECK(shape.layers > 0 && shape.piece_bytes > 0 && shape.chunk_bytes > 0);
}

std::vector<KvChunk> KvLender::Begin(const KvAway::Piece& piece, int32_t layer, std::span<const std::byte> bytes) {
  LIME_CHECK(!under_way()) << "chunk " << *last_ << " is not kept yet";
  LIME_CHECK(layer >= 0 && layer < shape_.layers) << "layer " << layer << " of " << shape_.layers;
  LIME_CHECK_EQ(std::ssize(bytes), shape_.piece_bytes);
  std::vector<KvChunk> chunks;
  for (Bytes offset = 0; offset < shape_.piece_bytes; offset += shape_.chunk_bytes) {
    const Bytes length = std::min(shape_.chunk_bytes, shape_.piece_bytes - offset);
    chunks.push_back({.number = next_number_++,
                      .sequence = piece.sequence,
                      .life = piece.life,
                      .layer = layer,
                      .piece = piece.piece,
                      .offset = offset,
                      .bytes = bytes.subspan(static_cast<size_t>(offset), static_cast<size_t>(length))});
  }
  last_ = chunks.back().number;
  return chunks;
}

absl::Status KvLender::OnKept(int64_t number) {
  if (number != last_) {
    return Invalid("chunk ", number, " is said to be kept, and ", last_ ? absl::StrCat("chunk ", *last_, " is the last") : "none is",
                   " under way");
  }
  last_.reset();
  return absl::OkStatus();
}

}  // namespace lime
