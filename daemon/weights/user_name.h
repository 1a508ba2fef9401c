// Users by name, for sentences.
#pragma once

#include <sys/types.h>

#include <string>

namespace lime {

// "ann", or "user 1001" where the system knows no name.  Thread: any.
std::string UserName(uid_t user);

}  // namespace lime
