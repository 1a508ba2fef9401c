// Sends a device the blocks that it lacks, over a connection of its own. Continues by itself after
// the connection breaks.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "daemon/logic/push_stream.h"
#include "daemon/stores/store_source.h"
#include "planner/base/status.h"
#include "proto/certificate.h"

namespace lime {

struct PushTarget {
  std::string name, address;
  std::vector<BlockId> blocks;  // that it should hold
  std::string start;            // how to start it, for errors (ProbeTarget)
};

// Progress of one device.
struct PushState {
  Bytes needed = 0;         // of all its blocks
  Bytes looked = 0;         // read back so far, to check stored bytes
  Bytes to_look = 0;        // to be read back
  Bytes missing = 0;        // at the first answer
  Bytes stored = 0;         // of the missing bytes
  Bytes sent = 0;           // repeated bytes included
  int64_t breaks = 0;       // of the connection
  double send_seconds = 0;  // from the first byte to the last acknowledgement

  friend bool operator==(const PushState&, const PushState&) = default;
};

struct PushOptions {
  ClusterKeys keys;
  bool check = true;  // the device reads back and checks what it has
  PushSender::Options stream;
  absl::Duration silence = absl::Seconds(60);  // a silent device counts as lost after this time
  // The wait for a lost device, or for one that is busy with another push.
  absl::Duration patience = absl::Seconds(30);
  std::function<void(const PushState&)> progress;  // on any thread, one call at a time
  const std::atomic<bool>* cancelled = nullptr;
  // For tests: changes data after its checksum is made.
  std::function<void(PushSender::Chunk, std::string& data)> spoil;
};

// Waits until the device holds the blocks. Unavailable if the device stays lost; a refusal has its
// own code.
absl::StatusOr<PushState> PushBlocks(const StoreSource& source, const PushTarget& target, const PushOptions& options);

}  // namespace lime
