#include "coordinator/text/jinja/builtins/filters.h"

#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

const Builtin* FindFilter(std::string_view name) {
  for (const auto table : {TextFilters(), NumberFilters(), CollectionFilters()}) {
    if (const Builtin* found = FindBuiltin(table, name); found != nullptr) return found;
  }
  return nullptr;
}

}  // namespace

Value ApplyFilter(Rendering& rendering, std::string_view name, const Value& input, const Arguments& arguments) {
  const Builtin* filter = FindFilter(name);
  if (filter != nullptr) return CallBuiltin(rendering, *filter, input, arguments);
  return rendering.Fail("there is no filter \"", Shortened(name), "\"; use one of Jinja's that chat templates have");
}

bool HasFilter(std::string_view name) {
  return FindFilter(name) != nullptr;
}

}  // namespace lime::jinja
