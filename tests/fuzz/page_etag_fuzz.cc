// A hostile If-None-Match: nobody gets a 304 without the tag, and who has it gets one.
#include <cstdlib>
#include <string>

#include "coordinator/page/page_files.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const lime::PageFile& file = lime::PageFiles()[0];
  const std::string input(reinterpret_cast<const char*>(data), size);
  const bool may = input.find('*') != std::string::npos || input.find(file.etag) != std::string::npos;
  if (lime::IsUnchanged(file, input) && !may) std::abort();
  if (!lime::IsUnchanged(file, input + "," + std::string(file.etag))) std::abort();
  if (lime::FindPageFile(input) != nullptr && lime::FindPageFile(input)->path != input) std::abort();
  return 0;
}
