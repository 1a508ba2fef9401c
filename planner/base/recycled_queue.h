// A short queue whose places keep the memory of what was in them: once it has been as long as it becomes, neither Push nor Pop allocates,
// and what is assigned to a place may reuse what that has. The place that has gone last is the next that is used.
#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

namespace lime {

template <typename T>
class RecycledQueue {
 public:
  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // Counted from the first.  REQUIRES: i < size()
  T& operator[](size_t i) { return *places_[i]; }
  const T& operator[](size_t i) const { return *places_[i]; }
  T& front() { return *places_.front(); }
  const T& front() const { return *places_.front(); }

  // A place behind the others, with what was there before.
  T& Push() {
    if (size_ == places_.size()) places_.push_back(std::make_unique<T>());
    return *places_[size_++];
  }
  // Makes `places` of them ahead, each as `make` says.  REQUIRES: empty()
  template <typename Make>
  void Reserve(size_t places, const Make& make) {
    while (size_ < places) make(Push());
    clear();
  }
  // Takes back the last Push.
  void Unpush() { --size_; }
  // Takes the first away: it stays as it is until the next Push.  REQUIRES: !empty()
  T& Pop() {
    std::rotate(places_.begin(), places_.begin() + 1, places_.begin() + static_cast<std::ptrdiff_t>(size_));
    return *places_[--size_];
  }
  // Takes all away.
  void clear() { size_ = 0; }

 private:
  std::vector<std::unique_ptr<T>> places_;
  size_t size_ = 0;
};

}  // namespace lime
