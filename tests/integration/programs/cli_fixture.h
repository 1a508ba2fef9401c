// A made model for tests of the command line.
#pragma once

#include <cstring>
#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "tests/integration/models.h"
#include "tests/integration/programs/lime_process.h"

namespace lime {

class CliTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MakeModel(options_, model_).ok()); }

  // Replaces one tensor's bytes, or the header, of the model's file.
  void Patch(const std::function<void(std::string& header, std::string& data)>& change) {
    const std::string path = model_ + "/model.safetensors", file = Slurp(path);
    uint64_t size = 0;
    std::memcpy(&size, file.data(), 8);
    std::string header = file.substr(8, size), data = file.substr(8 + size);
    change(header, data);
    size = header.size();
    WriteFile(path, std::string(reinterpret_cast<char*>(&size), 8) + header + data);
  }

  Answer Score() { return Call({"score", "--model", model_, "--ids", "1,2,3", "--json"}); }

  MakeModelOptions options_;
  TempDir dir_;
  const std::string model_ = dir_ / "model";
};

}  // namespace lime
