#include "proto/kv_convert.h"

#include <xxhash.h>

#include <algorithm>
#include <set>

#include "planner/plan/limits.h"
#include "proto/convert.h"
#include "proto/fields.h"

namespace lime {
namespace {

using fields::Printable;
using fields::Within;
using fields::Wrong;

constexpr int32_t kMostLayers = 100'000;
constexpr size_t kMostName = 512;
constexpr int64_t kMostDevices = 1024;
constexpr int64_t kMostPagesBytes = int64_t{64} << 20;  // a page of the widest model

int64_t NumLayers(const Plan& plan) {
  int64_t layers = 0;
  for (const PlanPart& part : plan.parts) layers = std::max<int64_t>(layers, part.block.layer + 1);
  return layers;
}

absl::StatusOr<std::vector<int32_t>> LayersFromProto(const google::protobuf::RepeatedField<int32_t>& message, int64_t num_layers) {
  LIME_RETURN_IF_ERROR(Within("layers", message.size(), 0, num_layers));
  std::vector<int32_t> layers;
  for (const int32_t layer : message) {
    LIME_RETURN_IF_ERROR(Within("layers", layer, layers.empty() ? 0 : layers.back() + 1, num_layers - 1));
    layers.push_back(layer);
  }
  return layers;
}

}  // namespace

void ToProto(const KvTake& take, v1::KvTake& message) {
  message.set_epoch(take.epoch);
  for (const KvSequence& sequence : take.sequences) {
    v1::KvSequence& into = *message.add_sequences();
    into.set_from(sequence.from);
    into.set_to(sequence.to);
    into.set_positions(sequence.positions);
  }
  for (const KvTake::Holder& holder : take.holders) {
    v1::KvHolder& into = *message.add_holders();
    into.set_name(holder.name);
    into.set_address(holder.address);
    into.mutable_layers()->Add(holder.layers.begin(), holder.layers.end());
  }
  message.mutable_given()->Add(take.given.begin(), take.given.end());
}

absl::StatusOr<KvTake> KvTakeFromProto(const v1::KvTake& message, const Plan& plan) {
  LIME_RETURN_IF_ERROR(Within("epoch", message.epoch(), 0, plan.epoch - 1));
  LIME_RETURN_IF_ERROR(Within("sequences", message.sequences_size(), 1, plan.sequences));
  LIME_RETURN_IF_ERROR(Within("holders", message.holders_size(), 0, kMostDevices));
  KvTake take{.epoch = message.epoch()};
  std::set<int32_t> from, to;
  for (const v1::KvSequence& sequence : message.sequences()) {
    LIME_RETURN_IF_ERROR(Within("from", sequence.from(), 0, kMaxWireSequences - 1));
    LIME_RETURN_IF_ERROR(Within("to", sequence.to(), 0, plan.sequences - 1));
    LIME_RETURN_IF_ERROR(Within("positions", sequence.positions(), 1, plan.context));
    if (!from.insert(sequence.from()).second || !to.insert(sequence.to()).second)
      return Wrong("slot ", sequence.from(), " goes on as ", sequence.to(), ", and one of them is named twice");
    take.sequences.push_back({sequence.from(), sequence.to(), sequence.positions()});
  }
  const int64_t num_layers = NumLayers(plan);
  for (const v1::KvHolder& holder : message.holders()) {
    LIME_RETURN_IF_ERROR(Printable("name", holder.name(), kMostName));
    LIME_RETURN_IF_ERROR(Printable("address", holder.address(), kMaxWireAddress));
    LIME_ASSIGN_OR_RETURN(std::vector<int32_t> layers, LayersFromProto(holder.layers(), num_layers));
    take.holders.push_back({.name = holder.name(), .address = holder.address(), .layers = std::move(layers)});
  }
  LIME_ASSIGN_OR_RETURN(take.given, LayersFromProto(message.given(), num_layers));
  return take;
}

void ToProto(const UnloadCall& call, v1::UnloadRequest& message) {
  message.set_epoch(call.epoch);
  message.set_leave_kv(call.leave_kv);
}

absl::StatusOr<UnloadCall> FromProto(const v1::UnloadRequest& message) {
  return UnloadCall{.epoch = message.epoch(), .leave_kv = message.leave_kv()};
}

void ToProto(const UnloadedPlan& unloaded, v1::UnloadReply& message) {
  message.set_left(unloaded.left);
  for (const auto& [sequence, state] : unloaded.hashes) {
    v1::SequenceHash& into = *message.add_hashes();
    into.set_sequence(sequence);
    into.set_state(state);
  }
}

absl::StatusOr<UnloadedPlan> FromProto(const v1::UnloadReply& message) {
  LIME_RETURN_IF_ERROR(Within("hashes", message.hashes_size(), 0, kMaxWireSequences));
  UnloadedPlan unloaded{.left = message.left()};
  for (const v1::SequenceHash& hash : message.hashes()) {
    LIME_RETURN_IF_ERROR(Within("sequence", hash.sequence(), 0, kMaxWireSequences - 1));
    LIME_RETURN_IF_ERROR(Within("state", std::ssize(hash.state()), 1, kMostHashState));
    unloaded.hashes.emplace_back(hash.sequence(), hash.state());
  }
  return unloaded;
}

void ToProto(const KvReadCall& call, v1::KvRequest& message) {
  message.set_epoch(call.epoch);
  message.set_layer(call.layer);
  for (const auto& [sequence, positions] : call.sequences) {
    v1::KvExtent& into = *message.add_sequences();
    into.set_sequence(sequence);
    into.set_positions(positions);
  }
  message.set_numerics_id(call.numerics_id);
  message.set_page_bytes(call.page_bytes);
}

absl::StatusOr<KvReadCall> FromProto(const v1::KvRequest& message) {
  LIME_RETURN_IF_ERROR(Within("layer", message.layer(), 0, kMostLayers - 1));
  LIME_RETURN_IF_ERROR(Within("sequences", message.sequences_size(), 1, kMaxWireSequences));
  LIME_RETURN_IF_ERROR(Printable("numerics_id", message.numerics_id(), kMostName));
  LIME_RETURN_IF_ERROR(Within("page_bytes", message.page_bytes(), 1, kMostPagesBytes));
  KvReadCall call{
      .epoch = message.epoch(), .layer = message.layer(), .numerics_id = message.numerics_id(), .page_bytes = message.page_bytes()};
  for (const v1::KvExtent& sequence : message.sequences()) {
    LIME_RETURN_IF_ERROR(Within("sequence", sequence.sequence(), 0, kMaxWireSequences - 1));
    LIME_RETURN_IF_ERROR(Within("positions", sequence.positions(), 1, kMaxWirePosition));
    call.sequences.emplace_back(sequence.sequence(), sequence.positions());
  }
  return call;
}

bool KvPagesRead::intact() const {
  return XXH3_64bits(data.data(), data.size()) == xxh3;
}

void ToProto(KvPagesRead pages, v1::KvPages& message) {
  message.set_sequence(pages.sequence);
  message.set_first(pages.first);
  message.set_data(std::move(pages.data));
  message.set_xxh3(pages.xxh3);
}

absl::StatusOr<KvPagesRead> FromProto(v1::KvPages& message) {
  LIME_RETURN_IF_ERROR(Within("sequence", message.sequence(), 0, kMaxWireSequences - 1));
  LIME_RETURN_IF_ERROR(Within("first", message.first(), 0, kMaxWirePosition));
  LIME_RETURN_IF_ERROR(Within("data", std::ssize(message.data()), 1, kMostPagesBytes));
  KvPagesRead pages{
      .sequence = message.sequence(), .first = message.first(), .data = std::move(*message.mutable_data()), .xxh3 = message.xxh3()};
  if (!pages.intact()) return absl::DataLossError("KV arrived otherwise than it was sent");
  return pages;
}

}  // namespace lime
