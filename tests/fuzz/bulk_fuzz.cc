// Whatever is said of weights: no message may do harm, what is accepted returns through the wire as
// it is, and what a device then does with a chunk keeps its bounds.

#include <cstdint>
#include <string>

#include "daemon/formats/held_blocks.h"
#include "daemon/logic/push_stream.h"
#include "lime/v1/bulk.pb.h"
#include "planner/base/check.h"
#include "proto/convert/bulk_convert.h"

namespace {

void ConvertRequest(const std::string& bytes) {
  lime::v1::PushRequest message;
  if (!message.ParseFromString(bytes)) return;
  const auto what = lime::FromProto(message);
  if (!what.ok()) return;
  lime::v1::PushRequest again;
  std::visit([&](const auto& kind) { lime::ToProto(kind, again); }, *what);
  const auto returned = lime::FromProto(again);
  LIME_CHECK(returned.ok() && *returned == *what) << "what was accepted returns otherwise";
}

void ConvertEvent(const std::string& bytes) {
  lime::v1::PushEvent message;
  if (!message.ParseFromString(bytes)) return;
  const auto what = lime::FromProto(message);
  if (!what.ok()) return;
  lime::v1::PushEvent again;
  lime::ToProto(*what, again);
  LIME_CHECK(*lime::FromProto(again) == *what) << "what was accepted returns otherwise";
}

template <typename Message>
void ConvertPlain(const std::string& bytes) {
  Message message;
  if (!message.ParseFromString(bytes)) return;
  const auto what = lime::FromProto(message);
  if (!what.ok()) return;
  Message again;
  lime::ToProto(*what, again);
  LIME_CHECK(*lime::FromProto(again) == *what) << "what was accepted returns otherwise";
}

// Chunks of any position and length.
void Receive(const std::string& bytes) {
  const std::vector<lime::Bytes> units = {30, 1, 200};
  lime::PushReceiver receiver(units, {});
  for (size_t i = 0; i + 3 <= bytes.size() && !receiver.done(); i += 3) {
    const auto position = static_cast<int8_t>(bytes[i]) < 0 ? receiver.position() : static_cast<int64_t>(bytes[i]);
    auto verdict = receiver.OnChunk(position, static_cast<int8_t>(bytes[i + 1]), bytes[i + 2] % 2 == 0);
    if (!verdict.ok()) return;
    if (*verdict == lime::PushReceiver::Verdict::kWriteEnd) verdict = receiver.OnUnit(bytes[i + 2] % 4 != 2);
    LIME_CHECK(receiver.position() >= 0 && receiver.position() <= 231) << receiver.position();
    if (!verdict.ok()) return;
  }
}

// The record of a store whose model has two layers.
void ParseHeld(const std::string& bytes) {
  lime::StoreManifest manifest{.layers = 2, .files = {{.name = "a.safetensors"}}};
  manifest.files[0].blocks = {{.id = {lime::BlockKind::kAttention, 0}}, {.id = {lime::BlockKind::kMlp, 1}}};
  const auto held = lime::ParseHeldBlocks(bytes, "record", manifest);
  if (!held.ok()) return;
  LIME_CHECK(*lime::ParseHeldBlocks(lime::HeldBlocksText(*held), "record", manifest) == *held);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 7) {
    case 0:
      ConvertRequest(bytes);
      break;
    case 1:
      ConvertEvent(bytes);
      break;
    case 2:
      ParseHeld(bytes);
      break;
    case 3:
      Receive(bytes);
      break;
    case 4:
      ConvertPlain<lime::v1::HoldingsRequest>(bytes);
      break;
    case 5:
      ConvertPlain<lime::v1::HoldingsReply>(bytes);
      break;
    default:
      ConvertPlain<lime::v1::ListStoreReply>(bytes);
  }
  return 0;
}
