// Decides how weights go over a connection: which bytes are sent next, and which are sent again.
//
// The bytes that a device lacks are cut into units whose checksums it knows. One after another, the
// units are a stream of bytes. The stream travels in chunks, and no chunk crosses the end of a
// unit. A position is an offset in that stream, so one number says how far each side is:
//
//   PushSender ── chunk(position) ──► PushReceiver   takes the chunk that comes next
//              ◄─ stored(position) ──                everything before it is on file
//              ◄─ again(position) ──                 a chunk or a unit is damaged: go on from here
//
// After a break both begin anew: the device looks which units it has, and the rest is the stream.
// Pure: positions and counts inside, bytes and checksums outside.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

// Units one after another.
class PushStreamMap {
 public:
  // REQUIRES: no unit is empty.
  explicit PushStreamMap(const std::vector<Bytes>& units);

  int64_t end() const { return begins_.back(); }
  int64_t begin(size_t unit) const { return begins_[unit]; }
  // The unit that holds the byte at `position`. REQUIRES: 0 <= position < end().
  size_t UnitAt(int64_t position) const;

 private:
  std::vector<int64_t> begins_;  // of the units, then the end
};

class PushSender {
 public:
  struct Options {
    Bytes chunk_bytes = 1 * kMiB;
    Bytes window_bytes = 16 * kMiB;  // at most under way: fills a fast link while a slow disk syncs
    int max_repeats = 16;            // of the same bytes
  };
  struct Chunk {
    int64_t position = 0;
    Bytes bytes = 0;
    size_t unit = 0;
    int64_t offset = 0;  // in the unit
  };
  PushSender(const std::vector<Bytes>& units, const Options& options) : map_(units), options_(options) {}

  // The next chunk to send. None if all is sent, or if something under way has to be stored first.
  std::optional<Chunk> Next();

  // InvalidArgument for a position that is not under way.
  absl::Status OnStored(int64_t position);
  // DataLoss if the same bytes were asked for too often.
  absl::Status OnAgain(int64_t position);

  bool done() const { return stored_ == map_.end(); }
  int64_t stored() const { return stored_; }
  Bytes total() const { return map_.end(); }
  Bytes sent() const { return total_sent_; }  // with repetitions

 private:
  absl::Status CheckPosition(int64_t position, int64_t low) const;

  const PushStreamMap map_;
  const Options options_;
  int64_t next_ = 0;    // to send
  int64_t stored_ = 0;  // everything before it is on the device's file
  int64_t farthest_ = 0;
  int repeats_ = 0;  // since `farthest_` moved
  Bytes total_sent_ = 0;
};

class PushReceiver {
 public:
  struct Options {
    int max_attempts = 4;                 // for a chunk, and for a unit
    Bytes max_dropped_bytes = 64 * kMiB;  // under way when something was asked for again
  };
  enum class Verdict : uint8_t {
    kWrite,     // the bytes belong in the file
    kWriteEnd,  // the same, and the unit is complete: OnUnit comes next
    kDrop,      // the chunk was sent before the sender heard that it has to go back
    kAgain,     // tell the sender to go on from position()
  };
  PushReceiver(const std::vector<Bytes>& units, const Options& options) : map_(units), options_(options) {}

  // `intact`: the chunk's own checksum matches. InvalidArgument for a chunk that does not continue
  // what is here, or ends outside its unit. DataLoss if a chunk or a unit never arrives intact.
  // After an error nothing else is taken.
  absl::StatusOr<Verdict> OnChunk(int64_t position, Bytes bytes, bool intact);
  // The current unit is complete. Returns kWrite if it `matches` its checksum, else kAgain.
  absl::StatusOr<Verdict> OnUnit(bool matches);

  // The place of the next byte: in the stream; its unit; in the unit.
  int64_t position() const { return position_; }
  size_t unit() const { return map_.UnitAt(position_); }             // REQUIRES: !done()
  int64_t offset() const { return position_ - map_.begin(unit()); }  // in the unit
  bool done() const { return position_ == map_.end() && !whole_; }

 private:
  absl::StatusOr<Verdict> AskAgain(int64_t position, int& attempts);

  const PushStreamMap map_;
  const Options options_;
  int64_t position_ = 0;
  bool whole_ = false;  // OnUnit comes next
  bool going_back_ = false;
  Bytes dropped_ = 0;                           // bytes, while the sender goes back
  int chunk_attempts_ = 0, unit_attempts_ = 0;  // failed ones, for the next chunk and its unit
};

}  // namespace lime
