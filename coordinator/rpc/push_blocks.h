// Sends a device the blocks that it lacks, over a connection of their own; goes on by itself after a break.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/logic/push_stream.h"
#include "daemon/weights/store_source.h"
#include "planner/base/status.h"
#include "proto/certificate.h"

namespace lime {

struct PushTarget {
  std::string name, address;
  std::vector<BlockId> blocks;  // that it should hold
  std::string start;            // what to type where nobody listens (ProbeTarget)
};

// Of one device, so far.
struct PushState {
  Bytes needed = 0;         // of all its blocks
  Bytes looked = 0;         // read back by it
  Bytes to_look = 0;        // that it reads back
  Bytes missing = 0;        // when it was asked first
  Bytes stored = 0;         // of those
  Bytes sent = 0;           // with what was sent again
  int64_t breaks = 0;       // of the connection
  double send_seconds = 0;  // from the first byte to the last acknowledgement

  friend bool operator==(const PushState&, const PushState&) = default;
};

struct PushOptions {
  ClusterKeys keys;
  bool check = true;  // the device reads back what it has
  PushSender::Options stream;
  absl::Duration silence = absl::Seconds(60);      // a device that says nothing for so long is lost
  absl::Duration patience = absl::Seconds(30);     // with a device that is lost, or busy with another push
  std::function<void(const PushState&)> progress;  // on any thread, one at a time
  const std::atomic<bool>* cancelled = nullptr;
  std::function<void(PushSender::Chunk, std::string& data)> spoil;  // for tests: stands between checksum and wire
};

// Returns when the device holds the blocks. Unavailable where it is lost for good; what it refuses has its own code. Blocks.
absl::StatusOr<PushState> PushBlocks(const StoreSource& source, const PushTarget& target, const PushOptions& options);

}  // namespace lime
