// The file of frames beside a calibration: read as it was written, and refused where it is of another one.
#include "daemon/stores/decider_frames.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "planner/base/float_bits.h"
#include "tests/temp_dir.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

std::vector<LayerFrame> MadeFrames() {
  std::vector<LayerFrame> frames;
  for (const int32_t layer : {1, 4}) {
    LayerFrame of{.layer = layer};
    for (int i = 0; i < 6; ++i) of.frame.mean.push_back(static_cast<float>(layer) + 0.1f * static_cast<float>(i));
    for (int i = 0; i < 12; ++i) of.frame.directions.push_back(ToFloat(FromFloat<BF16>(0.3f * static_cast<float>(i - layer))));
    frames.push_back(of);
  }
  return frames;
}

Calibration For(const std::vector<LayerFrame>& frames, const std::string& hash) {
  Calibration calibration{.frames_xxh3 = hash};
  for (const LayerFrame& of : frames) {
    CopiedLayer copy{.bits = 6, .directions = 2};
    copy.unproven.layer = of.layer;
    calibration.copies.push_back(copy);
  }
  return calibration;
}

TEST(DeciderFramesTest, FramesAreReadAsTheyWereWritten) {
  const TempDir dir;
  const std::string path = FramesFile(dir / "calibration.json");
  EXPECT_EQ(path, dir / "calibration.frames");
  const std::vector<LayerFrame> frames = MadeFrames();
  const auto hash = WriteFrames(path, frames);
  ASSERT_TRUE(hash.ok()) << hash.status();
  const auto again = WriteFrames(path, frames);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, *hash) << "the same bytes";
  const auto read = ReadFrames(path, For(frames, *hash));
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->size(), frames.size());
  for (size_t i = 0; i < frames.size(); ++i) {
    EXPECT_EQ((*read)[i].layer, frames[i].layer);
    EXPECT_EQ((*read)[i].frame.mean, frames[i].frame.mean);
    EXPECT_EQ((*read)[i].frame.directions, frames[i].frame.directions);
  }
}

TEST(DeciderFramesTest, OtherFilesAreRefusedInOneSentence) {
  const TempDir dir;
  const std::string path = dir / "calibration.frames";
  const std::vector<LayerFrame> frames = MadeFrames();
  EXPECT_TRUE(absl::IsNotFound(ReadFrames(path, For(frames, "0123456789abcdef")).status()));
  const std::string hash = WriteFrames(path, frames).value();
  const auto error = [&](const Calibration& calibration) { return ReadFrames(path, calibration).status(); };
  EXPECT_TRUE(absl::IsDataLoss(error(For(frames, "0123456789abcdef")))) << "of another calibration";
  Calibration more = For(frames, hash);
  more.copies.front().directions = 3;
  EXPECT_THAT(std::string(error(more).message()), HasSubstr("has no tensor layer.1.axes of the type and shape"));
  Calibration other = For(frames, hash);
  other.copies.front().unproven.layer = 2;
  EXPECT_THAT(std::string(error(other).message()), HasSubstr("has no tensor layer.2.mean"));
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_TRUE(absl::IsDataLoss(error(For(frames, hash)))) << "a cut file";
}

TEST(DeciderFramesTest, AFileThatLimeDidNotWriteIsNotReplaced) {
  const TempDir dir;
  const std::string path = dir / "c.frames";
  EXPECT_TRUE(CheckFramesFile(path).ok());
  std::ofstream(path) << "notes";
  EXPECT_THAT(std::string(CheckFramesFile(path).message()), HasSubstr("is no file of frames that LIME wrote"));
  EXPECT_FALSE(WriteFrames(path, MadeFrames()).ok());
  std::string text;
  std::getline(std::ifstream(path), text);
  EXPECT_EQ(text, "notes");
}

}  // namespace
}  // namespace lime
