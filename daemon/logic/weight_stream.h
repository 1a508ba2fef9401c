// Decides which weights are read when: the exact order of use, as far ahead as the ring has room, round and round over the steps.
//
// Pure: indices and offsets in, loads to start out; memory, disk and threads are the owner's (daemon/engine/streamed_weights.h).
// Thread: the owner's, under its lock.
//
// The blocks of a step are used in order, cyclically. A cursor runs ahead of the computation and decides every block's next use when it
// passes: resident blocks need nothing, streamed ones are loaded into the ring piece by piece, filled ones into memory of their own, which
// they keep. So a block changes its state between two uses, never during one, and nothing that was read ahead is thrown away:
//
//   kStreamed --Fill--> kFillWanted --cursor--> kFilling --used--> kResident --Shed--> kStreamed      memory given back at once
//                                                                            --Shed--> kShedding --used--> kStreamed   its use was decided
//
// Invariants: loads start and are used in order of use; at most one use of a block is decided ahead; a place in the ring is given again
// only after the piece in it was used, or dropped after its load ended.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "daemon/logic/byte_ring.h"
#include "planner/base/bytes.h"

namespace lime {

class WeightStream {
 public:
  enum class State : uint8_t {
    kStreamed,    // read for every use
    kFillWanted,  // streamed until the cursor passes, then filled; its memory is reserved
    kFilling,     // its next use reads it into its own memory
    kResident,    // in memory
    kShedding,    // in memory until its decided use is over
  };

  // What a block's next use takes.
  enum class Use : uint8_t {
    kResident,  // nothing to wait for
    kStream,    // pieces come through the ring
    kFill,      // pieces come into the block's own memory
    kSkip,      // the step does not compute this block
  };

  struct Block {
    std::vector<Bytes> piece_bytes;  // room that each piece takes in the ring
    bool resident = false;
  };

  // One piece on its way. In the ring it begins at `offset`; a filled piece lies where its block has put it.
  struct Load {
    int64_t id = 0;
    int32_t block = 0;
    int32_t piece = 0;
    bool in_ring = true;
    Bytes offset = 0;
  };

  // REQUIRES: every piece fits into the ring.
  WeightStream(std::vector<Block> blocks, Bytes ring_bytes);

  // ---- Reading ahead

  // Appends the loads that may start now, in order of use. To be called after everything below.
  void Advance(std::vector<Load>& loads);
  void OnLoaded(int64_t id);

  // ---- Computing, in order

  int32_t block() const { return computing_; }  // whose use is next or under way
  // What the use of block() takes; decides it if that is still open.
  Use CurrentUse();
  // The next piece of block(), null until its load has ended or (in a ring that is full of others) begun.
  const Load* ReadyPiece() const;
  // Ends the use of that piece.
  void ReleasePiece();
  // Ends the use of block(). True: its own memory is to be given back.  REQUIRES: all its pieces were released, or it is skipped.
  bool FinishBlock();

  // The next use of `block` will not happen: what is loaded for it is dropped.  REQUIRES: it is not under way.
  void SkipNextUse(int32_t block);
  // Pieces of a skipped block() whose loads have not ended: its use cannot finish yet.
  bool DropsPending() const;

  // Back to the first block, with an empty ring: after an error, or an interrupted step. Blocks that were being filled stream again and
  // are appended to `freed`; so are those whose shedding waited for their use.  REQUIRES: no load is under way.
  void Restart(std::vector<int32_t>& freed);

  // ---- Residency

  State state(int32_t block) const { return blocks_[block].state; }
  // Makes a block stream. True: its own memory is to be given back now; otherwise FinishBlock will say so.
  bool Shed(int32_t block);
  // Makes a streamed block resident from its next use on. REQUIRES: its own memory is there.
  void Fill(int32_t block);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int64_t loads_under_way() const { return under_way_; }
  // REQUIRES: it is under way
  const Load& load(int64_t id) const;

 private:
  struct Entry {
    Block spec;
    State state = State::kStreamed;
    bool skip_next = false;
  };
  // A use that the cursor has decided. The first one is that of block().
  struct Decision {
    int32_t block = 0;
    Use use = Use::kResident;
    int32_t started = 0;   // pieces whose loads were handed out
    int32_t released = 0;  // of them, used or dropped
  };
  struct Piece {
    Load load;
    bool loaded = false;
  };

  void Decide();
  bool StartPieces(Decision& decision, std::vector<Load>& loads);
  void DropLoaded();
  const Decision* DecisionOf(int32_t block) const;
  void TakeBackDecisions();

  std::vector<Entry> blocks_;
  ByteRing ring_;
  int32_t computing_ = 0;           // block of decisions_.front(), or of the first one to come
  int32_t cursor_ = 0;              // block of the next decision
  std::deque<Decision> decisions_;  // at most one for every block
  std::deque<Piece> pieces_;        // handed out and not yet released, in order of use
  int64_t next_id_ = 0;
  int64_t under_way_ = 0;
};

}  // namespace lime
