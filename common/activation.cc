#include "common/activation.h"

#include "absl/strings/str_cat.h"
#include "common/little_endian.h"
#include "planner/plan/instance/instance.h"

namespace lime {
namespace {

constexpr uint32_t kMagic = 0x454d494c;  // "LIME"
constexpr uint32_t kVersion = 2;
constexpr uint32_t kProbe = 0x65626f72;  // "robe", in place of the payload's kind
constexpr uint32_t kKv = 0x7661766b;     // "kvav", in place of the payload's kind
constexpr size_t kTokenBytes = 12;
constexpr int64_t kMostArrivalUs = int64_t{1} << 55;

bool IsProbe(int64_t payload_bytes) {
  const int64_t bytes = payload_bytes + static_cast<int64_t>(kActivationHeaderBytes);
  return bytes == kProbeBytes || bytes == kLargeProbeBytes;
}

}  // namespace

std::array<std::byte, kActivationHeaderBytes> Encode(const ActivationHeader& header) {
  std::array<std::byte, kActivationHeaderBytes> bytes = {};
  const uint32_t payload = header.probe ? kProbe : header.hosting ? kKv : static_cast<uint32_t>(header.payload);
  PutAll(bytes.data(), kMagic, kVersion, header.epoch, header.step, header.stage, header.microbatch, payload, uint32_t{header.answered},
         header.bytes);
  return bytes;
}

absl::StatusOr<ActivationHeader> ParseActivationHeader(std::span<const std::byte> bytes) {
  if (bytes.size() < kActivationHeaderBytes)
    return Invalid("activation: the message has ", bytes.size(), " bytes, and a header needs ", kActivationHeaderBytes);
  uint32_t magic = 0, version = 0, payload = 0, answered = 0;
  ActivationHeader header;
  GetAll(bytes.data(), magic, version, header.epoch, header.step, header.stage, header.microbatch, payload, answered, header.bytes);
  if (magic != kMagic) return Invalid("activation: the message is not an activation, it begins with ", absl::Hex(magic));
  if (version != kVersion)
    return Invalid("activation: the message has version ", version, ", but this program uses version ", kVersion,
                   "; run the same release everywhere");
  header.probe = payload == kProbe;
  header.hosting = payload == kKv;
  const bool of_a_stage = !header.probe && !header.hosting;
  if ((payload > static_cast<uint32_t>(Payload::kHeadPartial) && of_a_stage) || answered > 1)
    return Invalid("activation: the header is invalid: payload kind ", payload, ", answered ", answered);
  header.answered = answered == 1;
  if (of_a_stage) header.payload = static_cast<Payload>(payload);
  if (header.epoch < 0 || header.step < 0 || header.stage < 0 || header.microbatch < 0)
    return Invalid("activation: the header has a negative number");
  if (header.stage >= kMaxPlanBlocks || header.microbatch >= kMaxMicrobatches) {
    return Invalid("activation: stage ", header.stage, " or micro-batch ", header.microbatch, " is larger than any plan allows");
  }
  if (header.bytes < 0 || header.bytes > kMaxActivationBytes)
    return Invalid("activation: the payload has ", header.bytes, " bytes, the limit is ", kMaxActivationBytes);
  if (header.probe && (header.step != 0 || header.stage != 0 || header.microbatch != 0 || !IsProbe(header.bytes)))
    return Invalid("activation: the probe has ", header.bytes, " bytes; a probe has ", kProbeBytes, " or ", kLargeProbeBytes,
                   " and belongs to no step");
  if (header.hosting && (header.step != 0 || header.stage != 0 || header.microbatch != 0))
    return Invalid("activation: the header names a step, but KV belongs to no step");
  return header;
}

std::vector<std::byte> Encode(std::span<const SampledToken> tokens, std::vector<std::byte> memory) {
  memory.resize(tokens.size() * kTokenBytes);
  std::byte* out = memory.data();
  for (const SampledToken& token : tokens) out = PutAll(out, token.sequence, token.position, token.token);
  return memory;
}

absl::StatusOr<std::vector<SampledToken>> ParseSampledTokens(std::span<const std::byte> bytes, size_t most,
                                                             std::vector<SampledToken> memory) {
  if (bytes.size() % kTokenBytes != 0) return Invalid("activation: ", bytes.size(), " bytes are not a whole number of sampled tokens");
  if (bytes.size() / kTokenBytes > most)
    return Invalid("activation: the message has ", bytes.size() / kTokenBytes, " sampled tokens, the limit is ", most);
  memory.resize(bytes.size() / kTokenBytes);
  const std::byte* in = bytes.data();
  for (SampledToken& token : memory) {
    in = GetAll(in, token.sequence, token.position, token.token);
    if (token.sequence < 0 || token.position < 0 || token.token < 0) return Invalid("activation: a sampled token has a negative number");
  }
  return memory;
}

std::vector<std::byte> EncodeArrivals(std::span<const int64_t> arrivals_us) {
  std::vector<std::byte> bytes(arrivals_us.size() * kArrivalBytes);
  std::byte* out = bytes.data();
  for (const int64_t arrived_us : arrivals_us) out = Put(arrived_us, out);
  return bytes;
}

absl::StatusOr<std::vector<int64_t>> ParseArrivals(std::span<const std::byte> bytes) {
  const size_t count = bytes.size() / kArrivalBytes;
  if (bytes.size() % kArrivalBytes != 0 || count == 0 || count > kMostArrivals)
    return Invalid("activation: ", bytes.size(), " bytes are not a list of arrival times; the list has at most ", kMostArrivals);
  std::vector<int64_t> arrivals_us(count);
  const std::byte* in = bytes.data();
  for (int64_t& arrived_us : arrivals_us) {
    in = Get(in, arrived_us);
    if (arrived_us < 0 || arrived_us > kMostArrivalUs) return Invalid("activation: ", arrived_us, " is not a valid time");
  }
  return arrivals_us;
}

}  // namespace lime
