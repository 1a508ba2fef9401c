// The files of the page, as `lime serve` answers them: the bytes of this folder at build time.
//
// Thread: any; everything is constant.
#pragma once

#include <span>
#include <string_view>

namespace lime {

struct PageFile {
  std::string_view path;  // as in a request, such as "/lime.css"
  std::string_view content_type;
  std::string_view etag;  // strong, with its quotes; another after any change of the bytes
  std::string_view bytes;
};

struct PageHeader {
  std::string_view name;
  std::string_view value;
};

// All of them, in the order of their paths. The first is "/".
std::span<const PageFile> PageFiles();

// `path` without query. Nothing if it is no file of the page.
const PageFile* FindPageFile(std::string_view path);

// Sent with every file, besides its Content-Type and ETag. Also with a 304.
std::span<const PageHeader> PageHeaders();

// Whether a request with this If-None-Match already has the file: it is answered 304, without the
// bytes. Compares weakly (RFC 9110, 13.1.2), since something between may have made W/"..." of the
// tag. `if_none_match`: the values of all such headers, joined by commas; empty if there is none.
bool IsUnchanged(const PageFile& file, std::string_view if_none_match);

}  // namespace lime
