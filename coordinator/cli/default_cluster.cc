#include "coordinator/cli/default_cluster.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"

namespace lime::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "cluster.toml";
// The value of --cluster without one, as --help shows it.
constexpr char kNoValue[] = "the default cluster file";

// Empty if neither variable names a folder.
std::string OwnClusterFile() {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return (fs::path(config) / "lime" / kName).string();
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? (fs::path(home) / ".config/lime" / kName).string() : "";
}

void SayDefault(const std::string& path) {
  std::fprintf(stderr, "lime: cluster file %s\n", path.c_str());
}

}  // namespace

absl::StatusOr<std::string> FindClusterFile() {
  const std::string own = OwnClusterFile();
  for (const std::string& path : {std::string(kName), own}) {
    std::error_code ignored;
    if (path.empty() || !fs::exists(fs::symlink_status(path, ignored))) continue;
    if (fs::exists(path, ignored)) return path;
    return WrongCall(absl::StrCat(path, " is a link to ", fs::read_symlink(path, ignored).string(),
                                  ", which does not exist; correct or remove the link, or give --cluster FILE"));
  }
  return WrongCall(absl::StrCat("there is no ./", kName, own.empty() ? "" : absl::StrCat(" and no ", own),
                                "; write one (docs/getting-started.md), or give --cluster FILE"));
}

absl::StatusOr<std::string> ClusterFileOr(const std::string& given) {
  if (!given.empty()) return given;
  absl::StatusOr<std::string> found = FindClusterFile();
  if (found.ok()) SayDefault(*found);
  return found;
}

std::string ClusterFileMeant(const std::string& value) {
  return value == kNoValue ? FindClusterFile().value_or("") : value;
}

void AddClusterFlag(const CommandFlags& command, std::string& path) {
  command.Add("--cluster,-c", &path, "cluster.toml; without it ./cluster.toml, then ~/.config/lime/cluster.toml");
}

void AddOptionalClusterFlag(const CommandFlags& command, std::string& path, const std::string& help) {
  const auto parse = [&path](const std::string& value) {
    LIME_ASSIGN_OR_RETURN(path, ClusterFileOr(value == kNoValue ? "" : value));
    return absl::OkStatus();
  };
  command.AddOptional("--cluster,-c", kNoValue, parse, help + "; without a value ./cluster.toml, then ~/.config/lime/cluster.toml");
}

}  // namespace lime::cli
