#include "daemon/rpc/activation_wire.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace lime {

grpc::ByteBuffer ToBuffer(ActivationMessage activation) {
  const auto header = Encode(activation.header);
  auto* const payload = new std::vector<std::byte>(std::move(activation.payload));
  const grpc::Slice slices[] = {
      grpc::Slice(header.data(), header.size()),
      grpc::Slice(
          payload->data(), payload->size(), [](void* owner) { delete static_cast<std::vector<std::byte>*>(owner); }, payload)};
  return grpc::ByteBuffer(slices, 2);
}

absl::StatusOr<ActivationMessage> FromBuffer(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (!buffer.Dump(&slices).ok()) return absl::InvalidArgumentError("activation: the message cannot be read");
  std::array<std::byte, kActivationHeaderBytes> head;
  size_t in_head = 0, total = 0;
  for (const grpc::Slice& slice : slices) {
    const size_t copied = std::min(slice.size(), head.size() - in_head);
    if (copied > 0) std::memcpy(head.data() + in_head, slice.begin(), copied);
    in_head += copied;
    total += slice.size();
  }
  ActivationMessage activation;
  LIME_ASSIGN_OR_RETURN(activation.header, ParseActivationHeader(std::span(head).first(in_head)));
  if (static_cast<uint64_t>(activation.header.bytes) != total - kActivationHeaderBytes) {
    return Invalid("activation: the header says ", activation.header.bytes, " bytes, but ", total - kActivationHeaderBytes, " follow it");
  }
  if (activation.header.probe) return activation;
  activation.payload.reserve(total - kActivationHeaderBytes);
  size_t skip = kActivationHeaderBytes;
  for (const grpc::Slice& slice : slices) {
    const size_t skipped = std::min(skip, slice.size());
    skip -= skipped;
    const auto* const bytes = reinterpret_cast<const std::byte*>(slice.begin());
    activation.payload.insert(activation.payload.end(), bytes + skipped, bytes + slice.size());
  }
  return activation;
}

grpc::ByteBuffer ProbeBuffer(int64_t epoch, Bytes bytes) {
  static constexpr std::array<std::byte, kLargeProbeBytes> kZeros = {};
  const auto payload = static_cast<size_t>(bytes) - kActivationHeaderBytes;
  const auto header = Encode(ActivationHeader{.epoch = epoch, .bytes = static_cast<int64_t>(payload), .probe = true, .answered = true});
  const grpc::Slice slices[] = {grpc::Slice(header.data(), header.size()), grpc::Slice(kZeros.data(), payload, grpc::Slice::STATIC_SLICE)};
  return grpc::ByteBuffer(slices, 2);
}

grpc::ByteBuffer ToBuffer(std::span<const int64_t> arrivals_us) {
  const std::vector<std::byte> bytes = EncodeArrivals(arrivals_us);
  const grpc::Slice slice(bytes.data(), bytes.size());
  return grpc::ByteBuffer(&slice, 1);
}

absl::StatusOr<std::vector<int64_t>> ArrivalsOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  if (buffer.Length() > kMostArrivals * kArrivalBytes || !buffer.Dump(&slices).ok())
    return absl::InvalidArgumentError("activation: the answer cannot be read");
  std::vector<std::byte> bytes;
  for (const grpc::Slice& slice : slices) {
    const auto* const begin = reinterpret_cast<const std::byte*>(slice.begin());
    bytes.insert(bytes.end(), begin, begin + slice.size());
  }
  return ParseArrivals(bytes);
}

}  // namespace lime
