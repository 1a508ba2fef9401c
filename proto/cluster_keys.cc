#include "proto/cluster_keys.h"

#include <sys/stat.h>

#include "absl/strings/str_cat.h"
#include "daemon/weights/files.h"
#include "proto/certificate.h"

namespace lime {
namespace {

constexpr size_t kMaxPemBytes = 1 << 20;

}  // namespace

absl::StatusOr<ClusterKeys> ClusterKeys::Read(const std::string& folder, const std::string& name) {
  const std::string key_path = absl::StrCat(folder, "/", name, ".key");
  struct stat status = {};
  if (stat(key_path.c_str(), &status) == 0 && (status.st_mode & 077) != 0)
    return absl::PermissionDeniedError(absl::StrCat(key_path, " can be read by others; run `chmod 600 ", key_path, "`"));
  for (const std::string& path : {folder + "/ca.pem", absl::StrCat(folder, "/", name, ".pem"), key_path}) {
    if (FileExists(path)) continue;
    return absl::NotFoundError(absl::StrCat(path, " is not there"));
  }
  ClusterKeys keys;
  LIME_ASSIGN_OR_RETURN(keys.authority, ReadTextFile(folder + "/ca.pem", kMaxPemBytes));
  LIME_ASSIGN_OR_RETURN(keys.certificate, ReadTextFile(absl::StrCat(folder, "/", name, ".pem"), kMaxPemBytes));
  LIME_ASSIGN_OR_RETURN(keys.key, ReadTextFile(key_path, kMaxPemBytes));
  LIME_RETURN_IF_ERROR(CheckKeys(keys, folder, name));
  return keys;
}

}  // namespace lime
