#include "proto/convert/kv_convert.h"

#include <xxhash.h>

#include <algorithm>
#include <set>

#include "lime/v1/bulk.pb.h"
#include "lime/v1/control.pb.h"
#include "proto/convert/convert.h"
#include "proto/convert/message_fields.h"

namespace lime {
namespace {

using fields::Within;
using fields::Wrong;

constexpr int32_t kMostLayers = 100'000;
constexpr size_t kMostName = 512;
constexpr int64_t kMostDevices = 1024;
constexpr int64_t kMostLives = int64_t{1} << 60;
constexpr int64_t kMostPagesBytes = int64_t{64} << 20;  // a page of the widest model

// Each of a plan's layers has KV or states.
int64_t NumLayers(const Plan& plan) {
  int64_t layers = 0;
  for (const PlanPart& part : plan.parts) layers = std::max(layers, int64_t{part.block.layer} + 1);
  return layers;
}

void ListLent(MessageFields& f, std::vector<KvLent>& lent, google::protobuf::RepeatedPtrField<v1::KvLent>* parts) {
  f.EachBy("lent", lent, parts, 0, kMaxWireSequences, [&](KvLent& each, v1::KvLent& m) {
    f.Number(LIME_FIELD(m, sequence), each.sequence, 0, kMaxWireSequences - 1);
    f.Number(LIME_FIELD(m, pieces), each.pieces, 1, kMaxWirePosition / kKvPiece);
    f.Number(LIME_FIELD(m, life), each.life, 0, kMostLives);
  });
  std::set<int32_t> sequences;
  for (const KvLent& each : lent) {
    if (!sequences.insert(each.sequence).second) f.Check(Wrong("the list of lent KV names slot ", each.sequence, " twice"));
  }
}

}  // namespace

static void List(MessageFields& f, KvHolder& holder, v1::KvHolder& m, int64_t layers) {
  f.Text(LIME_FIELD(m, name), holder.name, kMostName);
  f.Text(LIME_FIELD(m, address), holder.address, kMaxWireAddress);
  f.Ascending("layers", holder.layers, m.mutable_layers(), layers);
  f.Any(LIME_FIELD(m, hosts), holder.hosts);
  ListLent(f, holder.lent, m.mutable_lent());
}

static void List(MessageFields& f, KvReaders& each, v1::KvReaders& m, int64_t layers) {
  f.Number(LIME_FIELD(m, layer), each.layer, 0, layers - 1);
  f.Any(LIME_FIELD(m, hosts), each.hosts);
  f.Number(LIME_FIELD(m, readers), each.readers, 1, 2);  // an owner and its host
}

static void ListStates(MessageFields& f, KvSequence& sequence, google::protobuf::RepeatedField<int64_t>* states) {
  if (!f.reads()) return states->Add(sequence.states.begin(), sequence.states.end());
  f.Check(Within("states", states->size(), 0, 1 + kMaxStateSnapshots));
  for (int i = 0; i < states->size() && f.status().ok(); ++i) {
    f.Check(Within("states", states->Get(i), 0, sequence.positions));
    sequence.states.push_back(states->Get(i));
  }
  // A sequence goes on with its states, or begins again with a snapshot.
  if (f.status().ok() && !sequence.states.empty() && sequence.states.front() != 0 && sequence.states.front() != sequence.positions)
    f.Check(Wrong("the states of slot ", sequence.from, " have ", sequence.states.front(), " positions, its KV ", sequence.positions));
}

static void List(MessageFields& f, KvSequence& sequence, v1::KvSequence& m, const Plan& plan) {
  f.Number(LIME_FIELD(m, from), sequence.from, 0, kMaxWireSequences - 1);
  f.Number(LIME_FIELD(m, to), sequence.to, 0, plan.sequences - 1);
  f.Number(LIME_FIELD(m, positions), sequence.positions, 1, plan.context);
  ListStates(f, sequence, m.mutable_states());
}

void List(MessageFields& f, KvTakeoverPlan& takeover, v1::KvTakeoverPlan& m, const Plan& plan) {
  const int64_t layers = NumLayers(plan);
  f.Number(LIME_FIELD(m, epoch), takeover.epoch, 0, plan.epoch - 1);
  f.Each("sequences", takeover.sequences, m.mutable_sequences(), 1, plan.sequences, plan);
  std::set<int32_t> from, to;
  for (const KvSequence& sequence : takeover.sequences) {
    if (!from.insert(sequence.from).second || !to.insert(sequence.to).second)
      f.Check(Wrong("slot ", sequence.from, " continues as slot ", sequence.to, ", but the list names one of them twice"));
  }
  f.Each("holders", takeover.holders, m.mutable_holders(), 0, kMostDevices, layers);
  f.Each("given", takeover.kv_readers, m.mutable_given(), 0, 2 * layers, layers);
}

static void List(MessageFields& f, UnloadCall& call, v1::UnloadRequest& m) {
  f.Any(LIME_FIELD(m, epoch), call.epoch);
  f.Any(LIME_FIELD(m, hand_over_kv), call.hand_over_kv);
  f.Any(LIME_FIELD(m, interrupted), call.interrupted);
}
LIME_CONVERT(UnloadCall, v1::UnloadRequest)

static void List(MessageFields& f, UnloadedPlan& unloaded, v1::UnloadReply& m) {
  f.Any(LIME_FIELD(m, handed_over), unloaded.handed_over);
  f.EachBy("hashes", unloaded.hashes, m.mutable_hashes(), 0, kMaxWireSequences, [&](auto& hash, v1::SequenceHash& each) {
    f.Number(LIME_FIELD(each, sequence), hash.first, 0, kMaxWireSequences - 1);
    f.Data(LIME_FIELD(each, state), hash.second, 1, kMostHashState);
  });
  ListLent(f, unloaded.lent, m.mutable_lent());
}
LIME_CONVERT(UnloadedPlan, v1::UnloadReply)

static void List(MessageFields& f, KvExtent& extent, v1::KvExtent& m) {
  f.Number(LIME_FIELD(m, sequence), extent.sequence, 0, kMaxWireSequences - 1);
  f.Number(LIME_FIELD(m, first), extent.first, 0, kMaxWirePosition);
  f.Number(LIME_FIELD(m, end), extent.end, extent.first + 1, kMaxWirePosition);
  f.Number(LIME_FIELD(m, life), extent.life, 0, kMostLives);
}

static void List(MessageFields& f, KvReadCall& call, v1::KvRequest& m) {
  f.Any(LIME_FIELD(m, epoch), call.epoch);
  f.Number(LIME_FIELD(m, layer), call.layer, 0, kMostLayers - 1);
  f.Each("extents", call.extents, m.mutable_extents(), 0, kMaxWireSequences);
  f.Any(LIME_FIELD(m, hosts), call.hosts);
  f.Text(LIME_FIELD(m, numerics_id), call.numerics_id, kMostName);
  f.Number(LIME_FIELD(m, page_bytes), call.page_bytes, 1, kMostPagesBytes);
}
LIME_CONVERT(KvReadCall, v1::KvRequest)

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
  if (!pages.intact()) return absl::DataLossError("KV was damaged on the way: its checksum differs");
  return pages;
}

}  // namespace lime
