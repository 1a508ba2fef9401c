#include "coordinator/text/unicode/byte_level.h"

#include <array>
#include <cstdint>

#include "coordinator/text/unicode/utf8.h"

namespace lime {
namespace {

constexpr int kMaxCode = 0x143;  // the last character in use is U+0143

struct ByteMap {
  std::array<std::string, 256> to_char;
  std::array<int16_t, kMaxCode + 1> to_byte;  // -1: no byte
};

// A printable Latin-1 character stands for itself. The other 68 bytes are U+0100 and up, in order.
ByteMap MakeByteMap() {
  ByteMap map;
  map.to_byte.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const int code = printable ? byte : next++;
    AppendUtf8(code, map.to_char[byte]);
    map.to_byte[code] = static_cast<int16_t>(byte);
  }
  return map;
}

const ByteMap& Map() {
  static const ByteMap map = MakeByteMap();
  return map;
}

}  // namespace

std::string_view ByteLevelChar(unsigned char byte) {
  return Map().to_char[byte];
}

std::string ToByteLevel(std::string_view text) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  for (const char c : text) out.append(ByteLevelChar(static_cast<unsigned char>(c)));
  return out;
}

std::string FromByteLevel(std::string_view piece) {
  std::string out;
  for (std::string_view rest = piece; !rest.empty();) {
    const Utf8Char next = DecodeUtf8(rest);
    const int byte = next.ok && next.code <= kMaxCode ? Map().to_byte[next.code] : -1;
    if (byte < 0) return std::string(piece);
    out.push_back(static_cast<char>(byte));
    rest.remove_prefix(next.length);
  }
  return out;
}

}  // namespace lime
