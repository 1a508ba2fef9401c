#include "common/json_schema/mask_memory.h"

#include "common/json_schema/token_masks.h"

namespace lime::json_schema {

Bytes MostMaskMemory(size_t tokens) {
  return kMaxHeldFormats + kMaxKeptFormats + kMaxCompiling + TokenMasks::MostMemory(tokens);
}

}  // namespace lime::json_schema
