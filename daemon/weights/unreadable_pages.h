// Pages of mapped files that cannot be read when they are touched: the file was truncated by somebody, or its disk failed. The kernel tells
// by SIGBUS, also where the pages were once present: it takes those of a truncated file back, and those of others when memory is short.
#pragma once

#include <cstddef>

namespace lime {

// From now on such a page ends the process with one sentence on stderr that names the file, and exit code 1. Other bus errors, bugs, keep
// their meaning. For programs, called once by their main.
void ExitOnUnreadablePages();

// Says for as long as it lives which file a range of memory is a view of.
class MappedRange {
 public:
  // `path` outlives this object.
  MappedRange(const void* data, size_t bytes, const char* path);
  ~MappedRange();
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;

 private:
  int slot_ = -1;  // -1: more mappings than are remembered; their bus errors keep their meaning
};

}  // namespace lime
