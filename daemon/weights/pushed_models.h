// The models that were pushed to a device (pushed_store.h): what they take of the disk, when they were used last, and their removal.
//
//   ROOT/1f3c0d5e7a9b2468/            a model; its lime_store.held was written or touched when the model was pushed or loaded last
//   ROOT/.removed-1f3c0d5e7a9b2468/   one whose removal was interrupted: nobody reads it, and the next removal or start ends it
//
// Thread: any, one removal at a time; calls wait for the disk.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "planner/base/bytes.h"
#include "planner/base/status.h"

namespace lime {

struct PushedModel {
  uint64_t model = 0;  // its digest
  std::string dir;
  std::string name;    // that it was pushed as; empty: not known
  Bytes bytes = 0;     // of the disk
  int32_t held = 0;    // blocks that are whole
  int32_t blocks = 0;  // of the model; 0: its push was interrupted while it began
  absl::Time used;     // last
};

// By digest. A root that is not there holds nothing.
absl::StatusOr<std::vector<PushedModel>> ListPushed(const std::string& root);

// The bytes that are free again. From one moment to the next the model is not there any more, whatever interrupts its removal.
// NotFound where it is not there; FailedPrecondition while it is being pushed.
absl::StatusOr<Bytes> RemovePushed(const std::string& root, uint64_t model);

// Ends removals that were interrupted. Best effort.
void EndRemovals(const std::string& root);

// The model in `dir` is used now; nothing happens where `dir` is no pushed model, or may not be written.
void NotePushedUse(const std::string& dir);

struct DiskRoom {
  Bytes free = 0;   // that this process may still write
  Bytes total = 0;  // of the file system
};
// Of the disk of a folder, or of the nearest above it that is there.
absl::StatusOr<DiskRoom> DiskRoomOf(const std::string& folder);

}  // namespace lime
