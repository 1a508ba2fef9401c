// How fast tokens come: the mean time of a token of one request, and the tokens per second of all.
// Pure: time is an argument.
//
// Threads: any. OnToken allocates nothing.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace lime {

class TokenMeter {
 public:
  static constexpr int kSeconds = 8;  // that count

  // A token of a request. `since_last`: since the token before of the same request; nullopt: the
  // first one.
  void OnToken(absl::Time now, std::optional<absl::Duration> since_last);

  // Of the last kSeconds.
  double TokensPerSecond(absl::Time now) const;
  // Of the last kSeconds in which tokens came; nullopt: none has come yet.
  std::optional<double> MsPerToken() const;

 private:
  struct Second {
    int64_t second = -1;  // since 1970
    int64_t tokens = 0;
    int64_t gaps = 0;
    double gaps_ms = 0;
  };
  mutable absl::Mutex mutex_;
  std::array<Second, kSeconds> seconds_ ABSL_GUARDED_BY(mutex_);  // by second modulo kSeconds
};

}  // namespace lime
