// Grouped-query attention over a paged KV cache, for decode rows and prefill chunks alike.
//
// A page holds 16 positions of one layer, in the working dtype:
//   K [kv_heads][head_dim][16]   transposed, so that the scores of 16 positions grow side by side, one dimension at a time
//   V [kv_heads][16][head_dim]
//
// Order (portable-f32-1). A piece is the positions 256 i .. 256 i + 255 of a sequence, whatever the batch. For one query row and head,
// within a piece:
//   score[p] = scale * (chain of fused multiply-adds of q[d] k[p][d], d ascending)
//   max      = largest score;  w[p] = exp(score[p] - max)
//   sum      = lane p % 16 adds w[p], p ascending; the 16 lanes as ReduceAdd does
//   acc[d]   = chain of fused multiply-adds of w[p] v[p][d], p ascending
// Pieces are merged in ascending order, and acc / sum is rounded once. Only the positions a row sees enter, so no tiling, no batch and no
// thread count can change a bit, and a piece may be computed wherever its pages are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "kernels/cpu/thread_pool.h"
#include "planner/base/bytes.h"
#include "planner/base/dtype.h"

namespace lime::cpu {

inline constexpr int64_t kPagePositions = 16;
inline constexpr int64_t kPiecePositions = 256;
inline constexpr int64_t kMaxHeadDim = 256;

// The KV pages of one layer. The memory and the tables are someone else's.
struct KvView {
  std::byte* base = nullptr;  // page p starts at base + p * page_bytes; aligned to 64 bytes for full speed
  int64_t page_bytes = 0;     // >= KvPageBytes(dtype, kv_heads, head_dim)
  DType dtype = DType::kBF16;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;                 // <= kMaxHeadDim
  const int32_t* page_table = nullptr;  // [sequence slots, table_stride]: page of positions 16 i .. 16 i + 15 of this layer at [slot][i]
  int64_t table_stride = 0;
};

// Bytes of one page.
constexpr Bytes KvPageBytes(DType dtype, int64_t kv_heads, int64_t head_dim) {
  return 2 * kv_heads * kPagePositions * head_dim * ElementBytes(dtype);
}

// The rows of a micro-batch. Rows of one sequence that follow each other share the work of reading its cache.
struct AttentionRows {
  const int32_t* slots = nullptr;      // sequence slot of each row; null, for Attend: 0
  const int32_t* positions = nullptr;  // position of each row in its sequence
  int64_t count = 0;
};

// Rounds k, v: fp32 [rows, kv_heads, head_dim], `stride` elements between two rows, into the pages at the rows' positions.
void KvAppend(ThreadPool& pool, const KvView& kv, const AttentionRows& rows, const float* k, const float* v, int64_t stride);

// Scratch memory of Attend, made once: nothing is allocated on the token path.
class AttentionWorkspace {
 public:
  struct Options {
    int64_t max_rows = 0;  // of a micro-batch
    int64_t heads = 0;
    int64_t head_dim = 0;
    int64_t max_positions =
        0;                 // longest context: room for every piece of one row, so that the pieces of a long one are shared by the threads
    bool carries = false;  // whether one Attend may be several calls (AttentionPieces)
  };
  explicit AttentionWorkspace(const Options& options);
  ~AttentionWorkspace();

  // What such a workspace holds, without making it.
  static Bytes BytesFor(const Options& options);
  Bytes bytes() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

struct AttentionShape {
  int64_t heads = 0;       // multiple of kv_heads: heads h / (heads / kv_heads) share a kv head
  int64_t q_stride = 0;    // elements between two rows of q
  int64_t out_stride = 0;  // elements between two rows of out
  int64_t window = 0;      // a row at p sees max(0, p - window + 1) .. p; 0: all up to p
  float scale = 0;         // 1 / sqrt(head_dim)
};

// Which pieces one call attends to. Several calls with the same rows, for pieces that follow one another from 0 on, are one Attend: what is
// known of a row after each is carried to the next, and its out is written by the call that has the last piece it sees.
struct AttentionPieces {
  int64_t begin = 0;
  int64_t end = INT64_MAX;
  // [sequence slots, end - begin]: where the 16 pages of a piece lie one after another; null: where the page table says.  Null: all there.
  const std::byte* const* places = nullptr;
  // [sequence slots]: pieces from 0 on that what is carried of a slot's rows has already, wherever they were attended to; the call leaves
  // them out. Null: those ahead of `begin`.
  const int32_t* taken = nullptr;
};

// out [rows, heads * head_dim] in kv.dtype; q: fp32 [rows, heads, head_dim]. K and V of every position a row sees in the call's pieces have
// been appended.
// REQUIRES: rows.count, heads and head_dim within the workspace, which carries where `pieces` are not all (contexts beyond max_positions
// only lose the sharing of one row).
void Attend(ThreadPool& pool, AttentionWorkspace& ws, const KvView& kv, const AttentionRows& rows, const float* q,
            const AttentionShape& shape, void* out, const AttentionPieces& pieces = {});

// What is carried of a row, as it goes to another workspace: for each head max, sum, acc [head_dim].
constexpr int64_t PackedRecordFloats(int64_t heads, int64_t head_dim) {
  return heads * (2 + head_dim);
}

// records: [rows, PackedRecordFloats], after the pieces [0, end) of the rows, all of which see later ones; zeros where a row sees none of
// them.
void GetCarried(AttentionWorkspace& ws, const AttentionRows& rows, const AttentionShape& shape, int64_t head_dim, int64_t end,
                float* records);
// The records of rows that see anything of the pieces [0, taken[slot]), for an Attend with this `taken`; others are not looked at.
void SetCarried(AttentionWorkspace& ws, const AttentionRows& rows, const AttentionShape& shape, int64_t head_dim, const int32_t* taken,
                const float* records);

}  // namespace lime::cpu
