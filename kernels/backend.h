// Computes a device's blocks. registry.h opens a backend by its name.
//
// Thread: the compute thread, one call at a time.   Owner: StageEngine.
// Memory: Create allocates and pre-faults everything; the calls below allocate nothing.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"
#include "planner/plan/micro_batch.h"
#include "planner/plan/model/block_parts.h"
#include "planner/plan/model/model_spec.h"

namespace lime {

struct DeciderView;    // common/proven_zeros/decider_copy.h
struct PredictorView;  // planner/plan/model/neuron_predictor.h

// The weights of one block in memory, in the order and with the roles of the BlockSpec.
struct BlockWeights {
  std::vector<const std::byte*> tensors;  // one for each BlockSpec::tensors; null: it is streamed
  std::shared_ptr<const void> storage;    // keeps the mapping or the buffer alive
};

struct BackendOptions {
  int num_threads = 1;
  int64_t max_rows = 0;        // tokens in one micro-batch
  int64_t max_logit_rows = 0;  // of these, rows that ask for logits
  int64_t max_sequences = 0;   // sequence slots
  int64_t context = 0;         // positions of one sequence
  int64_t num_kv_pages = 0;    // in the pool, over all layers
  // Pages at the beginning of the pool that are in memory, until ResizeKv changes it. -1: all.
  int64_t present_kv_pages = -1;
  // Layers with a state (HasState) that this backend computes. It keeps one for every sequence
  // slot.
  std::vector<int32_t> state_layers;
  // Of each sequence slot: copies of its states that may be kept beside them.
  int32_t state_snapshots = 0;
  bool attends_pieces = false;       // allocate memory for AttendToPieces and ContinueFromRecords
  bool attends_for_others = false;   // allocate memory for AttendFor
  bool computes_for_others = false;  // allocate memory for ComputeUnitsFor
  int64_t sparse_rows = 0;           // rows of the largest batch of DecideNeurons; 0: allocate no memory for it
  int64_t copied_directions = -1;    // of the largest copy of BindCopy; -1: allocate no memory for copies
  int64_t predictor_rank = 0;        // of the largest predictor of BindPredictor; 0: allocate no memory for any
  // The pool's memory is allocated as it is written, instead of up front.
  bool grow_kv = false;
  std::string numerics = "auto";  // "auto", "portable", or for tests "emulated-bf16"
};

// The input of a block's units: [rows, hidden] in the working dtype, and the units that each row
// has chosen, [rows, units of a row], ascending.
struct UnitInputs {
  std::span<const std::byte> rows;
  std::span<const int32_t> units;
};

// A unit of a block for some rows of another device.
struct UnitForRows {
  std::span<const RowsInMemory> matrices;  // all rows of all its matrices, in order of use
  std::span<const int32_t> rows;           // ascending
};

// The weights of a neuron of an MLP block that DecideNeurons does not need, as they are in its bundle
// (planner/demand/bundle_layout.h). Packed: codes alone, in the format of a row.
struct NeuronInMemory {
  int32_t neuron = 0;
  const std::byte* decider = nullptr;  // only with a copy or a predictor (BindCopy, BindPredictor): its row of the decider
  const std::byte* up = nullptr;       // gated MLPs: its row of up
  const std::byte* down = nullptr;     // its column of down: `hidden` weights side by side
};

// The most rows of units that ComputeUnitsFor computes together: those of one row, or one unit for
// all rows. REQUIRES: the model has experts
inline int64_t MostRowsFor(const ModelSpec& spec, const BackendOptions& options) {
  return std::max(options.max_rows, spec.config.experts->per_token);
}

class Backend {
 public:
  virtual ~Backend() = default;

  // Names the fixed order of reduction that this model's layers follow, e.g. "portable-f32-1".
  virtual std::string numerics_id() const = 0;
  // For people: "CPU, AVX-512, 2 threads".
  virtual std::string description() const = 0;

  // Sets the block's weights until the next call for it. InvalidArgument for weights that the
  // operators do not support.
  virtual absl::Status BindBlock(const BlockSpec& block, BlockWeights weights) = 0;

  // Sets the KV pages of sequence slot `sequence` in `layer`, by position / 16. -1: no page here;
  // AttendToPieces gets the memory instead. A layer with a window may have a page more than once:
  // for positions so far apart that no row attends to two of them.
  virtual void SetPages(int32_t sequence, int64_t layer, std::span<const int32_t> pages) = 0;

  // The memory of one page, for code that copies pages elsewhere or back. A page must come back
  // with the same bytes.
  virtual std::byte* KvPage(int32_t page) = 0;
  // Shares ownership of the pool's memory, so that it outlives the backend. REQUIRES: nothing is
  // computed afterwards.
  virtual std::shared_ptr<const std::byte> ShareKv() = 0;

  // Makes the first `pages` pages of the pool present and pre-faulted; releases all others with
  // their content. REQUIRES: the pool was made with present_kv_pages. Thread: any, even during a
  // step that uses none of the changing pages.
  virtual absl::Status ResizeKv(int64_t pages) = 0;

  // The state of sequence slot `sequence` in `layer`, for code that copies it elsewhere or back.
  // The first 8 bytes are the number of positions that it has absorbed (int64). Empty for a layer
  // that is not in BackendOptions::state_layers. A row at position 0 begins with a state of zeros.
  // Any other row must be at the position that follows its state.
  virtual std::span<std::byte> State(int32_t /*sequence*/, int64_t /*layer*/) { return {}; }
  // A snapshot: the state that this slot and layer had after a row with this BatchRow::snapshot, with
  // the number of its positions. Copied to State of any slot, it goes on with the same bits. Empty as
  // State is.  REQUIRES: 0 <= snapshot < BackendOptions::state_snapshots
  virtual std::span<std::byte> Snapshot(int32_t /*sequence*/, int32_t /*snapshot*/, int64_t /*layer*/) { return {}; }

  // Shares ownership of the memory of State and Snapshot, in the same way. Null if there is none.
  virtual std::shared_ptr<const std::byte> ShareStates() { return nullptr; }

  // Sets the rows of one step. The blocks then run in order: embedding, both halves of every layer,
  // head. Each works on the residual stream of this batch. InvalidArgument for tokens, positions or
  // sequences out of range.
  virtual absl::Status Begin(const MicroBatch& batch) = 0;
  // A block with experts may be bound without some of its experts (null pointers). Compute then
  // computes all but these; the chosen ones among them follow by ComputeUnits or ComputeRows, before
  // the next block.
  virtual absl::Status Compute(BlockId block) = 0;

  // Computes a streamed block as its rows arrive. The block is bound with null pointers for tensors
  // that do not stay in memory (IsPinned). Each call takes the next rows of its matrices, in order
  // of use, from the first row to the last. `rows` may be freed after the call.
  //
  // In a block with experts, rows of the router and the shared expert come first. The experts follow
  // in any order, the rows of one expert in order of use. Those of experts that no row chose may be
  // left out. The residual stream is updated when all results are there.
  virtual absl::Status ComputeRows(BlockId block, const RowsInMemory& rows) = 0;

  // Loads on demand: a block may choose, in the middle of a step, which of its units it needs. Units
  // are the experts of a block with experts.
  //
  // Returns the units that some row of the current batch needs, ascending. Valid after the block's
  // Compute or the last rows of its router, until the next block; empty before that, and for blocks
  // without units.
  virtual std::span<const int32_t> ChosenUnits(BlockId /*block*/) const { return {}; }
  // ComputeRows for each of `rows`, with the same bits. Much faster for units with all rows of all
  // their matrices, in order of use. All rows may be freed after the call.
  virtual absl::Status ComputeUnits(BlockId block, std::span<const RowsInMemory> rows) {
    for (const RowsInMemory& one : rows) {
      if (absl::Status status = ComputeRows(block, one); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  // Attends to pieces [begin, end) of KV (256 positions each) before the rest. Only for an
  // attention block that is computed by rows, between the last rows of V and the first rows of O.
  // The first call for a batch and layer begins at 0, each later one where the last call ended; the
  // rows of O attend to the remaining pieces. `places`: [sequence slots][end - begin], the memory
  // of a piece's 16 pages, one after another; null: the pages that SetPages named. The result has
  // the same bits in all cases. REQUIRES: BackendOptions::attends_pieces.
  virtual absl::Status AttendToPieces(int64_t /*layer*/, int64_t /*begin*/, int64_t /*end*/, std::span<const std::byte* const> /*places*/) {
    return InPoolAlone();
  }

  // Remote attention: another device (the host) has the first pieces of a sequence. It gets the
  // queries and returns a record for each row and head. The device that computes the block
  // continues from these records, in the same order. All layers with KV have the same heads and
  // window then.

  // Returns the batch's queries, [rows, heads * head_dim] fp32, for an attention block that is
  // computed by rows. Call it after the last rows of V; K and V are then in their pages. Valid
  // until the batch's next call.
  virtual absl::StatusOr<std::span<const float>> Queries(int64_t /*layer*/) { return InPoolAlone(); }
  // Floats of one row's record: the state of all its heads after some pieces.
  virtual int64_t RecordFloats() const = 0;
  // On the host: attends, for rows of one sequence, to the first pieces of that sequence's KV.
  // `positions`: of the rows, all behind those pieces. `queries`: [rows, heads * head_dim].
  // `pieces`: the memory of each piece's 16 pages, one after another, from the first piece on.
  // `records`: [rows, RecordFloats()], the result; zeros for a row whose window begins behind the
  // pieces. May be called between two calls of the host's own batch, which it does not change.
  // InvalidArgument for more than max_rows rows, and for positions and sizes that do not agree.
  // REQUIRES: BackendOptions::attends_for_others.
  virtual absl::Status AttendFor(std::span<const int32_t> /*positions*/, std::span<const float> /*queries*/,
                                 std::span<const std::byte* const> /*pieces*/, std::span<float> /*records*/) {
    return InPoolAlone();
  }
  // Uses records of AttendFor from a host, instead of attending to the first pieces here. Call it
  // after Queries and before the rows of O, which attend to the rest; not together with
  // AttendToPieces. `covered`: [sequence slots], how many pieces from the first on are in the
  // records. `records`: [rows, RecordFloats()]; ignored for rows whose sequence has none, or that
  // see none of them. Both may be freed after the call. The result has the same bits.
  // InvalidArgument for positions and sizes that do not agree. REQUIRES:
  // BackendOptions::attends_pieces.
  virtual absl::Status ContinueFromRecords(int64_t /*layer*/, std::span<const int32_t> /*covered*/, std::span<const float> /*records*/) {
    return InPoolAlone();
  }

  // Remote units: other devices (hosts) have some of a block's units. Each gets the inputs of the
  // rows that have chosen its units, and returns what the units compute for them. The device that
  // computes the block adds all results in the same order as ever.

  // What the units of the current batch compute with. Valid while ChosenUnits of the block is. The
  // first four methods fail before that.
  virtual absl::StatusOr<UnitInputs> InputsOfUnits(BlockId /*block*/) { return WithOwnUnitsAlone(); }
  // Bytes of the result of a unit that the current batch has chosen; InvalidArgument for another
  // one.
  virtual absl::StatusOr<Bytes> UnitResultBytes(BlockId /*block*/, int32_t /*unit*/) { return WithOwnUnitsAlone(); }
  // Takes the result of a chosen unit from a host: fp32 [rows that have chosen it, hidden], in
  // order of the rows. It counts once UseUnitResults names it. InvalidArgument for another number
  // of bytes. Thread: any, while the compute thread computes other units of the block, or nothing.
  virtual absl::Status TakeUnitResult(BlockId /*block*/, int32_t /*unit*/, std::span<const std::byte> /*result*/) {
    return WithOwnUnitsAlone();
  }
  // These units need not be computed here: their results have been taken.
  virtual absl::Status UseUnitResults(BlockId /*block*/, std::span<const int32_t> /*units*/) { return WithOwnUnitsAlone(); }
  // On the host: computes units for rows of another device. `inputs`: [rows, hidden] in the working
  // dtype. `results`: fp32 [rows of all units, hidden], unit by unit. May be called between two
  // calls of the host's own batch, which it does not change. The block is bound, with null pointers
  // for tensors that do not stay in memory (IsPinned). InvalidArgument for sizes that do not agree.
  // REQUIRES: BackendOptions::computes_for_others; the units have at most MostRowsFor rows
  // together.
  virtual absl::Status ComputeUnitsFor(BlockId /*block*/, std::span<const std::byte> /*inputs*/, std::span<const UnitForRows> /*units*/,
                                       std::span<float> /*results*/) {
    return WithOwnUnitsAlone();
  }

  // Sparse MLPs: a step computes an MLP block with ReLU from its active neurons alone, with the bits
  // of Compute. The calls for a block are, in this order:
  //   ComputeRows     rows of the decider, if it streams: of gate in a gated MLP, else of up
  //   DecideNeurons   once
  //   ComputeNeurons  at least once, until all decided neurons have come
  // After DecideNeurons, the rest may still be computed from whole matrices: by Compute, or, if no
  // neuron has been computed, by ComputeRows of the other matrices.
  // The block is bound with its norms, biases, scales and group biases; null pointers stand for the
  // weights that bundles have, and for a decider that streams.
  //
  // Normalises the input, computes the decider and returns the neurons that are active for some row
  // of the batch, ascending. NaN is active. Valid until the next block. Unimplemented for blocks and
  // formats that have no sparse form, and for batches of more than BackendOptions::sparse_rows rows.
  // Exact if all weights of the MLP are finite and up cannot overflow; whoever writes bundles checks
  // that.
  virtual absl::StatusOr<std::span<const int32_t>> DecideNeurons(BlockId /*block*/) { return WithWholeMatricesAlone(); }
  // The neurons that are active for one row of the batch, ascending, where DecideNeurons is not called.
  // After the last rows of a decider that streams, before other rows of the block. For any number of
  // rows. Changes nothing; valid until the next call. Unimplemented for blocks that have no sparse form.
  // With a copy (BindCopy): those that it does not prove to be zero, before any rows of the block.
  virtual absl::StatusOr<std::span<const int32_t>> ActiveNeurons(BlockId /*block*/, int64_t /*row*/) { return WithWholeMatricesAlone(); }
  // Computes the next ones of the decided neurons, ascending; any number in each call, in one call at
  // least, even if no neuron is active. The last ones update the residual stream. All memory of the
  // neurons may be freed after the call. Aligned to 4 bytes. InternalError for other neurons.
  virtual absl::Status ComputeNeurons(BlockId /*block*/, std::span<const NeuronInMemory> /*neurons*/) { return WithWholeMatricesAlone(); }

  // Lets an MLP block decide with a low-bit copy of its decider (common/proven_zeros), until the next
  // call for the block. No rows of the decider are then needed before DecideNeurons, which returns the
  // neurons that the copy does not prove to be zero. ComputeNeurons takes their rows of the decider too,
  // and computes these first; the results have the same bits. `storage` keeps the copy's memory alive.
  // InvalidArgument for a copy of other sizes, Unimplemented for layers whose order of sums has no proof.
  // REQUIRES: the block is bound; the copy was made of these weights; BackendOptions::copied_directions
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overrides keep it
  virtual absl::Status BindCopy(BlockId /*block*/, const DeciderView& /*copy*/, std::shared_ptr<const void> /*storage*/) {
    return WithWholeMatricesAlone();
  }
  // Lets an MLP block compute, for each row, only the neurons that a predictor names for that row, until
  // the next call for the block. The others count as zero in all calls for the block, whole matrices
  // included. So the result of a row follows from the weights and the predictor, and not from the calls
  // or from the other rows. As with a copy, DecideNeurons needs no rows of the decider, and ComputeNeurons
  // takes them. ActiveNeurons may be called before any rows of the block. `storage` keeps the predictor's
  // memory alive. InvalidArgument for a predictor of other sizes, Unimplemented for layers without zeros.
  // REQUIRES: the block is bound, and has no copy; BackendOptions::predictor_rank
  // NOLINTNEXTLINE(performance-unnecessary-value-param): overrides keep it
  virtual absl::Status BindPredictor(BlockId /*block*/, const PredictorView& /*predictor*/, std::shared_ptr<const void> /*storage*/) {
    return WithWholeMatricesAlone();
  }
  // What the decider multiplies, [rows, hidden] in the working dtype. Valid after DecideNeurons, until
  // the next block.
  virtual absl::StatusOr<std::span<const std::byte>> InputOfNeurons(BlockId /*block*/) { return WithWholeMatricesAlone(); }

  // Computes the embedding from a table with one row for each row of the batch, in the same order.
  virtual absl::Status EmbedRows(const RowsInMemory& rows) = 0;

  // The residual stream of the current batch, [rows, hidden] in the working dtype. With
  // ModelConfig::parallel_halves as much again follows: the input of the layer's MLP half. If other devices
  // computed the blocks before, write it before the first block here; read it after the last block
  // here.
  virtual std::span<std::byte> Hidden() = 0;

  // [rows that asked for logits, vocab] fp32, in the order of the rows; valid until the next Begin.
  // The head fills all of it; rows of the head fill only their own ids. If other devices compute
  // the other rows, write their values here.
  virtual std::span<float> Logits() = 0;

  // Bytes of activations and scratch memory; bytes of the KV pool; bytes of all states and snapshots.
  virtual Bytes ActivationBytes() const = 0;
  virtual Bytes KvBytes() const = 0;
  virtual Bytes StateBytes() const { return 0; }

  // Read-ahead: guesses the units that the current batch will choose in `next`, a later block with
  // units, the likeliest first: the router of `next` is applied to the input of `block`'s experts.
  // `router`: all rows of that router, in order. Writes as many units as there is room for, and
  // returns their number; 0: no guess, for example for more than kMostGuessRows rows. Changes no
  // result of the batch. Call it while ChosenUnits of `block` is valid, before any of these units is
  // computed.
  static constexpr int64_t kMostGuessRows = 4;
  virtual size_t GuessUnits(BlockId /*block*/, BlockId /*next*/, std::span<const RowsInMemory> /*router*/, std::span<int32_t> /*units*/) {
    return 0;
  }

 private:
  static absl::Status InPoolAlone() { return absl::UnimplementedError("this backend computes attention only over KV in its own memory"); }
  static absl::Status WithWholeMatricesAlone() { return absl::UnimplementedError("this backend computes MLPs only from whole matrices"); }
  static absl::Status WithOwnUnitsAlone() { return absl::UnimplementedError("this backend computes experts only from its own memory"); }
};

}  // namespace lime
