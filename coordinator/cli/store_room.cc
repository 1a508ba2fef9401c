#include "coordinator/cli/store_room.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/cluster_plan.h"
#include "coordinator/cli/cluster_push.h"
#include "coordinator/rpc/store_client.h"
#include "daemon/inspect/inspect.h"

namespace lime::cli {
namespace {

// What one device would be sent, and what its disk has.
struct StoreRoom {
  std::string device;
  Bytes held = 0, missing = 0, free = 0;
};

// A head that is the embedding takes nothing beside it.
Bytes BytesOf(const ModelSpec& spec, BlockId id, const std::vector<BlockId>& beside) {
  const BlockSpec& block = spec.block(id);
  const bool shared = spec.config.tie_embeddings && id.kind == BlockKind::kHead &&
                      std::ranges::any_of(beside, [](BlockId other) { return other.kind == BlockKind::kEmbedding; });
  Bytes bytes = block.bytes;
  for (const TensorSpec& tensor : block.tensors) bytes -= shared && tensor.role == TensorRole::kOutput ? tensor.info.bytes : 0;
  return bytes;
}

std::vector<StoreRoom> RoomOf(const KnownCluster& cluster, const std::vector<PushedDevice>& wanted) {
  std::vector<StoreRoom> rooms;
  for (const PushedDevice& device : wanted) {
    const auto home = cluster.holdings.homes.find(device.at.name);
    if (home == cluster.holdings.homes.end() || cluster.holdings.keep.contains(device.at.name)) continue;
    const absl::StatusOr<StoreContent> content = StoreClient(device.at.name, device.at.address, cluster.client.keys).List();
    if (!content.ok()) continue;
    StoreRoom room = {.device = device.at.name, .free = content->free};
    for (const BlockId id : device.blocks) {
      const bool held = std::ranges::find(home->second, id) != home->second.end();
      (held ? room.held : room.missing) += BytesOf(cluster.weights.spec, id, device.blocks);
    }
    rooms.push_back(std::move(room));
  }
  return rooms;
}

std::vector<PushedDevice> AllBlocks(const KnownCluster& cluster) {
  std::vector<PushedDevice> wanted;
  for (const ClusterClient::Device& at : cluster.client.devices) {
    wanted.push_back({.at = at});
    for (const BlockSpec& block : cluster.weights.spec.blocks) wanted.back().blocks.push_back(block.id);
  }
  return wanted;
}

// No split of the model over these devices has room for it.
bool NoneFits(const KnownCluster& cluster, const std::vector<StoreRoom>& rooms) {
  Bytes room = 0;
  for (const StoreRoom& each : rooms) room += each.held + each.free;
  return rooms.size() == cluster.client.devices.size() && room < cluster.weights.spec.WeightBytes();
}

void Tell(const StoreRoom& room, const std::string& what, Grade lacking, std::vector<Checked>& rows) {
  const auto row =
      std::ranges::find_if(rows, [&](const Checked& each) { return each.of == room.device && each.finding.check == kStoreDiskCheck; });
  if (row == rows.end() || row->finding.grade == Grade::kFail || room.missing == 0) return;
  absl::StrAppend(&row->finding.what, "; ", what, " needs ", FormatBytes(room.missing), " more there");
  if (room.missing <= room.free) return;
  row->finding.grade = lacking;
  row->finding.remedy = "make room there (`lime store --remove MODEL` removes what is no longer used), or name a `store` on a larger disk";
}

}  // namespace

void CheckStoreRoom(ClusterSession::Options options, std::vector<Checked>& rows) {
  if (!CompletePush(options).ok()) return;
  const absl::StatusOr<KnownCluster> cluster = KnowCluster(options);
  if (!cluster.ok() || cluster->holdings.homes.empty()) return;
  const absl::StatusOr<HeldPlan> plan = PlanForCluster(options, *cluster, /*may_push=*/true);
  const std::vector<StoreRoom> rooms = RoomOf(*cluster, plan.ok() ? DevicesOfPlan(cluster->client, plan->plan) : AllBlocks(*cluster));
  const Grade lacking = plan.ok() || NoneFits(*cluster, rooms) ? Grade::kFail : Grade::kWarn;
  for (const StoreRoom& room : rooms) Tell(room, plan.ok() ? "its part of the model" : "the whole model", lacking, rows);
}

}  // namespace lime::cli
