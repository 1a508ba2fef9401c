#include "coordinator/page/page_files.h"

#include <algorithm>
#include <iterator>

namespace lime {
namespace {

#include "page_files.inc"

// The page takes scripts, styles and images from its own server and connects to nothing else.
// Without 'unsafe-inline', text that becomes part of the document by mistake stays text. no-cache:
// a browser asks again each time, and gets a 304.
constexpr PageHeader kHeaders[] = {
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cache-Control", "no-cache"},
};

constexpr bool IsBlank(char c) {
  return c == ' ' || c == '\t';
}

std::string_view Stripped(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  return text;
}

}  // namespace

std::span<const PageFile> PageFiles() {
  return kFiles;
}

const PageFile* FindPageFile(std::string_view path) {
  const auto found = std::find_if(std::begin(kFiles), std::end(kFiles), [path](const PageFile& file) { return file.path == path; });
  return found == std::end(kFiles) ? nullptr : found;
}

std::span<const PageHeader> PageHeaders() {
  return kHeaders;
}

bool IsUnchanged(const PageFile& file, std::string_view if_none_match) {
  if (Stripped(if_none_match) == "*") return true;
  // Our tags hold no comma, so a part of another server's tag never looks like one of ours.
  while (!if_none_match.empty()) {
    const size_t comma = std::min(if_none_match.find(','), if_none_match.size());
    std::string_view tag = Stripped(if_none_match.substr(0, comma));
    if (tag.substr(0, 2) == "W/") tag.remove_prefix(2);
    if (tag == file.etag) return true;
    if_none_match.remove_prefix(std::min(comma + 1, if_none_match.size()));
  }
  return false;
}

}  // namespace lime
