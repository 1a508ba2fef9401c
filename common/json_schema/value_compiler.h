// Turns the forms of a schema into values of a grammar.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/json_schema/framing.h"
#include "common/json_schema/grammar.h"
#include "common/json_schema/schema_reader.h"

namespace lime::json_schema {

class ValueCompiler {
 public:
  // Equal scalars of several schemas are one. REQUIRES: all arguments outlive this object.
  ValueCompiler(SchemaReader& reader, const ByteSet& writable, Grammar& grammar, std::map<std::string, int>& scalar_ids)
      : reader_(reader), writable_(writable), grammar_(grammar), scalar_ids_(scalar_ids) {}

  // Adds the value and all values inside it.
  absl::StatusOr<int> Compile(const Schemas& schemas);
  // The value outside of JSON: strings as they are, anything else as JSON; then `stop`.
  absl::StatusOr<Framing> RawValue(const Schemas& schemas, std::string_view stop);

 private:
  absl::Status Charge(Bytes bytes);  // of the grammar's memory
  absl::StatusOr<int> Texts(const std::vector<std::string>& texts);
  absl::StatusOr<int> RawString(const StringForm& form, std::string_view stop);
  int ValueOf(const Schemas& schemas);
  absl::Status Fill(int id, const Schemas& schemas);
  absl::Status Fill(const std::vector<Form>& forms, const std::string& path, Value& value);
  absl::StatusOr<int> CompileForms(const std::vector<Form>& forms, const std::string& path);
  absl::Status FillAll();
  absl::StatusOr<int> AddScalar(const Form& form, const std::string& path);
  absl::StatusOr<int> StringScalar(const StringForm& form);
  absl::StatusOr<int> AddObject(const ObjectForm& form, const std::string& path);
  absl::StatusOr<int> AddArray(const ArrayForm& form, const std::string& path);
  absl::StatusOr<int> OthersKey(const ObjectForm& form);

  template <typename MakeDfa>
  absl::StatusOr<int> ScalarOf(const std::string& key, int32_t min, int32_t max, const MakeDfa& make_dfa);

  SchemaReader& reader_;
  const ByteSet& writable_;
  Grammar& grammar_;
  std::map<std::string, int>& scalar_ids_;
  std::map<Schemas, int> values_;
  std::deque<std::pair<int, Schemas>> todo_;
};

}  // namespace lime::json_schema
