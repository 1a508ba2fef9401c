#include "coordinator/cli/default_cluster.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "coordinator/cli/command.h"

namespace lime::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kName[] = "cluster.toml";
// What CLI11 passes on for --cluster without a value, and shows in --help. An empty value that is typed is an error; CLI11 shows it to no
// validator of an option whose value may lack.
constexpr char kNoValue[] = "the default cluster file";

// Empty where neither variable names a folder.
std::string OwnClusterFile() {
  const char* const config = std::getenv("XDG_CONFIG_HOME");
  if (config != nullptr && *config == '/') return (fs::path(config) / "lime" / kName).string();
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? (fs::path(home) / ".config/lime" / kName).string() : "";
}

void TellDefault(const std::string& path) {
  std::fprintf(stderr, "lime: cluster file %s\n", path.c_str());
}

std::string Resolve(const std::string& value) {
  if (value.empty()) throw CLI::ValidationError("--cluster", "is empty; name a file, or leave the value out for ./cluster.toml");
  if (value != kNoValue) return value;
  const absl::StatusOr<std::string> found = FindClusterFile();
  if (!found.ok()) throw CLI::ValidationError("--cluster", std::string(found.status().message()));
  TellDefault(*found);
  return *found;
}

}  // namespace

absl::StatusOr<std::string> FindClusterFile() {
  const std::string own = OwnClusterFile();
  for (const std::string& path : {std::string(kName), own}) {
    std::error_code ignored;
    if (path.empty() || !fs::exists(fs::symlink_status(path, ignored))) continue;
    if (fs::exists(path, ignored)) return path;
    return WrongCall(absl::StrCat(path, " leads to ", fs::read_symlink(path, ignored).string(),
                                  ", which is not there; mend or remove the link, or give --cluster FILE"));
  }
  return WrongCall(absl::StrCat("there is no ./", kName, own.empty() ? "" : absl::StrCat(" and no ", own),
                                "; write one (docs/getting-started.md), or give --cluster FILE"));
}

absl::StatusOr<std::string> ClusterFileOr(const std::string& given) {
  if (!given.empty()) return given;
  absl::StatusOr<std::string> found = FindClusterFile();
  if (found.ok()) TellDefault(*found);
  return found;
}

std::string ClusterFileMeant(const std::string& value) {
  return value == kNoValue ? FindClusterFile().value_or("") : value;
}

CLI::Option* AddClusterFlag(CLI::App& app, std::string& path) {
  return app.add_option("--cluster,-c", path, "cluster.toml; without it ./cluster.toml, then ~/.config/lime/cluster.toml")
      ->check([](const std::string& value) { return value.empty() ? "--cluster is empty; name a file, or leave the flag out" : ""; });
}

CLI::Option* AddOptionalClusterFlag(CLI::App& app, std::string& path, const std::string& help) {
  const auto take = [&path](const std::string& value) { path = Resolve(value); };
  return app
      .add_option_function<std::string>("--cluster,-c", take, help + "; without a value ./cluster.toml, then ~/.config/lime/cluster.toml")
      ->expected(0, 1)
      ->default_str(kNoValue);
}

}  // namespace lime::cli
