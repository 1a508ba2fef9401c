#include "daemon/engine/call_limits.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "daemon/engine/process_memory.h"
#include "daemon/machine/files.h"
#include "daemon/machine/system_memory.h"
#include "planner/base/strings.h"

namespace lime {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kThreadsPerCore = 4;
constexpr int64_t kThreadsAnywhere = 16;  // on small machines too: tests of sharing need them

}  // namespace

absl::Status CheckThreads(std::string_view flag, int64_t threads) {
  const int64_t cores = UsableCores(), most = std::min<int64_t>(kMostThreads, std::max(kThreadsAnywhere, kThreadsPerCore * cores));
  if (threads >= 0 && threads <= most) return absl::OkStatus();
  return Invalid(Text(flag), " ", threads, " is outside 0 to ", most, ": this process may use ", cores, cores == 1 ? " core" : " cores",
                 ", and more threads would only wait for each other; leave the flag out to use one thread for each core");
}

absl::Status CheckBudget(std::string_view said, Bytes budget) {
  const MemoryLimit limit = LowestMemoryLimit();
  if (budget <= limit.bytes) return absl::OkStatus();
  const std::string who = limit.group.empty() ? "this machine has" : absl::StrCat("the control group ", limit.group, " allows");
  return Invalid(Text(said), ": ", who, " ", FormatBytes(limit.bytes), "; give ", BudgetAtMost(limit.bytes), " or less",
                 limit.group.empty() ? "" : ", or raise the group's limit");
}

absl::Status CheckWritable(const std::string& said, const std::string& folder) {
  std::error_code error;
  const bool is_there = fs::is_directory(folder, error);
  if (!is_there && fs::exists(fs::symlink_status(folder, error)))
    return Invalid(said, " is not a folder, and limed cannot make one there; choose another path");
  const fs::path path = fs::absolute(folder, error).lexically_normal(),
                 above = (path.has_filename() ? path : path.parent_path()).parent_path();
  if (!is_there && !fs::is_directory(above, error))
    return Invalid(said, " is not there, and ", above.string(), " is not a folder; make that folder, mount its disk, or correct the path");
  if (access((is_there ? path : above).c_str(), R_OK | W_OK | X_OK) == 0) return absl::OkStatus();
  return Invalid(said, is_there ? " may not be written (" : " cannot be made (", std::strerror(errno),
                 "); choose another folder, or change ",
                 is_there ? "its permissions" : absl::StrCat("the permissions of ", above.string()));
}

absl::Status MakeFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), 0777) != 0 && errno != EEXIST) return ErrnoStatus(errno, folder, "make the folder");
  return absl::OkStatus();
}

std::string BudgetAtLeast(Bytes bytes) {
  return absl::StrCat(RoundUp(std::max<Bytes>(0, bytes), kMiB) / kMiB, "MiB");
}

std::string BudgetAtMost(Bytes bytes) {
  return bytes < kMiB ? absl::StrCat(bytes, "B") : absl::StrCat(bytes / kMiB, "MiB");
}

}  // namespace lime
