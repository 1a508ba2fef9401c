// The work of `lime template`, without its flags.
#pragma once

#include <iosfwd>

#include "absl/time/civil_time.h"
#include "coordinator/text/jinja/model_template.h"

namespace lime {

struct TemplateOptions {
  bool json = false;  // write {"text": "..."}
  // Read one object per line; write one object per line, {"text"} or {"error"} with a sentence.
  bool jsonl = false;
};

// Reads `in` to its end and writes the text to `out`. Without `jsonl`, the whole input is one
// object: {"template", "vars", "now"}. An object without "template" has that of `model`, which may
// have none; without "now", the time is `now`.
absl::Status RunTemplate(const ModelTemplate& model, absl::CivilSecond now, std::istream& in, std::ostream& out,
                         const TemplateOptions& options);

}  // namespace lime
