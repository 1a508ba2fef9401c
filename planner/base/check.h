// LIME_CHECK checks an invariant that only a bug can break. It prints the condition, the numbers
// and the place, then aborts.
//
//   LIME_CHECK_LE(used_bytes_, budget_bytes_) << "slot accounting, device " << id_;
//
// Errors that a file, a peer, a user or a full memory can cause are an absl::Status instead.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>

namespace lime::internal {

// Collects the message of a failed check. Its destructor ends the process.
class CheckFailure {
 public:
  CheckFailure(const char* file, int line, const char* condition) {
    stream_ << file << ":" << line << ": check failed: " << condition << " ";
  }
  [[noreturn]] ~CheckFailure() {
    std::fprintf(stderr, "%s\n", stream_.str().c_str());
    std::abort();
  }
  std::ostream& stream() { return stream_; }

 private:
  std::ostringstream stream_;
};

}  // namespace lime::internal

#define LIME_CHECK(condition) \
  if (condition) [[likely]] { \
  } else /* NOLINT */         \
    ::lime::internal::CheckFailure(__FILE__, __LINE__, #condition).stream()

#define LIME_CHECK_OP(a, op, b) \
  if ((a)op(b)) [[likely]] {    \
  } else /* NOLINT */           \
    ::lime::internal::CheckFailure(__FILE__, __LINE__, #a " " #op " " #b).stream() << "(" << (a) << " against " << (b) << ") "

#define LIME_CHECK_EQ(a, b) LIME_CHECK_OP(a, ==, b)
#define LIME_CHECK_LT(a, b) LIME_CHECK_OP(a, <, b)
#define LIME_CHECK_LE(a, b) LIME_CHECK_OP(a, <=, b)
#define LIME_CHECK_GT(a, b) LIME_CHECK_OP(a, >, b)
#define LIME_CHECK_GE(a, b) LIME_CHECK_OP(a, >=, b)
