// A question that a device answers before anybody has shown keys: what it speaks, and what its clock says.
//
// Keys are refused where two clocks are apart, or two releases do not understand each other, and neither side learns why from TLS. So limed
// answers datagrams on the port (UDP) of the same number as the one that it listens on. The answer is never longer than the question, holds
// nothing that is secret, and is not authenticated: it serves for the words of a diagnosis, and nothing is decided by it.
//
// Pure. 64 bytes each way, little endian:
//
//   question: "LIME ask" | nonce, 16 | zeros
//   answer:   "LIME say" | nonce, 16 | protocol, 4 | keys, 4 | clock, 8 | release, 24, ends with zeros
#pragma once

#include <array>
#include <cstdint>
#include <ctime>
#include <optional>
#include <span>
#include <string>

namespace lime {

inline constexpr size_t kHelloBytes = 64;
using HelloPacket = std::array<std::byte, kHelloBytes>;
using HelloNonce = std::array<std::byte, 16>;

struct Hello {
  uint32_t protocol = 0;
  bool keys = false;      // it asks for keys
  std::time_t clock = 0;  // seconds since 1970
  std::string release;    // at most 24 printable characters

  friend bool operator==(const Hello&, const Hello&) = default;
};

HelloPacket HelloQuestion(const HelloNonce& nonce);
// The answer to what came in; nothing where that is no question.
std::optional<HelloPacket> AnswerHello(std::span<const std::byte> question, const Hello& what);
// What an answer says; nothing where it is none, or one to another question.
std::optional<Hello> ReadHello(std::span<const std::byte> answer, const HelloNonce& nonce);

}  // namespace lime
