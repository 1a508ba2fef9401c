#include "coordinator/text/tools/tool_request.h"

#include <gtest/gtest.h>

namespace lime {
namespace {

using Json = nlohmann::ordered_json;

// "TOOL CODE FIELD", or "" if there is no fault.
std::string Read(const std::string& tools, ToolFunctions& functions, const SchemaCheck& check = nullptr) {
  const auto fault = ReadFunctions(Json::parse(tools), check, functions);
  if (!fault.has_value()) return "";
  EXPECT_FALSE(fault->message.empty() || fault->message.ends_with('.')) << fault->message;
  return std::to_string(fault->tool) + " " + fault->code + " " + fault->field;
}

std::string FaultOf(const std::string& tools, const SchemaCheck& check = nullptr) {
  ToolFunctions functions;
  return Read(tools, functions, check);
}

std::string Tool(const std::string& fields) {
  return R"({"type": "function", "function": {)" + fields + "}}";
}

TEST(ToolRequestTest, ToolsBecomeFunctions) {
  ToolFunctions functions;
  const std::string first = R"("name": "a", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}})";
  EXPECT_EQ(Read("[" + Tool(first) + ", " + Tool(R"("name": "b.c_d-1")") + "]", functions), "");
  ASSERT_EQ(functions.size(), 2u);
  EXPECT_EQ(functions[0].name, "a");
  EXPECT_EQ(functions[0].parameters["properties"]["x"]["type"], "string");
  EXPECT_EQ(functions[1].parameters, Json::parse(R"({"type": "object", "properties": {}})"));
  EXPECT_EQ(FindFunction(functions, "b.c_d-1"), &functions[1]);
  EXPECT_EQ(FindFunction(functions, "z"), nullptr);
}

TEST(ToolRequestTest, ParametersWithoutATypeAreAnObject) {
  ToolFunctions functions;
  EXPECT_EQ(Read("[" + Tool(R"("name": "a", "parameters": {"required": ["x"]})") + "]", functions), "");
  EXPECT_EQ(functions[0].parameters, Json::parse(R"({"required": ["x"], "type": "object"})"));
}

TEST(ToolRequestTest, FaultsNameTheField) {
  for (const std::string& name : {std::string(), std::string("a b"), std::string("é"), std::string(65, 'n')}) {
    EXPECT_EQ(FaultOf("[" + Tool("\"name\": \"" + name + "\"") + "]"), "0 invalid_value function.name") << name;
  }
  EXPECT_EQ(FaultOf("[" + Tool("\"name\": \"" + std::string(64, 'n') + "\"") + "]"), "");
  EXPECT_EQ(FaultOf("[" + Tool(R"("name": "a", "parameters": {"type": "string"})") + "]"), "0 invalid_json_schema function.parameters");
  const std::string a = Tool(R"("name": "a")");
  EXPECT_EQ(FaultOf("[" + a + ", " + a + "]"), "1 invalid_value function.name");
}

TEST(ToolRequestTest, TheSchemaCheckSeesEverySchema) {
  int seen = 0;
  const SchemaCheck check = [&](const Json& parameters) -> absl::Status {
    ++seen;
    return parameters.contains("not") ? Invalid("#/not: is not supported") : absl::OkStatus();
  };
  EXPECT_EQ(FaultOf("[" + Tool(R"("name": "a")") + ", " + Tool(R"("name": "b", "parameters": {"not": {}})") + "]", check),
            "1 invalid_json_schema function.parameters");
  EXPECT_EQ(seen, 2);
}

}  // namespace
}  // namespace lime
