// The disk's rate at one read size and depth, under whatever limits are in force: what streaming is
// compared with.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "daemon/profile/measure_disk.h"
#include "daemon/weights/checkpoint.h"

namespace lime {
namespace {

struct Flags {
  std::string model;
  Bytes read_kib = 1024;  // as streaming reads
  int depth = 16;
  double seconds = 2;
  Bytes spread_mib = 64;
};

absl::Status Run(const Flags& flags) {
  LIME_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open(flags.model));
  std::vector<std::string> files;
  for (const CheckpointFile& file : checkpoint.files()) files.push_back(file.path);
  const Bytes read_bytes = flags.read_kib * kKiB;
  LIME_ASSIGN_OR_RETURN(const std::vector<DiskPoint> points,
                        MeasureDisk(files, {.seconds = flags.seconds,
                                            .memory = std::max(read_bytes * flags.depth, flags.spread_mib * kMiB),
                                            .spread = flags.spread_mib * kMiB,
                                            .read_bytes = {read_bytes},
                                            .depths = {flags.depth}}));
  const DiskPoint& point = points.front();
  const nlohmann::json root = {{"read_bytes", point.read_bytes},
                               {"depth", point.depth},
                               {"bytes_per_second", point.bytes_per_second},
                               {"latency_ms", point.latency_ms}};
  std::puts(root.dump().c_str());
  return absl::OkStatus();
}

}  // namespace
}  // namespace lime

int main(int argc, char** argv) try {
  lime::Flags flags;
  CLI::App app("Rate of direct reads of a checkpoint's files, as JSON");
  app.add_option("--model", flags.model, "Checkpoint folder")->required();
  app.add_option("--read-kib", flags.read_kib, "Size of a read")->check(CLI::Range(4, 65536))->capture_default_str();
  app.add_option("--depth", flags.depth, "Reads in flight")->check(CLI::Range(1, 256))->capture_default_str();
  app.add_option("--seconds", flags.seconds, "Seconds to read, about")->check(CLI::Range(0.1, 600.0))->capture_default_str();
  app.add_option("--spread-mib", flags.spread_mib, "Memory that the reads fill in turn")
      ->check(CLI::Range(0, 65536))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = lime::Run(flags);
  if (!status.ok()) std::fprintf(stderr, "disk_bench: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "disk_bench: %s\n", error.what());
  return 1;
}
