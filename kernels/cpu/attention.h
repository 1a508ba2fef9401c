// Grouped-query attention over a paged KV cache, for decode rows and prefill chunks.
//
// A page holds 16 positions of one layer, in the working dtype:
//   K [kv_heads][head_dim][16]   transposed: the scores of 16 positions are computed side by side
//   V [kv_heads][16][head_dim]
// A page of latents has K alone, of one head; V of a position is the end of its K.
//
// Order (portable-f32-1). A piece is the positions 256 i .. 256 i + 255 of a sequence, whatever the
// batch. For one query row and head, within a piece:
//   score[p] = scale * (chain of fused multiply-adds of q[d] k[p][d], d ascending), then capped if
//              there is a cap
//   max      = largest score;  w[p] = exp(score[p] - max)
//   sum      = lane p % 16 adds w[p], p ascending; the 16 lanes are added as in ReduceAdd
//   acc[d]   = chain of fused multiply-adds of w[p] v[p][d], p ascending
// Pieces are merged in ascending order. If the head has a sink, exp(sink - max) is added to the sum.
// Then acc / sum, times sigmoid(gate) if there is a gate, is rounded once. Only positions that a row
// sees take part. So no tiling, batch or thread count changes a bit, and any device that has a
// piece's pages may compute it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/base/thread_pool.h"
#include "planner/base/bytes.h"
#include "planner/base/dtype.h"

namespace lime::cpu {

inline constexpr int64_t kPagePositions = 16;
inline constexpr int64_t kPiecePositions = 256;
inline constexpr int64_t kMaxHeadDim = 576;

// The KV pages of one layer. The caller owns the memory and the tables.
struct KvView {
  std::byte* base = nullptr;  // page p is at base + p * page_bytes; fastest if aligned to 64 bytes
  int64_t page_bytes = 0;     // >= KvPageBytes(dtype, kv_heads, head_dim)
  DType dtype = DType::kBF16;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;  // <= kMaxHeadDim
  // [sequence slots, table_stride]: at [slot][i] the page of positions 16 i .. 16 i + 15 of this
  // layer.
  const int32_t* page_table = nullptr;
  int64_t table_stride = 0;
  // Pages of latents: dimensions of V, which are the last ones of K. REQUIRES: kv_heads is 1. 0: pages
  // have K and V.
  int64_t latent_dim = 0;
};

// Bytes of one page.
constexpr Bytes KvPageBytes(DType dtype, int64_t kv_heads, int64_t head_dim) {
  return 2 * kv_heads * kPagePositions * head_dim * ElementBytes(dtype);
}

// The rows of a micro-batch. Consecutive rows of one sequence share the reads of its cache.
struct AttentionRows {
  const int32_t* slots = nullptr;      // sequence slot of each row; null (Attend only): 0
  const int32_t* positions = nullptr;  // position of each row in its sequence
  int64_t count = 0;
};

// Rounds k and v, fp32 [rows, kv_heads, head_dim] with `stride` elements between two rows, into the
// pages at the rows' positions. Pages of latents ignore v.
void KvAppend(ThreadPool& pool, const KvView& kv, const AttentionRows& rows, const float* k, const float* v, int64_t stride);

// Scratch memory of Attend, allocated once: computing a token allocates nothing.
class AttentionWorkspace {
 public:
  struct Options {
    int64_t max_rows = 0;  // of a micro-batch
    int64_t heads = 0;
    int64_t head_dim = 0;
    int64_t max_positions = 0;  // longest context; up to it, threads share the pieces of one row
    bool carries = false;       // one Attend may be several calls (AttentionPieces)
  };
  explicit AttentionWorkspace(const Options& options);
  ~AttentionWorkspace();

  // Bytes of such a workspace, without creating it.
  static Bytes BytesFor(const Options& options);
  Bytes bytes() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// A gate for every element of the result, fp32. The call with a row's last piece reads it.
struct AttentionGate {
  const float* data = nullptr;  // of the first row and head; null: there is no gate
  int64_t stride = 0;           // elements between two rows
  int64_t head_stride = 0;      // elements between two heads
};

// One more score for each head, without a value. The call with a row's last piece reads it.
struct AttentionSinks {
  const void* data = nullptr;  // [heads] of dtype; null: there are none
  DType dtype = DType::kF32;   // a working dtype
};

struct AttentionShape {
  int64_t heads = 0;       // multiple of kv_heads; head h uses kv head h / (heads / kv_heads)
  int64_t q_stride = 0;    // elements between two rows of q
  int64_t out_stride = 0;  // elements between two rows of out
  int64_t window = 0;      // a row at p sees max(0, p - window + 1) .. p; 0: all up to p
  float scale = 0;         // of the scores
  AttentionGate gate;
  float cap = 0;  // scores are cap tanh(score / cap); 0: they are not capped
  AttentionSinks sinks;
};

// The pieces that one call attends to. One Attend may be several calls with the same rows, for
// consecutive pieces from 0 on. Each call carries the state of every row to the next one. The call
// with a row's last piece writes the row's result.
struct AttentionPieces {
  int64_t begin = 0;
  int64_t end = INT64_MAX;
  // [sequence slots, end - begin]: the memory of a piece's 16 pages, one after another; a null
  // element: as the page table says. Null: as the page table says for all pieces.
  const std::byte* const* places = nullptr;
  // [sequence slots]: how many pieces from 0 on the carried state of a slot's rows includes
  // already, wherever they were computed. The call leaves these out. Null: the pieces before
  // `begin`.
  const int32_t* covered = nullptr;
};

// out: [rows, heads * head_dim] in kv.dtype; q: fp32 [rows, heads, head_dim]. REQUIRES: K and V of
// every position that a row sees in the call's pieces were appended; rows.count, heads and head_dim
// fit the workspace; the workspace carries state, unless the call attends to all pieces. A context
// beyond max_positions is allowed; then threads cannot share one row.
void Attend(ThreadPool& pool, AttentionWorkspace& ws, const KvView& kv, const AttentionRows& rows, const float* q,
            const AttentionShape& shape, void* out, const AttentionPieces& pieces = {});

// Floats of a row's carried state in packed form, as it goes to another workspace: for each head
// max, sum, acc [head_dim].
constexpr int64_t PackedRecordFloats(int64_t heads, int64_t head_dim) {
  return heads * (2 + head_dim);
}

// Copies the carried state of the rows after the pieces [0, end) to records: [rows,
// PackedRecordFloats]. Zeros for a row that sees none of these pieces. REQUIRES: all rows see later
// pieces.
void GetCarried(AttentionWorkspace& ws, const AttentionRows& rows, const AttentionShape& shape, int64_t head_dim, int64_t end,
                float* records);
// Sets the carried state of rows that see any of the pieces [0, covered[slot]), for an Attend with
// this `covered`. Records of other rows are ignored.
void SetCarried(AttentionWorkspace& ws, const AttentionRows& rows, const AttentionShape& shape, int64_t head_dim, const int32_t* covered,
                const float* records);

}  // namespace lime::cpu
