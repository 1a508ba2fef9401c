// What computes a device's blocks. registry.h opens one by its name.
//
// Thread: the compute thread, one call at a time.   Owner: StageEngine.
// Memory: everything is allocated and pre-faulted by Create; the calls below allocate nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/block_pieces.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/model_spec.h"

namespace lime {

// The weights of one block in memory. Order and roles are those of the BlockSpec.
struct BlockWeights {
  std::vector<const std::byte*> tensors;  // one for each BlockSpec::tensors; null: it streams
  std::shared_ptr<const void> storage;    // keeps the mapping or the buffer alive
};

struct BackendOptions {
  int num_threads = 1;
  int64_t max_rows = 0;             // tokens in one micro-batch
  int64_t max_logit_rows = 0;       // of them, rows that ask for logits
  int64_t max_sequences = 0;        // sequence slots
  int64_t context = 0;              // positions of one sequence
  int64_t num_kv_pages = 0;         // in the pool, over all layers
  int64_t present_kv_pages = -1;    // of them, the first ones that are in memory until ResizeKv says otherwise; -1: all
  bool attends_pieces = false;      // room for AttendPieces and TakeRecords
  bool attends_for_others = false;  // room for AttendFor
  bool grow_kv = false;             // memory of the pool comes as it is written, instead of up front
  std::string numerics = "auto";    // "auto", "portable", or for tests "emulated-bf16"
};

class Backend {
 public:
  virtual ~Backend() = default;

  // Names the fixed order of reduction that this model's layers follow, e.g. "portable-f32-1".
  virtual std::string numerics_id() const = 0;
  // For people: "CPU, AVX-512, 2 threads".
  virtual std::string description() const = 0;

  // Points the block at its weights; they stay until replaced. InvalidArgument for what the operators refuse.
  virtual absl::Status BindBlock(const BlockSpec& block, BlockWeights weights) = 0;

  // Tells which KV pages hold the positions of sequence slot `sequence` in `layer`, by position / 16; -1: none, AttendPieces has it.
  virtual void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) = 0;

  // [page bytes] of one page, for who takes it elsewhere, or brings it from there: its bytes have to stay as they are.
  virtual std::byte* KvPage(int32_t page) = 0;
  // The pool's memory, page by page, for who needs it longer than the rest. Nothing is called after it.
  virtual std::shared_ptr<const std::byte> TakeKv() = 0;

  // From now on the first `pages` pages of the pool are in memory, and pre-faulted; what the others held is gone. For a pool made with
  // present_kv_pages.  Thread: any, beside a step that uses no page of those that come or go.
  virtual absl::Status ResizeKv(int64_t pages) = 0;

  // Takes the rows of one step. The blocks then run in order: embedding, attention and MLP of every layer, head. Each works on the residual
  // stream of this batch. InvalidArgument for tokens, positions or sequences out of range.
  virtual absl::Status Begin(const MicroBatch& batch) = 0;
  virtual absl::Status Compute(BlockId block) = 0;

  // A block that streams is bound with null pointers for the tensors that are not kept (IsKept), and computed as its rows arrive: each
  // call takes the next rows of its matrices, in order of use, from the first row to the last. Nothing of `rows` is needed afterwards.
  virtual absl::Status ComputeRows(BlockId block, const RowsInMemory& rows) = 0;
  // Of an attention block that is computed by rows, between the last rows of V and the first of O: attends to the pieces [begin, end) of KV
  // (256 positions each) ahead of the others. The first call of a batch and layer begins at 0, the next where the one before ended; the
  // rows of O see to the rest. `places`: [sequence slots][end - begin], where the 16 pages of a piece lie one after another; null: in the
  // pages that SetPages named. No bit depends on either. REQUIRES: BackendOptions::attends_pieces
  virtual absl::Status AttendPieces(int64_t /*layer*/, int64_t /*begin*/, int64_t /*end*/, std::span<const std::byte* const> /*places*/) {
    return InPoolAlone();
  }

  // Attention of which another device has the first pieces of a sequence: it is sent the queries, and sends back what is known of each row
  // and head after these pieces, from where the device that computes the block goes on, in the same order.

  // [rows, heads * head_dim] fp32: the queries of the batch, of an attention block that is computed by rows, once its last rows of V are;
  // its K and V are in their pages then. Valid until the batch's next call.
  virtual absl::StatusOr<std::span<const float>> Queries(int64_t /*layer*/) { return InPoolAlone(); }
  // Floats of one row's record: what is known of all its heads after some pieces.
  virtual int64_t RecordFloats() const = 0;
  // For another device, which computes the block: attends from rows of one of its sequences to the first pieces of that one's KV.
  // `positions`: of the rows, each behind those pieces. `queries`: [rows, heads * head_dim]. `pieces`: where the 16 pages of each lie one
  // after another, from the first piece on. `records`: [rows, RecordFloats()]; zeros where a row's window begins behind the pieces. Beside
  // a batch of one's own, between two of its calls: it changes nothing of it. InvalidArgument for more than max_rows rows, and positions
  // and sizes that do not agree. REQUIRES: BackendOptions::attends_for_others
  virtual absl::Status AttendFor(std::span<const int32_t> /*positions*/, std::span<const float> /*queries*/,
                                 std::span<const std::byte* const> /*pieces*/, std::span<float> /*records*/) {
    return InPoolAlone();
  }
  // Instead of attending to the first pieces: what AttendFor made of them elsewhere. After Queries, ahead of the rows of O, which see to
  // the rest; not together with AttendPieces. `taken`: [sequence slots], pieces from the first on that the records have of each. `records`:
  // [rows, RecordFloats()]; anything for rows whose sequence has none taken, or that see none of them. Neither is needed afterwards. No bit
  // depends on it. InvalidArgument for positions and sizes that do not agree. REQUIRES: BackendOptions::attends_pieces
  virtual absl::Status TakeRecords(int64_t /*layer*/, std::span<const int32_t> /*taken*/, std::span<const float> /*records*/) {
    return InPoolAlone();
  }

  // Computes the embedding with a table of the batch's own: row i is that of the token in row i.
  virtual absl::Status EmbedRows(const RowsInMemory& rows) = 0;

  // The residual stream of the batch that has begun, [rows, hidden] in the working dtype: written before its first block where other
  // devices computed those before, read after its last block here.
  virtual std::span<std::byte> Hidden() = 0;

  // [rows that asked for logits, vocab] fp32, in the order of the rows; valid until the next Begin. Head fills them, and rows of the head
  // their ids and no others: where other devices compute some, theirs are written here.
  virtual std::span<float> Logits() = 0;

  // Bytes held for activations and scratch, and for the KV pool.
  virtual Bytes ActivationBytes() const = 0;
  virtual Bytes KvBytes() const = 0;

 private:
  static absl::Status InPoolAlone() { return absl::UnimplementedError("this backend attends to KV in its own memory alone"); }
};

}  // namespace lime
