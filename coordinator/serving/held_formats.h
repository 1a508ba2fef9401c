// The formats of requests that have not ended. Equal ones are compiled and counted once.
//
// The device with the head keeps them compiled, in memory that was reserved before loading
// (json_schema::kMaxHeldFormats). So a request that would exceed it is refused here.
//
// Threads: any.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/json_schema/answer_format.h"
#include "planner/base/bytes.h"

namespace lime {

// Whether a request was refused because its format cannot be compiled.
bool IsWrongFormat(const absl::Status& status);
// Or because there is no memory for it until other requests have ended.
bool LacksFormatMemory(const absl::Status& status);

class HeldFormats {
 public:
  // Counts as long as it lives. Null: no format.
  using Hold = std::shared_ptr<const std::string>;

  // InvalidArgument for a format that cannot be compiled (IsWrongFormat); ResourceExhausted if there is no memory
  // for it until other requests have ended (LacksFormatMemory). REQUIRES: this object outlives the result
  absl::StatusOr<Hold> Add(const std::string& format, const json_schema::GrammarOptions& options);

 private:
  struct Entry {
    Bytes memory = 0;
    int holds = 0;
  };
  Hold Count(const std::string& format, Entry& entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Release(const std::string& format);

  absl::Mutex mutex_;
  std::map<std::string, Entry> formats_ ABSL_GUARDED_BY(mutex_);
  Bytes memory_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace lime
