// The keywords of JSON Schema that have a simple value. Errors begin with the place of the keyword.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/json_schema/form.h"

namespace lime::json_schema {

// "#/properties/a": a place in the schema, as a JSON pointer.
std::string PathTo(const std::string& path, std::string_view name);

bool IsAnnotation(std::string_view name);
// Supported, or an annotation.
bool IsKeyword(std::string_view name);
// Whether the schema says something about values of this kind alone.
bool HasKeywordOf(Kind kind, const Json& schema);

std::vector<Form> AnyValue();
// One form for each type that the schema allows, without other keywords.
absl::StatusOr<std::vector<Form>> TypesOf(const Json& schema, const std::string& path);

absl::Status ReadCount(const Json& schema, const char* name, const std::string& path, int64_t& count);
// Sets `bound` if the schema's one is tighter. `sign`: 1 if a larger bound is tighter, otherwise
// -1.
absl::Status ReadBound(const Json& schema, const char* name, const std::string& path, int sign, std::optional<NumberBound>& bound);
absl::Status ReadMultiple(const Json& schema, const std::string& path, int64_t& multiple);
absl::Status ReadRequired(const Json& schema, const std::string& path, std::vector<std::string>& required);
// The pattern or format that the schema has, if any. `work_left`: as for CompilePattern.
absl::Status ReadRule(const Json& schema, const char* name, const std::string& path, int64_t& work_left,
                      std::vector<StringForm::Rule>& rules);

}  // namespace lime::json_schema
