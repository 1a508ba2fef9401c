#include "coordinator/cli/device_profile.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "bench/limits.h"
#include "daemon/weights/block_reader.h"
#include "daemon/weights/files.h"
#include "daemon/weights/huge_buffer.h"
#include "kernels/cpu/linear.h"
#include "planner/base/json_text.h"

namespace lime::cli {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string CpuName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// Of a quick look: enough to tell memory from cache, and less than what computes takes anyway.
constexpr Bytes kLeastQuickBytes = 16 * kMiB, kMostQuickBytes = 128 * kMiB;

double Median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Bytes per second of direct reads of `read_bytes`, `depth` in flight, over consecutive extents of the file.
absl::StatusOr<double> MeasureReads(const std::string& file, Bytes size, Bytes read_bytes, int depth, double seconds) {
  constexpr Bytes kExtent = 32 * kMiB;
  LIME_ASSIGN_OR_RETURN(std::unique_ptr<BlockDevice> device, OpenBlockDevice({file}, {.lanes = depth}));
  BlockReader reader(std::move(device), {.read_bytes = read_bytes});
  LIME_ASSIGN_OR_RETURN(HugeBuffer slot, HugeBuffer::Allocate(kExtent + 2 * kHugePageBytes));
  LIME_RETURN_IF_ERROR(slot.Prefault());
  const Clock::time_point start = Clock::now();
  Bytes read = 0;
  for (int64_t offset = 0; SecondsSince(start) < seconds; offset = offset + kExtent < size ? offset + kExtent : 0) {
    const Extent extent{.file = 0, .offset = offset, .bytes = std::min(kExtent, size - offset)};
    absl::Notification done;
    absl::Status status;
    reader.StartRead(extent, slot.data(), [&](absl::Status result) {
      status = std::move(result);
      done.Notify();
    });
    done.WaitForNotification();
    LIME_RETURN_IF_ERROR(status);
    read += extent.bytes;
  }
  return static_cast<double>(read) / SecondsSince(start);
}

// Bytes per second that `threads` read memory at, measured by a child process; 0 where it came to nothing.
double MeasureMemoryApart(int threads, Bytes bytes) {
  int ends[2];
  if (pipe(ends) != 0) return 0;
  const pid_t child = fork();
  if (child == 0) {
    const double rate = MeasureDevice(threads, 0.05, bytes).read_bytes_per_second;
    _exit(write(ends[1], &rate, sizeof(rate)) == sizeof(rate) ? 0 : 1);  // nothing of the parent's is flushed or torn down
  }
  close(ends[1]);
  double rate = 0;
  if (child < 0 || read(ends[0], &rate, sizeof(rate)) != sizeof(rate)) rate = 0;
  close(ends[0]);
  while (child > 0 && waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return rate;
}

std::optional<DeviceProfile> ReadStored(int threads) {
  const absl::StatusOr<std::string> text = ReadTextFile(ProfilePath(), kMiB);
  if (!text.ok()) return std::nullopt;
  const absl::StatusOr<json> parsed = ParseJsonObject(*text, ProfilePath());
  if (!parsed.ok()) return std::nullopt;
  const json& root = *parsed;
  DeviceProfile profile;
  try {  // a damaged profile is measured anew
    profile.cpu = root.value("cpu", "");
    profile.instruction_set = root.value("instruction_set", "");
    profile.threads = root.value("threads", 0);
    profile.read_bytes_per_second = root.value("read_bytes_per_second", 0.0);
    profile.flops = root.value("flops", 0.0);
  } catch (const json::exception&) {
    return std::nullopt;
  }
  profile.stored = true;
  if (profile.cpu != CpuName() || profile.threads != threads || !(profile.read_bytes_per_second > 0)) return std::nullopt;
  return profile;
}

}  // namespace

std::string ProfilePath() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  const std::string base = cache != nullptr && *cache != '\0' ? cache : absl::StrCat(home != nullptr ? home : "/tmp", "/.cache");
  return base + "/lime/profile.json";
}

DeviceProfile MeasureDevice(int threads, double seconds, Bytes bytes) {
  DeviceProfile profile{.cpu = CpuName(), .instruction_set = cpu::InstructionSet(), .threads = threads, .disk = {}};
  cpu::ThreadPool pool(threads);
  const bench::HugeMemory memory(bytes);
  std::vector<double> reads, flops;
  const Clock::time_point start = Clock::now();
  do {
    reads.push_back(static_cast<double>(memory.bytes()) / bench::ReadSeconds(pool, memory.data(), memory.bytes()));
    if (seconds > 0.5) flops.push_back(bench::MultiplyAddRate(pool));
  } while (SecondsSince(start) < seconds || reads.size() < 3);
  profile.read_bytes_per_second = Median(reads);
  if (!flops.empty()) profile.flops = Median(flops);
  return profile;
}

absl::Status MeasureDisk(const std::string& file, double seconds, DeviceProfile& profile) {
  std::error_code error;
  const Bytes size = static_cast<Bytes>(std::filesystem::file_size(file, error));
  if (error) return absl::NotFoundError(absl::StrCat(file, ": ", error.message()));
  for (const Bytes read_bytes : {64 * kKiB, kMiB, 4 * kMiB}) {
    for (const int depth : {1, 4}) {
      if (size < read_bytes) continue;
      LIME_ASSIGN_OR_RETURN(const double rate, MeasureReads(file, size, read_bytes, depth, seconds));
      profile.disk.push_back({read_bytes, depth, rate});
    }
  }
  return absl::OkStatus();
}

DeviceProfile LoadOrMeasureProfile(int threads, Bytes room) {
  if (const std::optional<DeviceProfile> stored = ReadStored(threads)) return *stored;
  const Bytes bytes = std::min(kMostQuickBytes, room / 2 / kMiB * kMiB);
  DeviceProfile profile{.cpu = CpuName(), .instruction_set = cpu::InstructionSet(), .threads = threads, .disk = {}};
  if (bytes >= kLeastQuickBytes) profile.read_bytes_per_second = MeasureMemoryApart(threads, bytes);
  return profile;
}

absl::Status StoreProfile(const DeviceProfile& profile) {
  const std::filesystem::path path = ProfilePath();
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  const std::string temporary = path.string() + ".new";
  std::ofstream(temporary) << ProfileJson(profile).dump(2) << "\n";
  std::filesystem::rename(temporary, path, error);
  if (error) return absl::UnavailableError(absl::StrCat(path.string(), " cannot be written: ", error.message()));
  return absl::OkStatus();
}

json ProfileJson(const DeviceProfile& profile) {
  json disk = json::array();
  for (const DiskRate& rate : profile.disk) {
    disk.push_back({{"read_bytes", rate.read_bytes}, {"depth", rate.depth}, {"bytes_per_second", rate.bytes_per_second}});
  }
  return {{"cpu", profile.cpu},         {"instruction_set", profile.instruction_set},
          {"threads", profile.threads}, {"read_bytes_per_second", profile.read_bytes_per_second},
          {"flops", profile.flops},     {"disk", disk}};
}

}  // namespace lime::cli
