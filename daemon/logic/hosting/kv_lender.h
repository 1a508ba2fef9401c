// Decides how a device, the owner, sends pieces of KV to the host that keeps them: one layer of a
// piece at a time, and the next layer once the host has confirmed the last. Pure: which bytes go in
// which message; pages and links are the owner's.
//
// KvAway chooses the piece. The piece counts as written (KvAway::EndWrite) once the host has all
// its layers. The owner may give a piece up between two layers, but only if the sequence of the
// piece has ended: then the host drops the layers that it has (daemon/logic/hosting/kv_host.h).
//
// Thread: the owner's.   Invariant: at most one layer's piece is under way.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/logic/hosting/kv_message.h"
#include "daemon/logic/pages/kv_away.h"
#include "planner/base/bytes.h"
#include "planner/base/check.h"
#include "planner/base/status.h"

namespace lime {

class KvLender {
 public:
  struct Shape {
    int64_t layers = 0;
    Bytes piece_bytes = 0;  // of one layer
    Bytes chunk_bytes = 16 * kKiB;
  };

  // REQUIRES: all numbers are positive.
  explicit KvLender(const Shape& shape) : shape_(shape) { LIME_CHECK(shape.layers > 0 && shape.piece_bytes > 0 && shape.chunk_bytes > 0); }

  // Begins one layer of a piece. Returns the chunks to send, in order; they point into `bytes`.
  // REQUIRES: !under_way(); bytes.size() == piece_bytes
  std::vector<KvChunk> Begin(const KvAway::Piece& piece, int32_t layer, std::span<const std::byte> bytes) {
    LIME_CHECK(!under_way()) << "chunk " << *last_ << " is not stored yet";
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

  // The host has the layer whose last chunk has this number. InvalidArgument if that layer is not
  // under way; nothing has changed then.
  absl::Status OnStored(int64_t number) {
    if (number != last_) {
      return Invalid("chunk ", number, " is reported as stored, but ", last_ ? absl::StrCat("chunk ", *last_, " is the last") : "none is",
                     " under way");
    }
    last_.reset();
    return absl::OkStatus();
  }

  bool under_way() const { return last_.has_value(); }

 private:
  const Shape shape_;
  int64_t next_number_ = 0;
  std::optional<int64_t> last_;  // number of the last chunk under way
};

}  // namespace lime
