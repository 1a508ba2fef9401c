#include <algorithm>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/input/command_line.h"
#include "coordinator/cli/default_cluster.h"
#include "coordinator/commands/commands.h"
#include "coordinator/devices/cluster_file.h"
#include "coordinator/devices/stored_choice.h"
#include "coordinator/reports/text_table.h"
#include "coordinator/rpc/device_client.h"
#include "daemon/stores/weights_digest.h"
#include "daemon/weights/checkpoint.h"
#include "nlohmann/json.hpp"

namespace lime::cli {
namespace {

using nlohmann::json;

constexpr absl::Duration kStorePatience = absl::Seconds(2);  // for an answer

struct StoreFlags {
  std::string cluster;
  std::string remove;  // model; empty: list
  std::string device;  // empty: all
  bool insecure = false;
  bool json = false;
};

// One device and the models it holds, or the error.
struct Holder {
  const ClusterConfig::Device* config = nullptr;
  absl::StatusOr<StoreContent> content;
  absl::StatusOr<Bytes> freed;  // if a model was to be removed
  bool asked = false;           // to remove it
};

DeviceClient ClientOf(const ClusterFile& file, const Holder& holder) {
  return {holder.config->name, holder.config->address, file.keys, HowToStart(*holder.config, file.path)};
}

absl::StatusOr<std::vector<Holder>> Ask(const ClusterFile& file, const StoreFlags& flags) {
  std::vector<Holder> holders;
  for (const ClusterConfig::Device& device : file.config.devices) {
    if (flags.device.empty() || device.name == flags.device)
      holders.push_back({.config = &device, .content = StoreContent(), .freed = Bytes{0}});
  }
  if (holders.empty()) return WrongCall(absl::StrCat("--device ", AsTyped(flags.device), ": ", file.path, " has no such device"));
  AtOnce(holders.size(), [&](size_t i) {
    Holder& holder = holders[i];
    const DeviceClient client = ClientOf(file, holder);
    const absl::StatusOr<DeviceHealth> health = client.Health(kStorePatience);
    holder.content = health.ok() ? client.ListStore() : absl::StatusOr<StoreContent>(health.status());
  });
  return holders;
}

// "2 h ago".
std::string Ago(double seconds) {
  if (seconds < 120) return absl::StrFormat("%.0f s ago", seconds);
  if (seconds < 2 * 3600) return absl::StrFormat("%.0f min ago", seconds / 60);
  if (seconds < 2 * 86400) return absl::StrFormat("%.0f h ago", seconds / 3600);
  return absl::StrFormat("%.0f days ago", seconds / 86400);
}

std::string Blocks(const StoredModel& stored) {
  return stored.blocks == 0 ? "push interrupted" : absl::StrCat(stored.held, " of ", stored.blocks);
}

void Print(const std::vector<Holder>& holders) {
  constexpr auto kLeft = TextTable::Align::kLeft, kRight = TextTable::Align::kRight;
  TextTable table({kLeft, kLeft, kLeft, kRight, kRight, kLeft});
  table.AddRow({"device", "model", "digest", "on disk", "blocks", "last used"});
  bool any = false;
  for (const Holder& holder : holders) {
    if (!holder.content.ok()) continue;
    for (const StoredModel& stored : holder.content->models) {
      table.AddRow({holder.config->name, stored.name.empty() ? "-" : stored.name, DigestText(stored.model), FormatBytes(stored.bytes),
                    Blocks(stored), stored.in_use ? "now, by the installed plan" : Ago(stored.unused_seconds)});
      any = true;
    }
  }
  if (any) std::cout << table.Text(OutputColumns(), -1);
  for (const Holder& holder : holders) {
    const std::string& name = holder.config->name;
    if (!holder.content.ok()) {
      std::cout << std::string(holder.content.status().message()) << "\n";
    } else if (holder.content->folder.empty()) {
      std::cout << name << " accepts no weights: limed was started without --store\n";
    } else {
      std::cout << name << (holder.content->models.empty() ? " holds nothing, and has " : " has ") << FormatBytes(holder.content->free)
                << " of " << FormatBytes(holder.content->total) << " free in " << holder.content->folder << "\n";
    }
  }
}

json HolderJson(const Holder& holder) {
  json object = {{"name", holder.config->name}, {"address", holder.config->address}, {"answers", holder.content.ok()}};
  if (!holder.content.ok()) {
    object["problem"] = std::string(holder.content.status().message());
    return object;
  }
  object["store"] = holder.content->folder;
  object["free_bytes"] = holder.content->free;
  object["total_bytes"] = holder.content->total;
  object["models"] = json::array();
  for (const StoredModel& stored : holder.content->models) {
    object["models"].push_back(
        {{"name", stored.name},
         {"digest", DigestText(stored.model)},
         {"bytes", stored.bytes},
         {"blocks_held", stored.held},
         {"blocks", stored.blocks},
         {"unused_seconds", stored.unused_seconds},
         {"last_used", absl::FormatTime(absl::RFC3339_sec, absl::Now() - absl::Seconds(stored.unused_seconds), absl::UTCTimeZone())},
         {"in_use", stored.in_use}});
  }
  return object;
}

// A folder on this machine is identified by its tensors. Any other word is a name or a digest.
absl::StatusOr<uint64_t> ModelMeant(const std::string& word, const std::vector<StoreContent>& contents) {
  if (const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(word); checkpoint.ok()) return ModelDigest(*checkpoint);
  absl::StatusOr<uint64_t> chosen = ChooseStored(word, contents);
  if (absl::IsInvalidArgument(chosen.status())) return WrongCall(std::string(chosen.status().message()));
  return chosen;
}

// The errors of all devices, from listing or removing.
absl::Status Problems(const std::vector<Holder>& holders) {
  std::vector<absl::Status> problems;
  problems.reserve(holders.size());
  for (const Holder& holder : holders) problems.push_back(holder.content.ok() ? holder.freed.status() : holder.content.status());
  return AllOf(problems);
}

absl::Status Remove(const ClusterFile& file, const StoreFlags& flags, std::vector<Holder>& holders) {
  std::vector<StoreContent> contents;
  for (const Holder& holder : holders) {
    if (holder.content.ok()) contents.push_back(*holder.content);
  }
  if (contents.empty()) return Problems(holders);
  LIME_ASSIGN_OR_RETURN(const uint64_t model, ModelMeant(flags.remove, contents));
  bool held = false;
  for (Holder& holder : holders) {
    holder.asked =
        holder.content.ok() && std::ranges::find(holder.content->models, model, &StoredModel::model) != holder.content->models.end();
    held = held || holder.asked;
  }
  if (!held) LIME_RETURN_IF_ERROR(Problems(holders));
  if (!held) return absl::NotFoundError(absl::StrCat("no device holds ", flags.remove, " (", DigestText(model), ")"));
  AtOnce(holders.size(), [&](size_t i) {
    if (holders[i].asked) holders[i].freed = ClientOf(file, holders[i]).RemoveStored(model);
  });
  json removed = json::array();
  for (const Holder& holder : holders) {
    if (!holder.asked || !holder.freed.ok()) continue;
    removed.push_back({{"device", holder.config->name}, {"digest", DigestText(model)}, {"freed_bytes", *holder.freed}});
    if (!flags.json)
      absl::PrintF("%-12s has removed %s: %s are free again\n", holder.config->name, flags.remove, FormatBytes(*holder.freed));
  }
  std::fflush(stdout);
  // A silent device may hold the model too, so its error is part of the answer.
  return Answered({{"cluster_file", file.path}, {"removed", removed}}, flags.json, Problems(holders));
}

absl::Status Store(const StoreFlags& flags) {
  LIME_ASSIGN_OR_RETURN(const std::string path, ClusterFileOr(flags.cluster));
  LIME_ASSIGN_OR_RETURN(const ClusterFile file, ClusterFile::Open(path, flags.insecure));
  LIME_ASSIGN_OR_RETURN(std::vector<Holder> holders, Ask(file, flags));
  if (!flags.remove.empty()) return Remove(file, flags, holders);
  if (!flags.json) {
    Print(holders);
    std::cout << std::flush;
    const auto silent = std::ranges::count_if(holders, [](const Holder& holder) { return !holder.content.ok(); });
    if (silent > 0)
      return absl::UnavailableError(absl::StrCat(silent, " of ", holders.size(), " devices did not list their models; run `lime devices`"));
    return absl::OkStatus();
  }
  json answer = {{"cluster", file.Name()}, {"cluster_file", file.path}, {"devices", json::array()}};
  for (const Holder& holder : holders) answer["devices"].push_back(HolderJson(holder));
  return Answered(answer, flags.json, Problems(holders));
}

}  // namespace

void AddStoreCommand(Commands& commands) {
  const auto [command, flags] = commands.Add<StoreFlags>(
      "store", "List the models that the devices of a cluster hold, and remove models",
      "Examples:\n"
      "  lime store                                     models that `lime push` sent to each device, and when each was last used\n"
      "  lime store --remove Llama-3.1-8B               from all devices, without asking\n"
      "  lime store --remove 1f3c0d5e --device orin     by the first digits of its digest, from one device\n"
      "A model that an installed plan reads is not removed. Folders that cluster.toml names with `weights` are never touched.",
      Store);
  AddClusterFlag(command, flags.cluster);
  command.Add("--remove", &flags.remove, "Model to remove: its name, its digest or the first 8 digits of it, or its folder here");
  command.Add("--device", &flags.device, "Only this device");
  command.Add("--insecure", &flags.insecure, "Talk to other machines without keys");
  command.Add("--json", &flags.json, "Print one JSON object and nothing else on stdout");
}

}  // namespace lime::cli
