#include "common/input/model_file.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_cat.h"

namespace lime {

absl::Status RefuseDeadLink(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_symlink(path, error) || std::filesystem::exists(path, error)) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat(path, ": is a link to ", std::filesystem::read_symlink(path, error).string(),
                                          ", which does not exist; download the file again"));
}

absl::StatusOr<bool> FindModelFile(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    const int error = errno;
    LIME_RETURN_IF_ERROR(RefuseDeadLink(path));
    if (error == ENOENT || error == ENOTDIR) return false;
    return absl::UnavailableError(absl::StrCat(path, ": cannot open: ", std::strerror(error)));
  }
  if (S_ISREG(info.st_mode)) return true;
  return Invalid(path, S_ISDIR(info.st_mode) ? ": is a folder" : ": is a pipe or a device",
                 ", but must be a file of the model; download the model again");
}

}  // namespace lime
