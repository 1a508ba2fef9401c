// A small model, and a block store prepared from it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "daemon/stores/block_store.h"
#include "daemon/weights/checkpoint.h"
#include "testbed/make_model/make_model.h"
#include "tests/temp_dir.h"

namespace lime {

namespace fs = std::filesystem;

// A folder in memory if the system has one: the tests sync hundreds of stores.
inline std::string MemoryFolder() {
  return fs::is_directory("/dev/shm") ? "/dev/shm" : fs::temp_directory_path().string();
}

inline std::string ReadRange(const CheckpointFile& file, int64_t offset, Bytes bytes) {
  std::ifstream in(file.path, std::ios::binary);
  std::string data(static_cast<size_t>(bytes), '\0');
  in.seekg(offset).read(data.data(), bytes);
  EXPECT_EQ(in.gcount(), bytes) << file.path;
  return data;
}

inline std::string TensorBytesOf(const Checkpoint& checkpoint, const std::string& name) {
  const TensorLocation& at = checkpoint.location(name);
  return ReadRange(checkpoint.files()[static_cast<size_t>(at.file)], at.offset, at.bytes);
}

// Every name and content under a folder.
inline std::map<std::string, std::string> Contents(const std::string& dir) {
  std::map<std::string, std::string> contents;
  for (const fs::directory_entry& entry : fs::directory_iterator(dir)) {
    std::ifstream in(entry.path(), std::ios::binary);
    contents[entry.path().filename()] = {std::istreambuf_iterator<char>(in), {}};
  }
  return contents;
}

class PreparedTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(MakeModel(options_, model_).ok()); }
  std::string InStore(const std::string& name) const { return store_ + "/" + name; }
  void Prepare() {
    const auto report = PrepareBlockStore(model_, store_);
    ASSERT_TRUE(report.ok()) << report.status();
  }
  // Changes one byte of a file of the store.
  void Flip(const std::string& name, int64_t offset) const {
    std::fstream file(InStore(name), std::ios::in | std::ios::out | std::ios::binary);
    char byte = 0;
    file.seekg(offset).read(&byte, 1);
    byte = static_cast<char>(byte ^ 0x10);
    file.seekp(offset).write(&byte, 1);
  }

  MakeModelOptions options_;
  TempDir dir_{MemoryFolder()};
  const std::string model_ = dir_.file("model"), store_ = dir_.file("store");
};

}  // namespace lime
