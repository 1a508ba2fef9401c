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
constexpr int64_t kMostLives = int64_t{1} << 60;
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

namespace {

void ToProto(const std::vector<KvLent>& lent, google::protobuf::RepeatedPtrField<v1::KvLent>& message) {
  for (const KvLent& each : lent) {
    v1::KvLent& into = *message.Add();
    into.set_sequence(each.sequence);
    into.set_pieces(each.pieces);
    into.set_life(each.life);
  }
}

absl::StatusOr<std::vector<KvLent>> LentFromProto(const google::protobuf::RepeatedPtrField<v1::KvLent>& message) {
  LIME_RETURN_IF_ERROR(Within("lent", message.size(), 0, kMaxWireSequences));
  std::vector<KvLent> lent;
  std::set<int32_t> sequences;
  for (const v1::KvLent& each : message) {
    LIME_RETURN_IF_ERROR(Within("sequence", each.sequence(), 0, kMaxWireSequences - 1));
    LIME_RETURN_IF_ERROR(Within("pieces", each.pieces(), 1, kMaxWirePosition / kKvPiece));
    LIME_RETURN_IF_ERROR(Within("life", each.life(), 0, kMostLives));
    if (!sequences.insert(each.sequence()).second) return Wrong("slot ", each.sequence(), " is named twice among what is lent");
    lent.push_back({.sequence = each.sequence(), .pieces = each.pieces(), .life = each.life()});
  }
  return lent;
}

absl::StatusOr<KvHolder> HolderFromProto(const v1::KvHolder& message, int64_t num_layers) {
  LIME_RETURN_IF_ERROR(Printable("name", message.name(), kMostName));
  LIME_RETURN_IF_ERROR(Printable("address", message.address(), kMaxWireAddress));
  KvHolder holder{.name = message.name(), .address = message.address(), .layers = {}, .hosts = message.hosts(), .lent = {}};
  LIME_ASSIGN_OR_RETURN(holder.layers, LayersFromProto(message.layers(), num_layers));
  LIME_ASSIGN_OR_RETURN(holder.lent, LentFromProto(message.lent()));
  return holder;
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
  for (const KvHolder& holder : take.holders) {
    v1::KvHolder& into = *message.add_holders();
    into.set_name(holder.name);
    into.set_address(holder.address);
    into.mutable_layers()->Add(holder.layers.begin(), holder.layers.end());
    into.set_hosts(holder.hosts);
    ToProto(holder.lent, *into.mutable_lent());
  }
  for (const KvGiven& given : take.given) {
    v1::KvGiven& into = *message.add_given();
    into.set_layer(given.layer);
    into.set_hosts(given.hosts);
    into.set_readers(static_cast<int32_t>(given.readers));
  }
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
    LIME_ASSIGN_OR_RETURN(KvHolder each, HolderFromProto(holder, num_layers));
    take.holders.push_back(std::move(each));
  }
  LIME_RETURN_IF_ERROR(Within("given", message.given_size(), 0, 2 * num_layers));
  for (const v1::KvGiven& given : message.given()) {
    LIME_RETURN_IF_ERROR(Within("layer", given.layer(), 0, num_layers - 1));
    LIME_RETURN_IF_ERROR(Within("readers", given.readers(), 1, 2));  // an owner and its host
    take.given.push_back({.layer = given.layer(), .hosts = given.hosts(), .readers = given.readers()});
  }
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
  ToProto(unloaded.lent, *message.mutable_lent());
}

absl::StatusOr<UnloadedPlan> FromProto(const v1::UnloadReply& message) {
  LIME_RETURN_IF_ERROR(Within("hashes", message.hashes_size(), 0, kMaxWireSequences));
  UnloadedPlan unloaded{.left = message.left()};
  for (const v1::SequenceHash& hash : message.hashes()) {
    LIME_RETURN_IF_ERROR(Within("sequence", hash.sequence(), 0, kMaxWireSequences - 1));
    LIME_RETURN_IF_ERROR(Within("state", std::ssize(hash.state()), 1, kMostHashState));
    unloaded.hashes.emplace_back(hash.sequence(), hash.state());
  }
  LIME_ASSIGN_OR_RETURN(unloaded.lent, LentFromProto(message.lent()));
  return unloaded;
}

void ToProto(const KvReadCall& call, v1::KvRequest& message) {
  message.set_epoch(call.epoch);
  message.set_layer(call.layer);
  for (const KvExtent& extent : call.extents) {
    v1::KvExtent& into = *message.add_extents();
    into.set_sequence(extent.sequence);
    into.set_first(extent.first);
    into.set_end(extent.end);
    into.set_life(extent.life);
  }
  message.set_hosts(call.hosts);
  message.set_numerics_id(call.numerics_id);
  message.set_page_bytes(call.page_bytes);
}

absl::StatusOr<KvReadCall> FromProto(const v1::KvRequest& message) {
  LIME_RETURN_IF_ERROR(Within("layer", message.layer(), 0, kMostLayers - 1));
  LIME_RETURN_IF_ERROR(Within("extents", message.extents_size(), 0, kMaxWireSequences));
  LIME_RETURN_IF_ERROR(Printable("numerics_id", message.numerics_id(), kMostName));
  LIME_RETURN_IF_ERROR(Within("page_bytes", message.page_bytes(), 1, kMostPagesBytes));
  KvReadCall call{.epoch = message.epoch(),
                  .layer = message.layer(),
                  .hosts = message.hosts(),
                  .extents = {},
                  .numerics_id = message.numerics_id(),
                  .page_bytes = message.page_bytes()};
  for (const v1::KvExtent& extent : message.extents()) {
    LIME_RETURN_IF_ERROR(Within("sequence", extent.sequence(), 0, kMaxWireSequences - 1));
    LIME_RETURN_IF_ERROR(Within("first", extent.first(), 0, kMaxWirePosition));
    LIME_RETURN_IF_ERROR(Within("end", extent.end(), extent.first() + 1, kMaxWirePosition));
    LIME_RETURN_IF_ERROR(Within("life", extent.life(), 0, kMostLives));
    call.extents.push_back({.sequence = extent.sequence(), .first = extent.first(), .end = extent.end(), .life = extent.life()});
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
