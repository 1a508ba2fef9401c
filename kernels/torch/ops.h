// LIME's operators as libtorch knows them: each is registered with the dispatcher (TORCH_LIBRARY(lime, ...)), so the tensors' device
// chooses the implementation. CPU: kernels/cpu, exact bits. Every other device: ATen (ops_aten.cc), which promises a tolerance and not
// bits.
//
// These are thin typed calls: they create no tensor, view or slice and allocate nothing. Outputs are preallocated; their sizes say how many
// rows are meant. Thread: the compute thread, inside a ContextScope.   Errors: c10::Error for shapes and dtypes that do not agree.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <initializer_list>
#include <memory>

#include "kernels/cpu/linear.h"
#include "planner/base/bytes.h"
#include "planner/plan/model_config.h"

namespace lime::ops {

// What the CPU operators need beside tensors: threads and scratch, made once for the largest step.
class ComputeContext {
 public:
  struct Options {
    int num_threads = 1;
    int64_t max_rows = 0;
    int64_t max_cols = 0;  // widest input of a linear layer
    int64_t heads = 0;
    int64_t head_dim = 0;
    int64_t max_positions = 0;        // longest context
    bool carries = false;             // whether AttendPiecesOut is used
    bool attends_for_others = false;  // whether AttendForOut is used
    lime::cpu::Numerics numerics = lime::cpu::Numerics::kAuto;
  };
  explicit ComputeContext(const Options& options);
  ~ComputeContext();
  // What such a context holds, without making it.
  static Bytes BytesFor(const Options& options);
  Bytes bytes() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

// Makes `context` the current thread's for as long as it lives.
class ContextScope {
 public:
  explicit ContextScope(ComputeContext& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  ComputeContext* previous_;
};

// A linear layer's parameters: views that someone else keeps alive. Of a layer that streams, the weight (with scales and biases) holds only
// the rows from `row_begin` on that have arrived; they fill their columns of the output and leave the others alone.
struct LinearWeight {
  at::Tensor weight;  // [rows, cols] in the working dtype; packed: [rows, cols * bits / 32] int32 words
  at::Tensor bias;    // [rows of the whole layer] working dtype, or undefined
  at::Tensor scales;  // packed: [rows, cols / group_size]; else undefined
  at::Tensor biases;  // packed: [rows, cols / group_size]; else undefined
  int64_t bits = 0;   // packed: 3, 4, 6 or 8; else 0
  int64_t group_size = 0;
  int64_t row_begin = 0;
};

// One layer's part of the KV pool.
struct KvLayer {
  at::Tensor pages;  // [num_pages, 2 * kv_heads * 16 * head_dim] working dtype, the layout of kernels/cpu/attention.h; shared by all layers
  at::Tensor page_table;  // [sequence slots, pages of one sequence] int32: this layer's page of positions 16 i .. 16 i + 15
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
};

// Some of the 256-position pieces of all sequences.
struct KvPieces {
  int64_t begin = 0;
  int64_t end = 0;    // INT64_MAX: all behind `begin`
  at::Tensor places;  // [sequence slots, end - begin] int64: address of a piece whose 16 pages lie one after another; 0: in its pages.
                      // Undefined: all are in their pages
  at::Tensor taken;   // [sequence slots] int32: pieces from 0 on that TakeRecords brought. Undefined: none
};

// cos and sin of every position, [positions, head_dim / 2] fp32 each.
struct RopeTables {
  RopeTables(const RopeConfig& rope, int64_t head_dim, int64_t positions);
  // What such tables hold, without making them.
  static Bytes BytesFor(const RopeConfig& rope, int64_t head_dim, int64_t positions);
  Bytes bytes() const;
  at::Tensor cos, sin;
  int64_t head_dim = 0;
};

// x: [rows, cols] working dtype.   out: [rows, rows of the whole layer] fp32.
void LinearOut(const at::Tensor& x, const LinearWeight& w, at::Tensor& out);
// The same for two or three layers that share x, in one parallel region.
void LinearManyOut(const at::Tensor& x, std::initializer_list<const LinearWeight*> weights, std::initializer_list<at::Tensor*> outs);
// y: [rows, rows of the whole layer] working dtype, y = round(y + x w^T + bias), rounded once.
void LinearAddTo(const at::Tensor& x, const LinearWeight& w, at::Tensor& y);

// x, out: [rows, width] working dtype; out may be x.   weight: [width] in any working dtype, as all weights of norms.
void RmsNormOut(const at::Tensor& x, const at::Tensor& weight, double eps, at::Tensor& out);
// weight, bias: [width] of one dtype, or undefined.
void LayerNormOut(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps, at::Tensor& out);
// qk: [rows, heads * head_dim] fp32, in place; weight: [head_dim].
void HeadRmsNormInPlace(at::Tensor& qk, const at::Tensor& weight, double eps);
// qk: [rows, heads * head_dim] fp32, in place; positions: [rows] int32.
void RopeInPlace(at::Tensor& qk, const at::Tensor& positions, const RopeTables& rope);

// k, v: [rows, kv_heads * head_dim] fp32, rounded into the pages of their sequence slots and positions, [rows] int32 each.
void KvAppend(const at::Tensor& k, const at::Tensor& v, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv);
// q: [rows, heads * head_dim] fp32.   out: [rows, heads * head_dim] working dtype.   window 0: a row sees every position up to its own.
void AttendOut(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv, int64_t window,
               at::Tensor& out);

// The same in several calls, for pieces from 0 on that follow one another. A row's `out` is written with the last piece that it sees.
// Not among the operators of devices that have no memory in common with the CPU.
void AttendPiecesOut(const at::Tensor& q, const at::Tensor& slots, const at::Tensor& positions, const KvLayer& kv, const KvPieces& pieces,
                     int64_t window, at::Tensor& out);

// What is known of the rows of one sequence after its first pieces, in place of a batch's own: beside it, in scratch of its own.
// places: [1, pieces] int64, as KvPieces has them, none 0; `kv` tells the geometry of their pages.   positions: behind the pieces.
// records: [rows, heads * (2 + head_dim)] fp32: max, sum, acc [head_dim] of each head; zeros where a row's window begins behind the pieces.
void AttendForOut(const at::Tensor& q, const at::Tensor& positions, const at::Tensor& places, const KvLayer& kv, int64_t window,
                  at::Tensor& records);
// Such records, of the pieces ahead of `taken` of each row's slot, [sequence slots] int32, for an AttendPiecesOut of all pieces with the
// same `taken`. Those of rows that see none of them are not looked at.
void TakeRecords(const at::Tensor& records, const at::Tensor& slots, const at::Tensor& positions, const at::Tensor& taken, int64_t head_dim,
                 int64_t window);

// gate, up: [rows, n] fp32.   out: [rows, n] working dtype.
void GatedActivationOut(const at::Tensor& gate, const at::Tensor& up, Activation activation, at::Tensor& out);
void ActivationOut(const at::Tensor& x, Activation activation, at::Tensor& out);

// tokens, positions: [rows] int32.   position_table: [positions + offset, hidden] or undefined.   out: [rows, hidden] working dtype.
void EmbedOut(const at::Tensor& tokens, const LinearWeight& table, const at::Tensor& positions, const at::Tensor& position_table,
              int64_t position_offset, at::Tensor& out);
// out[i] = x[rows[i]]; rows: [n] int32.
void GatherRowsOut(const at::Tensor& x, const at::Tensor& rows, at::Tensor& out);

// The k largest of each row of the head's logits [rows, vocab] fp32, largest first, equal ones by ascending id, for the caller that wants
// no more of them. values: [rows, k] fp32.   ids: [rows, k] int32.   Allocates k entries.   Errors: k above vocab, a NaN.
void TopKOut(const at::Tensor& logits, at::Tensor& values, at::Tensor& ids);

}  // namespace lime::ops
