// JSON as values. Strings and keys stay in the JSON, which outlives the rendering.
#pragma once

#include "coordinator/text/jinja/values/rendering.h"
#include "nlohmann/json_fwd.hpp"

namespace lime::jinja {

Value FromJson(Rendering& rendering, const nlohmann::ordered_json& json);

}  // namespace lime::jinja
