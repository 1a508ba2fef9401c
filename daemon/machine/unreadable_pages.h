// Handles pages of mapped files that cannot be read: another program truncated the file, or its
// disk failed. The kernel sends SIGBUS when such a page is touched. That can happen to a page that
// was present before: the kernel drops pages of a truncated file, and other pages when memory is
// short.
#pragma once

#include <cstddef>

namespace lime {

// After this call such a page ends the process with exit code 1 and one sentence on stderr that
// names the file. Other bus errors (bugs) keep their usual effect. Called once by the main function
// of a program.
void ExitOnUnreadablePages();

// Registers a range of memory as a view of a file, as long as this object lives.
class MappedRange {
 public:
  // REQUIRES: `path` outlives this object.
  MappedRange(const void* data, size_t bytes, const char* path);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

 private:
  // -1: too many mappings to remember this one; its bus errors keep their usual effect.
  int entry_ = -1;
};

}  // namespace lime
