// The vocabulary for masks that a coordinator has sent last. It stays between plans, so that it is
// sent once.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/json_schema/vocabulary.h"

namespace lime {

class VocabularyKeeper {
 public:
  // Null: it is not here. Then another one, which nobody needs any more, is dropped.
  json_schema::VocabularyPtr Find(uint64_t digest) {
    absl::MutexLock lock(&mutex_);
    if (digest != digest_) vocabulary_ = nullptr;
    return vocabulary_;
  }
  void Keep(uint64_t digest, json_schema::VocabularyPtr vocabulary) {
    absl::MutexLock lock(&mutex_);
    digest_ = digest;
    vocabulary_ = std::move(vocabulary);
  }

 private:
  absl::Mutex mutex_;
  uint64_t digest_ ABSL_GUARDED_BY(mutex_) = 0;
  json_schema::VocabularyPtr vocabulary_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lime
