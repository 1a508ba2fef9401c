#include "coordinator/text/jinja/values/value.h"

#include "coordinator/text/jinja/values/python_text.h"

namespace lime::jinja {

const char* TypeName(const Value& value) {
  switch (value.kind) {
    case Kind::kUndefined:
      return "an undefined value";
    case Kind::kNone:
      return "none";
    case Kind::kBool:
      return "a boolean";
    case Kind::kInt:
      return "an integer";
    case Kind::kFloat:
      return "a float";
    case Kind::kString:
      return "a string";
    case Kind::kList:
      return value.list->form == List::Form::kTuple ? "a tuple" : value.list->HasItems() ? "a list" : "an iterator";
    case Kind::kDict:
      return "a dict";
    case Kind::kObject:
      return "an object";
  }
  return "a value";
}

std::string NameOf(const Value& undefined) {
  if (undefined.text == nullptr) return "a value";
  return "\"" + Shortened(*undefined.text) + "\"";
}

}  // namespace lime::jinja
