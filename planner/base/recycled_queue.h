// A short queue whose elements keep their memory after Pop. Once it has reached its largest size,
// Push and Pop allocate nothing, and assigning to an element may reuse its memory. The last element
// popped is the next one used.
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
  // Element `i` from the front.  REQUIRES: i < size()
  T& operator[](size_t i) { return *places_[i]; }
  const T& operator[](size_t i) const { return *places_[i]; }
  T& front() { return *places_.front(); }
  const T& front() const { return *places_.front(); }

  // Adds an element with its previous content.
  T& Push() {
    if (size_ == places_.size()) places_.push_back(std::make_unique<T>());
    return *places_[size_++];
  }
  // Allocates `places` elements in advance, each made by `make`.  REQUIRES: empty()
  template <typename Make>
  void Reserve(size_t places, const Make& make) {
    while (size_ < places) make(Push());
    clear();
  }
  // Undoes the last Push.
  void Unpush() { --size_; }
  // Removes the first element. It stays unchanged until the next Push.  REQUIRES: !empty()
  T& Pop() {
    std::rotate(places_.begin(), places_.begin() + 1, places_.begin() + static_cast<std::ptrdiff_t>(size_));
    return *places_[--size_];
  }
  // Removes all elements.
  void clear() { size_ = 0; }

 private:
  std::vector<std::unique_ptr<T>> places_;
  size_t size_ = 0;
};

}  // namespace lime
