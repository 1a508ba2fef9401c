#include "coordinator/text/jinja/values/from_json.h"

#include "nlohmann/json.hpp"

namespace lime::jinja {
namespace {

using Json = nlohmann::ordered_json;

Value DictOf(Rendering& rendering, const Json& json) {
  std::vector<std::pair<Value, Value>> entries;
  entries.reserve(json.size());
  for (const auto& [key, value] : json.get_ref<const Json::object_t&>()) {
    if (rendering.failed()) break;
    entries.emplace_back(Value::String(&key), FromJson(rendering, value));
  }
  return rendering.MakeDict(std::move(entries));
}

Value ListOf(Rendering& rendering, const Json& json) {
  std::vector<Value> items;
  items.reserve(json.size());
  for (const Json& item : json) {
    if (rendering.failed()) break;
    items.push_back(FromJson(rendering, item));
  }
  return rendering.MakeList(std::move(items));
}

}  // namespace

Value FromJson(Rendering& rendering, const Json& json) {
  const Rendering::Level level(rendering);
  if (!level.ok() || !rendering.Charge()) return Value::Undefined();
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Integer(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      return Value::Integer(json.get<uint64_t>());
    case Json::value_t::number_float:
      return Value::Real(json.get<double>());
    case Json::value_t::string:
      return Value::String(&json.get_ref<const std::string&>());
    case Json::value_t::array:
      return ListOf(rendering, json);
    case Json::value_t::object:
      return DictOf(rendering, json);
    default:
      return Value::None();
  }
}

}  // namespace lime::jinja
