#include "common/json_schema/schema_reader.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "common/json_schema/keywords.h"

namespace lime::json_schema {
namespace {

using Others = ObjectForm::Others;

constexpr size_t kMaxForms = 4096;
constexpr int64_t kComparisons = 256;  // of names, as long as making one part
constexpr size_t kMaxReferences = 64;  // inside each other, without a value between them

int64_t PartsOf(std::span<const Form> forms) {
  int64_t parts = 0;
  for (const Form& form : forms)
    parts += 1 + std::ssize(form.object.members) + std::ssize(form.object.required) + std::ssize(form.array.prefix) +
             std::ssize(form.string.rules);
  return parts;
}

absl::Status TooManyParts(const std::string& path) {
  return Invalid(path, ": the alternatives up to here have more than ", kMaxParts, " properties, items and rules; make the schema smaller");
}

// What two lists allow together. `parts_left`: that may still be made.
absl::StatusOr<std::vector<Form>> IntersectAll(const std::vector<Form>& a, const std::vector<Form>& b, const std::string& path,
                                               int64_t& parts_left) {
  std::vector<Form> both;
  for (const Form& left : a) {
    for (const Form& right : b) {
      absl::StatusOr<std::optional<Form>> form = Intersect(left, right);
      if (!form.ok()) return Invalid(path, ": ", std::string(form.status().message()));
      if (!*form) continue;
      both.push_back(**std::move(form));
      parts_left -= PartsOf({&both.back(), 1});
      if (both.size() > kMaxForms) return Invalid(path, ": has more than ", kMaxForms, " alternatives; make the schema smaller");
      if (parts_left < 0) return TooManyParts(path);
    }
  }
  return both;
}

absl::StatusOr<std::string> UnescapePointer(std::string_view part) {
  std::string name;
  for (size_t i = 0; i < part.size(); ++i) {
    if (part[i] != '~') {
      name += part[i];
      continue;
    }
    if (++i == part.size() || (part[i] != '0' && part[i] != '1')) return Invalid("~ without 0 or 1");
    name += part[i] == '0' ? '~' : '/';
  }
  return name;
}

bool IsLocal(const Json& reference) {
  if (!reference.is_string()) return false;
  const auto& text = reference.get_ref<const std::string&>();
  return text == "#" || text.starts_with("#/");
}

// Beside a reference.
bool HasAnnotationsAlone(const Json& schema) {
  for (const auto& [name, value] : schema.items()) {
    if (name != "$ref" && !IsAnnotation(name)) return false;
  }
  return true;
}

const Json* ItemAt(const Json& json, const std::string& name) {
  if (json.is_object()) {
    const auto found = json.find(name);
    return found == json.end() ? nullptr : &*found;
  }
  const bool is_index = !name.empty() && name.size() < 7 && name.find_first_not_of("0123456789") == std::string::npos;
  if (!json.is_array() || !is_index || std::stoul(name) >= json.size()) return nullptr;
  return &json[std::stoul(name)];
}

}  // namespace

SchemaReader::SchemaReader(const Json& root, SchemaWork& work) : root_(root), work_(work) {
  paths_[&root] = "#";
}

std::string SchemaReader::PathOf(const Schemas& schemas) const {
  return schemas.empty() ? "#" : paths_.at(schemas.back());
}

absl::StatusOr<std::vector<Form>> SchemaReader::FormsOf(const Schemas& schemas) {
  LIME_ASSIGN_OR_RETURN(Forms forms, AllOf(schemas));
  const bool has_shown = std::ranges::any_of(forms, [](const Form& form) { return !form.is_hidden; });
  if (has_shown) std::erase_if(forms, [](const Form& form) { return form.is_hidden; });
  return forms;
}

absl::StatusOr<SchemaReader::Forms> SchemaReader::AllOf(const Schemas& schemas) {
  if (schemas.empty()) return AnyValue();
  Forms forms;
  for (size_t i = 0; i < schemas.size(); ++i) {
    LIME_ASSIGN_OR_RETURN(const Forms* read, Read(*schemas[i]));
    if (i == 0) {
      LIME_RETURN_IF_ERROR(Charge(*read, paths_.at(schemas[i])));
      forms = *read;
      continue;
    }
    LIME_ASSIGN_OR_RETURN(forms, IntersectAll(forms, *read, paths_.at(schemas[i]), work_.parts_left));
  }
  return forms;
}

absl::StatusOr<const SchemaReader::Forms*> SchemaReader::Read(const Json& schema) {
  const auto found = read_.find(&schema);
  if (found != read_.end()) return &found->second;
  const std::string path = paths_.at(&schema);
  if (reading_.size() >= kMaxReferences) return Invalid(path, ": more than ", kMaxReferences, " schemas refer to each other");
  if (!reading_.insert(&schema).second) return Invalid(path, ": refers to itself without a value between");
  absl::StatusOr<Forms> forms = schema.is_boolean() ? (schema.get<bool>() ? AnyValue() : Forms()) : ReadObject(schema, path);
  reading_.erase(&schema);
  if (!forms.ok()) return forms.status();
  LIME_RETURN_IF_ERROR(Charge(*forms, path));
  return &read_.emplace(&schema, *std::move(forms)).first->second;
}

absl::Status SchemaReader::Charge(const Forms& forms, const std::string& path) {
  work_.parts_left -= PartsOf(forms);
  return work_.parts_left < 0 ? TooManyParts(path) : absl::OkStatus();
}

absl::StatusOr<SchemaReader::Forms> SchemaReader::ReadObject(const Json& schema, const std::string& path) {
  if (!schema.is_object()) return Invalid(path, ": is neither a schema nor true or false");
  LIME_RETURN_IF_ERROR(CheckKeywords(schema, path));
  LIME_ASSIGN_OR_RETURN(Forms forms, ReadTypes(schema, path));
  if (schema.contains("const") || schema.contains("enum")) {
    LIME_ASSIGN_OR_RETURN(const Forms literals, ReadLiterals(schema, path));
    LIME_ASSIGN_OR_RETURN(forms, IntersectAll(literals, forms, path, work_.parts_left));
  }
  LIME_RETURN_IF_ERROR(ReadReference(schema, path, forms));
  LIME_RETURN_IF_ERROR(ReadBranches(schema, path, forms));
  return forms;
}

absl::Status SchemaReader::CheckKeywords(const Json& schema, const std::string& path) const {
  for (const auto& [name, value] : schema.items()) {
    if (!IsKeyword(name)) return Invalid(PathTo(path, name), ": this keyword is not supported; remove it");
  }
  return absl::OkStatus();
}

absl::StatusOr<SchemaReader::Forms> SchemaReader::ReadTypes(const Json& schema, const std::string& path) {
  LIME_ASSIGN_OR_RETURN(Forms forms, TypesOf(schema, path));
  for (Form& form : forms) LIME_RETURN_IF_ERROR(ReadOwn(schema, path, form));
  const auto is_said = [&](const Form& form) { return HasKeywordOf(form.kind, schema); };
  if (!schema.contains("type") && std::ranges::any_of(forms, is_said)) {
    for (Form& form : forms) form.is_hidden = !is_said(form);
  }
  return forms;
}

absl::Status SchemaReader::ReadOwn(const Json& schema, const std::string& path, Form& form) {
  switch (form.kind) {
    case Kind::kString:
      return ReadString(schema, path, form.string);
    case Kind::kNumber:
      return ReadNumber(schema, path, form.number);
    case Kind::kArray:
      return ReadArray(schema, path, form.array);
    case Kind::kObject:
      return ReadObjectKeywords(schema, path, form.object);
    case Kind::kNull:
    case Kind::kBoolean:
      break;
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::ReadString(const Json& schema, const std::string& path, StringForm& form) {
  LIME_RETURN_IF_ERROR(ReadCount(schema, "minLength", path, form.min));
  LIME_RETURN_IF_ERROR(ReadCount(schema, "maxLength", path, form.max));
  LIME_RETURN_IF_ERROR(ReadRule(schema, "pattern", path, work_.patterns_left, form.rules));
  return ReadRule(schema, "format", path, work_.patterns_left, form.rules);
}

absl::Status SchemaReader::ReadNumber(const Json& schema, const std::string& path, NumberRange& range) const {
  LIME_RETURN_IF_ERROR(ReadBound(schema, "minimum", path, /*sign=*/1, range.min));
  LIME_RETURN_IF_ERROR(ReadBound(schema, "exclusiveMinimum", path, /*sign=*/1, range.min));
  LIME_RETURN_IF_ERROR(ReadBound(schema, "maximum", path, /*sign=*/-1, range.max));
  LIME_RETURN_IF_ERROR(ReadBound(schema, "exclusiveMaximum", path, /*sign=*/-1, range.max));
  return ReadMultiple(schema, path, range.multiple_of);
}

absl::Status SchemaReader::ReadArray(const Json& schema, const std::string& path, ArrayForm& form) {
  LIME_RETURN_IF_ERROR(ReadCount(schema, "minItems", path, form.min));
  LIME_RETURN_IF_ERROR(ReadCount(schema, "maxItems", path, form.max));
  if (const auto prefix = schema.find("prefixItems"); prefix != schema.end()) {
    const std::string at = PathTo(path, "prefixItems");
    if (!prefix->is_array()) return Invalid(at, ": is not a list");
    for (size_t i = 0; i < prefix->size(); ++i) {
      LIME_ASSIGN_OR_RETURN(Schemas item, Child((*prefix)[i], PathTo(at, std::to_string(i))));
      form.prefix.push_back(std::move(item));
    }
  }
  const auto items = schema.find("items");
  if (items == schema.end()) return absl::OkStatus();
  if (items->is_array()) return Invalid(PathTo(path, "items"), ": is a list; name it prefixItems");
  form.has_items = !(items->is_boolean() && !items->get<bool>());
  if (!form.has_items) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(form.items, Child(*items, PathTo(path, "items")));
  return absl::OkStatus();
}

absl::Status SchemaReader::ReadObjectKeywords(const Json& schema, const std::string& path, ObjectForm& form) {
  if (schema.contains("type") || HasKeywordOf(Kind::kObject, schema)) form.others_kind = Others::kUnsaid;
  if (const auto properties = schema.find("properties"); properties != schema.end()) {
    const std::string at = PathTo(path, "properties");
    if (!properties->is_object()) return Invalid(at, ": is not an object");
    for (const auto& [name, property] : properties->items()) {
      LIME_ASSIGN_OR_RETURN(Schemas member, Child(property, PathTo(at, name)));
      form.members.emplace_back(name, std::move(member));
    }
  }
  LIME_RETURN_IF_ERROR(ReadRequired(schema, path, form.required));
  const auto others = schema.find("additionalProperties");
  if (others == schema.end()) return absl::OkStatus();
  form.others_kind = others->is_boolean() && !others->get<bool>() ? Others::kNone : Others::kSchema;
  if (form.others_kind == Others::kNone) return absl::OkStatus();
  LIME_ASSIGN_OR_RETURN(form.others, Child(*others, PathTo(path, "additionalProperties")));
  return absl::OkStatus();
}

absl::StatusOr<SchemaReader::Forms> SchemaReader::ReadLiterals(const Json& schema, const std::string& path) {
  Forms forms;
  if (const auto value = schema.find("const"); value != schema.end()) forms.push_back(OfLiteral(*value, PathTo(path, "const")));
  const auto values = schema.find("enum");
  if (values == schema.end()) return forms;
  const std::string at = PathTo(path, "enum");
  if (!values->is_array() || values->empty()) return Invalid(at, ": is not a list of values");
  if (values->size() > kMaxForms) return Invalid(at, ": has more than ", kMaxForms, " values");
  Forms listed;
  for (size_t i = 0; i < values->size(); ++i) listed.push_back(OfLiteral((*values)[i], PathTo(at, std::to_string(i))));
  return forms.empty() ? listed : IntersectAll(listed, forms, at, work_.parts_left);
}

// Of a list or an object: the form with exactly these parts.
Form SchemaReader::OfLiteral(const Json& value, const std::string& path) {
  Form form;
  if (value.is_array()) {
    form.kind = Kind::kArray;
    for (size_t i = 0; i < value.size(); ++i) form.array.prefix.push_back(ConstSchema(value[i], PathTo(path, std::to_string(i))));
    form.array.has_items = false;
    form.array.min = form.array.max = static_cast<int64_t>(value.size());
    return form;
  }
  if (value.is_object()) {
    form.kind = Kind::kObject;
    form.object.others_kind = Others::kNone;
    for (const auto& [name, member] : value.items()) {
      form.object.members.emplace_back(name, ConstSchema(member, PathTo(path, name)));
      form.object.required.push_back(name);
    }
    return form;
  }
  form.kind = value.is_null() ? Kind::kNull : value.is_boolean() ? Kind::kBoolean : value.is_string() ? Kind::kString : Kind::kNumber;
  if (!value.is_null()) form.literal = value;
  return form;
}

Schemas SchemaReader::ConstSchema(const Json& value, const std::string& path) {
  const Json& schema = made_.emplace_back(Json{{"const", value}});
  paths_[&schema] = path;
  return {&schema};
}

absl::StatusOr<Schemas> SchemaReader::Child(const Json& schema, const std::string& path) {
  if (!schema.is_object() && !schema.is_boolean()) return Invalid(path, ": is neither a schema nor true or false");
  if (schema.is_boolean() && schema.get<bool>()) return Schemas();
  paths_.try_emplace(&schema, path);
  return Schemas{&Resolve(schema)};
}

// The schema of a local reference; null if there is none.
const Json* SchemaReader::Find(std::string_view reference) const {
  const Json* target = &root_;
  for (size_t begin = 2; begin <= reference.size() && target != nullptr;) {
    const size_t end = std::min(reference.find('/', begin), reference.size());
    const absl::StatusOr<std::string> name = UnescapePointer(reference.substr(begin, end - begin));
    target = name.ok() ? ItemAt(*target, *name) : nullptr;
    begin = end + 1;
  }
  return target;
}

// If a schema only refers to another one, the other one, so that a value is made once. Otherwise,
// and for references that are wrong, the schema itself.
const Json& SchemaReader::Resolve(const Json& schema) {
  const Json* at = &schema;
  for (size_t i = 0; i < kMaxReferences; ++i) {
    const auto reference = at->find("$ref");
    if (reference == at->end() || !IsLocal(*reference) || !HasAnnotationsAlone(*at)) break;
    const auto& text = reference->get_ref<const std::string&>();
    const Json* const target = Find(text);
    if (target == nullptr) break;
    paths_.try_emplace(target, text);
    at = target;
  }
  return *at;
}

absl::Status SchemaReader::ReadReference(const Json& schema, const std::string& path, Forms& forms) {
  const auto reference = schema.find("$ref");
  if (reference == schema.end()) return absl::OkStatus();
  const std::string at = PathTo(path, "$ref");
  if (!reference->is_string()) return Invalid(at, ": is not a string");
  if (!IsLocal(*reference)) return Invalid(at, ": only references into this schema (#/...) are supported");
  const auto& text = reference->get_ref<const std::string&>();
  const Json* const target = Find(text);
  if (target == nullptr) return Invalid(at, ": there is no ", text);
  paths_.try_emplace(target, text);
  LIME_ASSIGN_OR_RETURN(const Forms* read, Read(*target));
  LIME_ASSIGN_OR_RETURN(forms, IntersectAll(forms, *read, at, work_.parts_left));
  return absl::OkStatus();
}

absl::Status SchemaReader::ReadBranches(const Json& schema, const std::string& path, Forms& forms) {
  for (const char* keyword : {"allOf", "anyOf", "oneOf"}) {
    const auto branches = schema.find(keyword);
    if (branches == schema.end()) continue;
    const std::string at = PathTo(path, keyword);
    if (!branches->is_array() || branches->empty()) return Invalid(at, ": is not a list of schemas");
    if (keyword == std::string_view("oneOf")) {
      LIME_ASSIGN_OR_RETURN(forms, OneOf(*branches, at, forms));
      continue;
    }
    Forms either;
    for (size_t i = 0; i < branches->size(); ++i) {
      LIME_ASSIGN_OR_RETURN(const Schemas branch, Child((*branches)[i], PathTo(at, std::to_string(i))));
      LIME_ASSIGN_OR_RETURN(Forms read, AllOf(branch));
      if (keyword == std::string_view("allOf")) {
        LIME_ASSIGN_OR_RETURN(forms, IntersectAll(forms, read, at, work_.parts_left));
      } else {
        std::ranges::move(read, std::back_inserter(either));
      }
    }
    if (keyword == std::string_view("allOf")) continue;
    LIME_ASSIGN_OR_RETURN(forms, IntersectAll(forms, either, at, work_.parts_left));
  }
  return absl::OkStatus();
}

absl::StatusOr<SchemaReader::Forms> SchemaReader::OneOf(const Json& branches, const std::string& path, const Forms& forms) {
  std::vector<Forms> all;
  for (size_t i = 0; i < branches.size(); ++i) {
    LIME_ASSIGN_OR_RETURN(const Schemas branch, Child(branches[i], PathTo(path, std::to_string(i))));
    LIME_ASSIGN_OR_RETURN(const Forms read, AllOf(branch));
    LIME_ASSIGN_OR_RETURN(Forms both, IntersectAll(forms, read, path, work_.parts_left));
    for (const Forms& before : all) {
      for (const Form& a : before) {
        for (const Form& b : both) {
          if ((a.is_hidden && b.is_hidden) || Exclude(a, b, 0)) continue;
          return Invalid(path, ": branch ", i,
                         " and one before it may both hold; tell them apart by type, const or a required const property, or use anyOf");
        }
      }
    }
    if (work_.parts_left < 0) return TooManyParts(path);
    all.push_back(std::move(both));
  }
  Forms either;
  for (Forms& branch : all) std::ranges::move(branch, std::back_inserter(either));
  if (either.size() > kMaxForms) return Invalid(path, ": has more than ", kMaxForms, " alternatives");
  return either;
}

// Whether no value has both forms.
bool SchemaReader::Exclude(const Form& a, const Form& b, int depth) {
  constexpr int kMaxMemberDepth = 2;
  if (a.kind != b.kind) return true;
  if (a.literal || b.literal) return a.literal ? !Matches(*a.literal, b) : !Matches(*b.literal, a);
  if (a.kind != Kind::kObject || depth > kMaxMemberDepth) return false;
  work_.parts_left -= std::ssize(a.object.members) * std::ssize(b.object.members) / kComparisons;
  if (work_.parts_left < 0) return true;  // the caller refuses the schema
  for (const auto& [name, schemas] : a.object.members) {
    const Schemas* other = b.object.Find(name);
    if (other == nullptr || !(a.object.Requires(name) || b.object.Requires(name))) continue;
    if (MembersExclude(schemas, *other, depth + 1)) return true;
  }
  return false;
}

// A member that cannot be read here, as one that is being read, excludes nothing.
bool SchemaReader::MembersExclude(const Schemas& a, const Schemas& b, int depth) {
  Forms of_a, of_b;
  const Forms* const left = FormsIn(a, of_a);
  const Forms* const right = FormsIn(b, of_b);
  if (left == nullptr || right == nullptr) return false;
  for (const Form& one : *left) {
    for (const Form& two : *right) {
      if (!Exclude(one, two, depth)) return false;
    }
  }
  return true;
}

// Without a copy if it is one schema; otherwise in `buffer`. Null: an error.
const SchemaReader::Forms* SchemaReader::FormsIn(const Schemas& schemas, Forms& buffer) {
  if (schemas.size() == 1) return Read(*schemas[0]).value_or(nullptr);
  absl::StatusOr<Forms> forms = AllOf(schemas);
  if (!forms.ok()) return nullptr;
  buffer = *std::move(forms);
  return &buffer;
}

}  // namespace lime::json_schema
