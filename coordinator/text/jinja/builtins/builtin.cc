#include "coordinator/text/jinja/builtins/builtin.h"

#include <algorithm>

#include "coordinator/text/jinja/values/operations.h"
#include "coordinator/text/jinja/values/printing.h"
#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {
namespace {

struct Parameters {
  std::vector<std::string_view> names;
  size_t required = 0;
};

Parameters Read(std::string_view text) {
  Parameters parameters;
  while (!text.empty()) {
    std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(std::min(word.size() + 1, text.size()));
    if (word.ends_with('=')) {
      word.remove_suffix(1);
    } else {
      ++parameters.required;
    }
    parameters.names.push_back(word);
  }
  return parameters;
}

bool Bind(Call& call) {
  const Parameters parameters = Read(call.builtin.parameters);
  const auto& [names, required] = parameters;
  call.bound.resize(names.size());
  if (call.arguments.values.size() > names.size()) {
    call.Fail("takes at most ", names.size(), " arguments, and ", call.arguments.values.size(), " are given; remove some");
    return false;
  }
  std::copy(call.arguments.values.begin(), call.arguments.values.end(), call.bound.begin());
  for (const auto& [name, value] : call.arguments.named) {
    const auto at = static_cast<size_t>(std::ranges::find(names, name) - names.begin());
    if (at == names.size() || call.bound[at].has_value()) {
      const char* why = at == names.size() ? "\", which it does not have; remove it" : "\" twice; remove one";
      call.Fail("is given the argument \"", Shortened(name), why);
      return false;
    }
    call.bound[at] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (call.bound[i].has_value()) continue;
    call.Fail("needs the argument \"", Text(names[i]), "\"; give it");
    return false;
  }
  return true;
}

size_t BytesIn(const Value& value) {
  return value.IsString() ? value.text->size() : 0;
}

}  // namespace

bool Call::IsTrueAt(size_t i) const {
  return IsTrue(At(i));
}

Int Call::IntAt(size_t i, Int fallback) const {
  if (!Has(i)) return fallback;
  if (At(i).IsIntegral()) return At(i).AsInt();
  Fail("needs an integer as argument ", i + 1, ", not ", TypeName(At(i)), "; convert it with \"|int\"");
  return fallback;
}

std::string_view Call::TextAt(size_t i) const {
  if (i < bound.size() && At(i).IsString()) return *At(i).text;
  Fail("needs a string as argument ", i + 1, ", not ", TypeName(At(i)), "; convert it with \"|string\"");
  return "";
}

std::string_view Call::Text() const {
  return ViewOf(rendering, self);
}

const Builtin* FindBuiltin(std::span<const Builtin> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Builtin::name);
  return found == table.end() ? nullptr : &*found;
}

Value CallBuiltin(Rendering& rendering, const Builtin& builtin, const Value& self, const Arguments& arguments) {
  size_t bytes = BytesIn(self);  // what is read of strings is counted here for all
  for (const Value& value : arguments.values) bytes += BytesIn(value);
  for (const auto& [name, value] : arguments.named) bytes += BytesIn(value);
  if (!rendering.Charge(bytes)) return Value::Undefined();
  Call call{.rendering = rendering, .builtin = builtin, .self = self, .arguments = arguments};
  if (builtin.parameters != "*" && !Bind(call)) return Value::Undefined();
  return builtin.function(call);
}

}  // namespace lime::jinja
