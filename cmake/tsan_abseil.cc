// Tells ThreadSanitizer of Abseil's locks and of who shares a Status. Distributions build Abseil
// without it, so that everything under an absl::Mutex would look like a race. Every program of that
// build is linked with this (LimeTargets.cmake): the functions below stand before those of Abseil's
// shared library, for gRPC too, and call them.
//
// What Abseil says when it is built with ThreadSanitizer, said from outside: a wait gives the lock
// up and takes it again. Between the two halves of an annotation nothing is looked at, conditions
// included: another thread may evaluate them for the one that waits. Who awaits holds the lock as a
// writer; a reader who does is reported.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdlib>
#include <cstring>

#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

namespace {

// The function of the same name behind this program in the order of loading.
template <typename Function>
Function Behind(Function function) {
  void* address = nullptr;
  static_assert(sizeof(function) >= sizeof(address));
  std::memcpy(&address, &function, sizeof(address));  // of a member that is not virtual: its address, then an offset of 0
  Dl_info info;
  void* behind = dladdr(address, &info) != 0 && info.dli_sname != nullptr ? dlsym(RTLD_NEXT, info.dli_sname) : nullptr;
  if (behind == nullptr) std::abort();  // Abseil is not a shared library, or another
  std::memcpy(&function, &behind, sizeof(behind));
  return function;
}

constexpr unsigned kWriter = 0, kReader = __tsan_mutex_read_lock, kTry = __tsan_mutex_try_lock;

// Of a call into Abseil; what is called from there is a part of it, and its own business.
class Call {
 public:
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

 protected:
  explicit Call(absl::Mutex* mutex) : mutex_(depth++ == 0 ? mutex : nullptr) {}
  ~Call() { --depth; }

  absl::Mutex* const mutex_;

 private:
  static thread_local int depth;
};

thread_local int Call::depth = 0;

// With kTry it may fail to.
class Locking : Call {
 public:
  Locking(absl::Mutex* mutex, unsigned flags) : Call(mutex), flags_(flags) {
    if (mutex_ != nullptr) __tsan_mutex_pre_lock(mutex_, flags_);
  }
  ~Locking() {
    if (mutex_ != nullptr) __tsan_mutex_post_lock(mutex_, flags_ | (locked_ ? 0 : __tsan_mutex_try_lock_failed), 0);
  }
  bool SetLocked(bool locked) { return locked_ = locked; }

 private:
  const unsigned flags_;
  bool locked_ = true;
};

class Unlocking : Call {
 public:
  Unlocking(absl::Mutex* mutex, unsigned flags) : Call(mutex), flags_(flags) {
    if (mutex_ != nullptr) __tsan_mutex_pre_unlock(mutex_, flags_);
  }
  ~Unlocking() {
    if (mutex_ != nullptr) __tsan_mutex_post_unlock(mutex_, flags_);
  }

 private:
  const unsigned flags_;
};

// Gives `mutex` up and takes it again.
class Waiting : Call {
 public:
  explicit Waiting(absl::Mutex* mutex) : Call(mutex) {
    if (mutex_ == nullptr) return;
    __tsan_mutex_pre_unlock(mutex_, kWriter);
    __tsan_mutex_post_unlock(mutex_, kWriter);
    __tsan_mutex_pre_lock(mutex_, kWriter);
  }
  ~Waiting() {
    if (mutex_ != nullptr) __tsan_mutex_post_lock(mutex_, kWriter, 0);
  }
};

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

// Abseil's own does no more, unless the mutex had a debug log.
Mutex::~Mutex() {
  __tsan_mutex_destroy(this, __tsan_mutex_not_static);
  ForgetDeadlockInfo();
}

void Mutex::Lock() {
  static const auto lock = Behind(&Mutex::Lock);
  const Locking locking(this, kWriter);
  (this->*lock)();
}

void Mutex::Unlock() {
  static const auto unlock = Behind(&Mutex::Unlock);
  const Unlocking unlocking(this, kWriter);
  (this->*unlock)();
}

bool Mutex::TryLock() {
  static const auto try_lock = Behind(&Mutex::TryLock);
  Locking locking(this, kWriter | kTry);
  return locking.SetLocked((this->*try_lock)());
}

void Mutex::LockWhen(const Condition& condition) {
  static const auto lock = Behind(&Mutex::LockWhen);
  const Locking locking(this, kWriter);
  (this->*lock)(condition);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static const auto lock = Behind(&Mutex::LockWhenWithTimeout);
  const Locking locking(this, kWriter);
  return (this->*lock)(condition, timeout);
}

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto lock = Behind(&Mutex::LockWhenWithDeadline);
  const Locking locking(this, kWriter);
  return (this->*lock)(condition, deadline);
}

void Mutex::ReaderLock() {
  static const auto lock = Behind(&Mutex::ReaderLock);
  const Locking locking(this, kReader);
  (this->*lock)();
}

void Mutex::ReaderUnlock() {
  static const auto unlock = Behind(&Mutex::ReaderUnlock);
  const Unlocking unlocking(this, kReader);
  (this->*unlock)();
}

bool Mutex::ReaderTryLock() {
  static const auto try_lock = Behind(&Mutex::ReaderTryLock);
  Locking locking(this, kReader | kTry);
  return locking.SetLocked((this->*try_lock)());
}

void Mutex::ReaderLockWhen(const Condition& condition) {
  static const auto lock = Behind(&Mutex::ReaderLockWhen);
  const Locking locking(this, kReader);
  (this->*lock)(condition);
}

bool Mutex::ReaderLockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static const auto lock = Behind(&Mutex::ReaderLockWhenWithTimeout);
  const Locking locking(this, kReader);
  return (this->*lock)(condition, timeout);
}

bool Mutex::ReaderLockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto lock = Behind(&Mutex::ReaderLockWhenWithDeadline);
  const Locking locking(this, kReader);
  return (this->*lock)(condition, deadline);
}

void Mutex::Await(const Condition& condition) {
  static const auto await = Behind(&Mutex::Await);
  const Waiting waiting(this);
  (this->*await)(condition);
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto await = Behind(&Mutex::AwaitWithTimeout);
  const Waiting waiting(this);
  return (this->*await)(condition, timeout);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto await = Behind(&Mutex::AwaitWithDeadline);
  const Waiting waiting(this);
  return (this->*await)(condition, deadline);
}

void CondVar::Wait(Mutex* mutex) {
  static const auto wait = Behind(&CondVar::Wait);
  const Waiting waiting(mutex);
  (this->*wait)(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto wait = Behind(&CondVar::WaitWithTimeout);
  const Waiting waiting(mutex);
  return (this->*wait)(mutex, timeout);
}

bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto wait = Behind(&CondVar::WaitWithDeadline);
  const Waiting waiting(mutex);
  return (this->*wait)(mutex, deadline);
}

// Whoever is the last to share a Status frees it after what the others did with it.
void Status::UnrefNonInlined(uintptr_t rep) {
  static const auto unref = Behind(&Status::UnrefNonInlined);
  void* const shared = RepToPointer(rep);
  __tsan_release(shared);
  __tsan_acquire(shared);
  unref(rep);
}

// A Notification that has come is seen without its mutex.
void Notification::Notify() {
  static const auto notify = Behind(&Notification::Notify);
  __tsan_release(this);
  (this->*notify)();
}

void Notification::WaitForNotification() const {
  static const auto wait = Behind(&Notification::WaitForNotification);
  (this->*wait)();
  __tsan_acquire(const_cast<Notification*>(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto wait = Behind(&Notification::WaitForNotificationWithTimeout);
  const bool notified = (this->*wait)(timeout);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  static const auto wait = Behind(&Notification::WaitForNotificationWithDeadline);
  const bool notified = (this->*wait)(deadline);
  if (notified) __tsan_acquire(const_cast<Notification*>(this));
  return notified;
}

ABSL_NAMESPACE_END
}  // namespace absl
