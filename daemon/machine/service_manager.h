// News for the service manager that started this process (sd_notify(3)).
#pragma once

#include <string_view>

namespace lime {

// Sends "READY=1", "STOPPING=1" or the like to the socket that $NOTIFY_SOCKET names, if there is one.
// Ignores errors: the listener may be gone.
void NotifyManager(std::string_view state);

}  // namespace lime
