#include "daemon/weights/user_name.h"

#include <pwd.h>

#include "absl/strings/str_cat.h"

namespace lime {

std::string UserName(uid_t user) {
  struct passwd entry = {};
  struct passwd* found = nullptr;
  char buffer[4096];
  if (getpwuid_r(user, &entry, buffer, sizeof(buffer), &found) == 0 && found != nullptr) return found->pw_name;
  return absl::StrCat("user ", user);
}

}  // namespace lime
