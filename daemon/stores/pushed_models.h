// The models that were pushed to a device (pushed_store.h): their size on the disk, their last use,
// and their removal.
//
//   ROOT/1f3c0d5e7a9b2468/            a model; each push or load writes or touches its
//                                     lime_store.held
//   ROOT/.removed-1f3c0d5e7a9b2468/   a model whose removal was interrupted; the next removal or
//                                     start ends it
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
  std::string name;    // name that it was pushed under; empty: not known
  Bytes bytes = 0;     // space used on the disk
  int32_t held = 0;    // complete blocks
  int32_t blocks = 0;  // of the model; 0: its push was interrupted before its first block
  absl::Time used;     // time of the last use
};

// Sorted by digest. Empty if `root` does not exist.
absl::StatusOr<std::vector<PushedModel>> ListPushed(const std::string& root);

// Removes a model and returns the bytes that are free again. The model disappears in one step (a
// rename), so an interrupted removal leaves no partial model. NotFound if it is not there;
// FailedPrecondition while it is being pushed.
absl::StatusOr<Bytes> RemovePushed(const std::string& root, uint64_t model);

// Ends removals that were interrupted. Best effort.
void EndRemovals(const std::string& root);

// Records that the model in `dir` is used now. Does nothing if `dir` is no pushed model, or cannot
// be written.
void NotePushedUse(const std::string& dir);

struct DiskRoom {
  Bytes free = 0;   // bytes that this process may still write
  Bytes total = 0;  // of the file system
};
// The disk of `folder`, or of its nearest parent that exists.
absl::StatusOr<DiskRoom> DiskRoomOf(const std::string& folder);

}  // namespace lime
