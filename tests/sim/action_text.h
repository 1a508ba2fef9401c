// Actions of a StageLogic and a ResidencyLogic as lines of a transcript.
#pragma once

#include <string>

#include "daemon/logic/residency_logic.h"
#include "daemon/logic/stage_logic.h"

namespace lime {

std::string ActionText(const StageLogic::Action& action);
std::string ActionText(const ResidencyLogic::Action& action);

}  // namespace lime
