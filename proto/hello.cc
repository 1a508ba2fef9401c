#include "proto/hello.h"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "common/little_endian.h"

namespace lime {
namespace {

constexpr std::string_view kAsk = "LIME ask", kSay = "LIME say";
constexpr size_t kNonceAt = 8, kProtocolAt = 24, kReleaseAt = 40, kMaxRelease = kHelloBytes - kReleaseAt - 1;

bool BeginsWith(std::span<const std::byte> packet, std::string_view words) {
  return packet.size() == kHelloBytes && std::memcmp(packet.data(), words.data(), words.size()) == 0;
}

HelloPacket Begin(std::string_view words, std::span<const std::byte> nonce) {
  HelloPacket packet = {};
  std::ranges::copy(std::as_bytes(std::span(words)), packet.begin());
  std::ranges::copy(nonce, packet.begin() + kNonceAt);
  return packet;
}

}  // namespace

HelloPacket HelloQuestion(const HelloNonce& nonce) {
  return Begin(kAsk, nonce);
}

std::optional<HelloPacket> AnswerHello(std::span<const std::byte> question, const Hello& what) {
  if (!BeginsWith(question, kAsk)) return std::nullopt;
  HelloPacket packet = Begin(kSay, question.subspan(kNonceAt, sizeof(HelloNonce)));
  std::byte* const at =
      PutAll(packet.data() + kProtocolAt, what.protocol, static_cast<uint32_t>(what.keys), static_cast<int64_t>(what.clock));
  std::ranges::copy(std::as_bytes(std::span(what.release)).first(std::min(what.release.size(), kMaxRelease)), at);
  return packet;
}

std::optional<Hello> ReadHello(std::span<const std::byte> answer, const HelloNonce& nonce) {
  if (!BeginsWith(answer, kSay) || !std::ranges::equal(answer.subspan(kNonceAt, nonce.size()), nonce)) return std::nullopt;
  Hello hello;
  uint32_t keys = 0;
  int64_t clock = 0;
  GetAll(answer.data() + kProtocolAt, hello.protocol, keys, clock);
  hello.keys = keys != 0;
  hello.clock = static_cast<std::time_t>(clock);
  for (const std::byte byte : answer.subspan(kReleaseAt, kMaxRelease)) {
    const char c = std::to_integer<char>(byte);
    if (c == 0) break;
    hello.release += c >= 0x20 && c < 0x7f ? c : '?';
  }
  return hello;
}

}  // namespace lime
