// The special tokens that a tokenizer's class has in transformers where no file names them.
#pragma once

#include <string_view>

#include "coordinator/text/json_access.h"

namespace lime {

// {"bos_token": ..., ...} of the class, whose name is without "Fast". Empty for a class that has none, or is not known.
const Json& TokensOfClass(std::string_view tokenizer_class);

}  // namespace lime
