#include "common/json_schema/value_compiler.h"

#include <algorithm>
#include <set>

#include "absl/strings/match.h"
#include "common/json_schema/dfa/string_dfa.h"
#include "common/json_schema/keywords.h"

namespace lime::json_schema {
namespace {

using Others = ObjectForm::Others;

constexpr size_t kMaxValues = 8192;
constexpr size_t kMaxContainers = 256;  // objects and lists that one value may be

std::string JsonOf(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false);
}

int32_t Narrow(int64_t count) {
  return count >= INT32_MAX ? INT32_MAX : static_cast<int32_t>(count);
}

std::string KeyOf(const StringForm& form) {
  std::string key = absl::StrCat("string ", form.min, " ", form.max);
  for (const StringForm::Rule& rule : form.rules) absl::StrAppend(&key, "\n", rule.is_format ? "f" : "p", rule.text.size(), " ", rule.text);
  return key;
}

std::string KeyOf(const NumberRange& range) {
  std::string key = absl::StrCat("number ", range.is_integer ? 1 : 0, " ", range.multiple_of);
  for (const auto& bound : {range.min, range.max}) {
    if (!bound) absl::StrAppend(&key, " none");
    if (bound)
      absl::StrAppend(&key, bound->is_exclusive ? " >" : " =", bound->value.is_negative ? "-" : "", bound->value.whole, ".",
                      bound->value.fraction);
  }
  return key;
}

// Memory of the tree of keys for each byte of a key: a node, the edge to it, and the member there.
constexpr Bytes kKeyByte = sizeof(Object::KeyNode) + sizeof(std::pair<uint8_t, int>) + sizeof(int);
constexpr Bytes kMember = sizeof(Object::Member) + 3 * sizeof(int32_t) + sizeof(int);

Bytes MemoryOf(const Object& object) {
  Bytes bytes = sizeof(Object);
  for (const Object::Member& member : object.members) bytes += kMember + (kKeyByte + 1) * std::ssize(member.key);
  return bytes;
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return status.ok() ? status : Invalid(path, ": ", std::string(status.message()));
}

}  // namespace

template <typename MakeDfa>
absl::StatusOr<int> ValueCompiler::ScalarOf(const std::string& key, int32_t min, int32_t max, const MakeDfa& make_dfa) {
  const auto found = scalar_ids_.find(key);
  if (found != scalar_ids_.end()) return found->second;
  absl::StatusOr<ByteDfaPtr> dfa = make_dfa();
  if (!dfa.ok()) return dfa.status();
  LIME_RETURN_IF_ERROR(Charge(static_cast<Bytes>(sizeof(Scalar)) + (*dfa)->memory()));
  const auto id = static_cast<int>(grammar_.scalars.size());
  grammar_.scalars.push_back({.dfa = *std::move(dfa), .min = min, .max = max});
  scalar_ids_.emplace(key, id);
  return id;
}

absl::Status ValueCompiler::Charge(Bytes bytes) {
  grammar_.memory += bytes;
  if (grammar_.memory <= kMaxGrammarBytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("needs more than ", kMaxGrammarBytes / kMiB, " MiB together with the rest of the schema; make it smaller"));
}

absl::StatusOr<int> ValueCompiler::Compile(const Schemas& schemas) {
  const int id = ValueOf(schemas);
  LIME_RETURN_IF_ERROR(FillAll());
  return id;
}

absl::Status ValueCompiler::FillAll() {
  for (; !todo_.empty(); todo_.pop_front()) {
    const auto [value, schemas] = todo_.front();
    if (grammar_.values.size() > kMaxValues) return Invalid(reader_.PathOf(schemas), ": the schema has more than ", kMaxValues, " values");
    LIME_RETURN_IF_ERROR(Fill(value, schemas));
  }
  return absl::OkStatus();
}

absl::StatusOr<int> ValueCompiler::CompileForms(const std::vector<Form>& forms, const std::string& path) {
  Value value;
  LIME_RETURN_IF_ERROR(Fill(forms, path, value));
  LIME_RETURN_IF_ERROR(FillAll());
  grammar_.values.push_back(std::move(value));
  return static_cast<int>(grammar_.values.size()) - 1;
}

absl::StatusOr<Framing> ValueCompiler::RawValue(const Schemas& schemas, std::string_view stop) {
  LIME_ASSIGN_OR_RETURN(std::vector<Form> forms, reader_.FormsOf(schemas));
  const std::string path = reader_.PathOf(schemas);
  std::vector<Framing> either;
  for (const Form& form : forms) {
    if (form.kind != Kind::kString) continue;
    if (form.literal && form.literal->get_ref<const std::string&>().find(stop) != std::string::npos)
      return Invalid(path, ": a value holds the text that ends it");
    const absl::StatusOr<int> scalar = form.literal ? Texts({form.literal->get<std::string>().append(stop)}) : RawString(form.string, stop);
    if (!scalar.ok()) return WithPath(path, scalar.status());
    either.push_back({.kind = Framing::Kind::kScalar, .id = *scalar});
  }
  std::erase_if(forms, [](const Form& form) { return form.kind == Kind::kString; });
  if (!forms.empty()) {
    LIME_ASSIGN_OR_RETURN(const int value, CompileForms(forms, path));
    either.push_back(Framing::Sequence({{.kind = Framing::Kind::kValue, .id = value}, Framing::Text(std::string(stop))}));
  }
  if (either.empty()) return Invalid(path, ": allows no value");
  return Framing::OneOf(std::move(either));
}

int ValueCompiler::ValueOf(const Schemas& schemas) {
  const auto [found, is_new] = values_.try_emplace(schemas, static_cast<int>(grammar_.values.size()));
  if (is_new) {
    grammar_.values.emplace_back();
    todo_.emplace_back(found->second, schemas);
  }
  return found->second;
}

absl::Status ValueCompiler::Fill(int id, const Schemas& schemas) {
  LIME_ASSIGN_OR_RETURN(const std::vector<Form> forms, reader_.FormsOf(schemas));
  Value value;
  LIME_RETURN_IF_ERROR(Fill(forms, reader_.PathOf(schemas), value));
  grammar_.values[static_cast<size_t>(id)] = std::move(value);
  return absl::OkStatus();
}

absl::Status ValueCompiler::Fill(const std::vector<Form>& forms, const std::string& path, Value& value) {
  std::vector<std::string> texts;
  for (const Form& form : forms) {
    if (form.literal) {
      texts.push_back(JsonOf(*form.literal));
    } else if (form.kind == Kind::kNull) {
      texts.emplace_back("null");
    } else if (form.kind == Kind::kBoolean) {
      texts.insert(texts.end(), {"true", "false"});
    } else if (form.kind == Kind::kObject) {
      LIME_ASSIGN_OR_RETURN(const int object, AddObject(form.object, path));
      value.objects.push_back(object);
    } else if (form.kind == Kind::kArray) {
      LIME_ASSIGN_OR_RETURN(const int array, AddArray(form.array, path));
      value.arrays.push_back(array);
    } else if (form.string.min <= form.string.max) {
      LIME_ASSIGN_OR_RETURN(const int scalar, AddScalar(form, path));
      if (std::ranges::find(value.scalars, scalar) == value.scalars.end()) value.scalars.push_back(scalar);
    }
  }
  if (!texts.empty()) {
    const absl::StatusOr<int> scalar = Texts(texts);
    if (!scalar.ok()) return WithPath(path, scalar.status());
    value.scalars.push_back(*scalar);
  }
  if (value.objects.size() + value.arrays.size() > kMaxContainers)
    return Invalid(path, ": has more than ", kMaxContainers, " kinds of objects and lists");
  const size_t ids = value.scalars.size() + value.objects.size() + value.arrays.size();
  return WithPath(path, Charge(static_cast<Bytes>(sizeof(Value) + ids * sizeof(int))));
}

absl::StatusOr<int> ValueCompiler::Texts(const std::vector<std::string>& texts) {
  std::string key = "texts";
  for (const std::string& text : texts) absl::StrAppend(&key, " ", text.size(), " ", text);
  return ScalarOf(key, 0, Scalar::kNoMax, [&] { return OneOfTexts(texts, writable_); });
}

absl::StatusOr<int> ValueCompiler::AddScalar(const Form& form, const std::string& path) {
  if (form.kind == Kind::kString) {
    absl::StatusOr<int> scalar = StringScalar(form.string);
    if (!scalar.ok() && !absl::StartsWith(scalar.status().message(), "#")) return WithPath(path, scalar.status());
    return scalar;
  }
  absl::StatusOr<int> scalar = ScalarOf(KeyOf(form.number), 0, Scalar::kNoMax, [&] { return NumberDfa(form.number, writable_); });
  if (!scalar.ok()) return WithPath(path, scalar.status());
  return scalar;
}

absl::StatusOr<int> ValueCompiler::StringScalar(const StringForm& form) {
  if (form.rules.empty()) {
    const auto any = [&]() -> absl::StatusOr<ByteDfaPtr> { return AnyString(writable_); };
    return ScalarOf(KeyOf(form), Narrow(form.min), Narrow(form.max), any);
  }
  return ScalarOf(KeyOf(form), 0, Scalar::kNoMax, [&]() -> absl::StatusOr<ByteDfaPtr> {
    LIME_ASSIGN_OR_RETURN(const CharDfa dfa, StringDfa(form));
    return dfa.ToBytes(Spelling::kJson, "", writable_);
  });
}

absl::StatusOr<int> ValueCompiler::RawString(const StringForm& form, std::string_view stop) {
  const std::string key = absl::StrCat("raw ", stop.size(), " ", std::string(stop), " ", KeyOf(form));
  return ScalarOf(key, 0, Scalar::kNoMax, [&]() -> absl::StatusOr<ByteDfaPtr> {
    if (form.rules.empty() && form.min == 0 && form.max == INT64_MAX) return TextUntil(stop, /*is_token=*/false, writable_);
    LIME_ASSIGN_OR_RETURN(const CharDfa dfa, StringDfa(form));
    return dfa.ToBytes(Spelling::kRaw, stop, writable_);
  });
}

absl::StatusOr<int> ValueCompiler::AddObject(const ObjectForm& form, const std::string& path) {
  Object object;
  std::set<std::string_view> names;
  const std::set<std::string_view> required(form.required.begin(), form.required.end());
  const auto add = [&](const std::string& name, const Schemas& schemas) {
    names.insert(name);
    object.members.push_back({.key = JsonOf(name), .value = ValueOf(schemas), .is_required = required.contains(name)});
  };
  for (const auto& [name, schemas] : form.members) add(name, schemas);
  const bool has_others = form.others_kind == Others::kSchema || form.others_kind == Others::kFree;
  for (const std::string& name : form.required) {
    if (names.contains(name)) continue;
    if (!has_others) return Invalid(path, "/required: \"", name, "\" is no property; add it to properties");
    add(name, form.others);
  }
  if (has_others) {
    absl::StatusOr<int> key = OthersKey(form);
    if (!key.ok()) return WithPath(PathTo(path, "properties"), key.status());
    object.others_key = *key;
    object.others = ValueOf(form.others);
  }
  LIME_RETURN_IF_ERROR(WithPath(path, Charge(MemoryOf(object))));
  grammar_.objects.push_back(std::move(object));
  return static_cast<int>(grammar_.objects.size()) - 1;
}

// Any name but those of the members.
absl::StatusOr<int> ValueCompiler::OthersKey(const ObjectForm& form) {
  std::vector<std::string> names = form.required;
  for (const auto& [name, schemas] : form.members) names.push_back(name);
  if (names.empty()) return StringScalar({});
  std::string key = "names";
  for (const std::string& name : names) absl::StrAppend(&key, " ", name.size(), " ", name);
  return ScalarOf(key, 0, Scalar::kNoMax, [&]() -> absl::StatusOr<ByteDfaPtr> {
    LIME_ASSIGN_OR_RETURN(const CharDfa dfa, CharDfa::AllBut(names));
    return dfa.ToBytes(Spelling::kJson, "", writable_);
  });
}

absl::StatusOr<int> ValueCompiler::AddArray(const ArrayForm& form, const std::string& path) {
  if (form.min > form.max) return Invalid(path, ": minItems is above maxItems");
  Array array{.min = Narrow(form.min), .max = Narrow(form.max)};
  for (const Schemas& item : form.prefix) array.prefix.push_back(ValueOf(item));
  if (form.has_items) array.items = ValueOf(form.items);
  LIME_RETURN_IF_ERROR(WithPath(path, Charge(static_cast<Bytes>(sizeof(Array) + 2 * sizeof(int) * array.prefix.size()))));
  grammar_.arrays.push_back(std::move(array));
  return static_cast<int>(grammar_.arrays.size()) - 1;
}

}  // namespace lime::json_schema
