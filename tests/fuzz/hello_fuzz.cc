// Whatever comes on the port that answers before keys are shown, and whatever a device says first.

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

#include "planner/base/check.h"
#include "proto/diagnosis/diagnosis.h"
#include "proto/hello.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(data, size));
  if (const auto answer = lime::AnswerHello(bytes, {.protocol = 2, .clock = 1, .release = "0.1.0"})) {
    LIME_CHECK_LE(answer->size(), size) << "an answer is longer than its question";
  }
  lime::HelloNonce nonce = {};
  if (size >= 8 + nonce.size()) std::copy_n(bytes.begin() + 8, nonce.size(), nonce.begin());
  if (const auto hello = lime::ReadHello(bytes, nonce)) {
    LIME_CHECK_LE(hello->release.size(), lime::kHelloBytes);
  }
  const lime::ProbeTarget target{.name = "a", .address = "a:1"};
  const std::string said(reinterpret_cast<const char*>(data), size);
  const lime::Diagnosis diagnosis = lime::Diagnose(target, {.answer = lime::Probed::Answer::kOther, .said = said});
  for (const char c : diagnosis.what) {
    LIME_CHECK(static_cast<unsigned char>(c) >= 0x20) << "goes on a terminal";
  }
  return 0;
}
