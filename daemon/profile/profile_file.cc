#include "daemon/profile/profile_file.h"

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "daemon/machine/files.h"
#include "daemon/profile/measure_rates.h"
#include "daemon/stores/output_file.h"
#include "planner/plan/device/limits.h"

namespace lime {
std::string DefaultProfilePath() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') return absl::StrCat(cache, "/lime/profile.json");
  if (home != nullptr && *home == '/') return absl::StrCat(home, "/.cache/lime/profile.json");
  return "";
}

absl::StatusOr<DeviceProfile> ReadProfile(const std::string& path) {
  LIME_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxProfileBytes));
  return ParseDeviceProfile(text, path);
}

absl::Status WriteProfile(const DeviceProfile& profile, const std::string& path) {
  if (path.empty()) return absl::FailedPreconditionError(kNoProfilePath);
  std::error_code error;
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return absl::UnavailableError(absl::StrCat(folder.string(), " cannot be made: ", error.message()));
  return WriteOutput(path, ToJsonText(profile) + "\n", {.overwrite = true});
}

bool IsOwn(const DeviceProfile& profile, int threads) {
  return profile.cpu == EmptyProfile(threads).cpu && profile.threads == threads;
}

DeviceProfile LoadOrMeasureProfile(int threads, Bytes room) {
  if (absl::StatusOr<DeviceProfile> stored = ReadProfile(DefaultProfilePath()); stored.ok() && IsOwn(*stored, threads)) return *stored;
  DeviceProfile profile = EmptyProfile(threads);
  profile.read_bytes_per_second = MeasureMemoryApart(threads, room);
  return profile;
}

}  // namespace lime
