// A question that a device answers before any keys are shown: its protocol and its clock.
//
// If clocks or releases differ, keys are refused, and TLS tells neither side the reason. Therefore
// limed also answers UDP datagrams on the number of its listening port. The answer is not longer
// than the question, has no secrets, and is not authenticated. It only improves a diagnosis; no
// decision depends on it.
//
// Pure. 64 bytes each way, little endian:
//
//   question: "LIME ask" | nonce, 16 | zeros
//   answer:   "LIME say" | nonce, 16 | protocol, 4 | keys, 4 | clock, 8 | release, 24, zero-padded
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
  bool keys = false;      // it requires keys
  std::time_t clock = 0;  // seconds since 1970
  std::string release;    // at most 24 printable characters

  friend bool operator==(const Hello&, const Hello&) = default;
};

HelloPacket HelloQuestion(const HelloNonce& nonce);
// The answer to received bytes; nullopt if they are not a question.
std::optional<HelloPacket> AnswerHello(std::span<const std::byte> question, const Hello& what);
// The content of an answer; nullopt if it is not one, or answers another question.
std::optional<Hello> ReadHello(std::span<const std::byte> answer, const HelloNonce& nonce);

}  // namespace lime
