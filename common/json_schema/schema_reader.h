// Reads a schema: its keywords become forms.
#pragma once

#include <deque>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/json_schema/form.h"
#include "common/json_schema/schema_work.h"

namespace lime::json_schema {

// An error begins with the place in the schema, as in "#/properties/a/format: ...".
//
// REQUIRES: the arguments outlive this object.
class SchemaReader {
 public:
  SchemaReader(const Json& root, SchemaWork& work);

  // The forms of a value to which all of `schemas` apply. Hidden ones only if there are no others.
  absl::StatusOr<std::vector<Form>> FormsOf(const Schemas& schemas);

  // Where a schema stands; of several that hold together, the last one read.
  std::string PathOf(const Schemas& schemas) const;

 private:
  using Forms = std::vector<Form>;

  absl::Status Charge(const Forms& forms, const std::string& path);
  absl::StatusOr<Forms> AllOf(const Schemas& schemas);
  absl::StatusOr<const Forms*> Read(const Json& schema);
  absl::StatusOr<Forms> ReadObject(const Json& schema, const std::string& path);
  absl::Status CheckKeywords(const Json& schema, const std::string& path) const;
  absl::StatusOr<Forms> ReadTypes(const Json& schema, const std::string& path);
  absl::Status ReadOwn(const Json& schema, const std::string& path, Form& form);
  absl::Status ReadString(const Json& schema, const std::string& path, StringForm& form);
  absl::Status ReadNumber(const Json& schema, const std::string& path, NumberRange& range) const;
  absl::Status ReadArray(const Json& schema, const std::string& path, ArrayForm& form);
  absl::Status ReadObjectKeywords(const Json& schema, const std::string& path, ObjectForm& form);
  absl::StatusOr<Forms> ReadLiterals(const Json& schema, const std::string& path);
  absl::Status ReadReference(const Json& schema, const std::string& path, Forms& forms);
  absl::Status ReadBranches(const Json& schema, const std::string& path, Forms& forms);
  absl::StatusOr<Forms> OneOf(const Json& branches, const std::string& path, const Forms& forms);
  Form OfLiteral(const Json& value, const std::string& path);
  Schemas ConstSchema(const Json& value, const std::string& path);
  absl::StatusOr<Schemas> Child(const Json& schema, const std::string& path);
  const Json* Find(std::string_view reference) const;
  const Json& Resolve(const Json& schema);
  bool Exclude(const Form& a, const Form& b, int depth);
  bool MembersExclude(const Schemas& a, const Schemas& b, int depth);
  const Forms* FormsIn(const Schemas& schemas, Forms& buffer);

  const Json& root_;
  SchemaWork& work_;
  std::map<const Json*, std::string> paths_;
  std::map<const Json*, Forms> read_;
  std::set<const Json*> reading_;
  std::deque<Json> made_;  // schemas of the parts of constants
};

}  // namespace lime::json_schema
