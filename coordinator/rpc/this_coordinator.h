// Who this program is to the devices that it asks to install a plan.
#pragma once

#include "proto/convert.h"

namespace lime {

// User, host, and a number that no other call has got.
Coordinator NewCoordinator();

}  // namespace lime
