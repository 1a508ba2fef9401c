// Copies of deciders in files: hostile headers and numbers are refused by name.
#include "daemon/formats/decider_file.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace lime {
namespace {

using ::testing::HasSubstr;

constexpr DeciderShape kShape{.rows = 3, .cols = 40, .directions = 2, .bits = 5};

SafetensorsHeader HeaderOf(const DeciderShape& shape) {
  SafetensorsHeader header;
  int64_t offset = 4096;
  for (size_t part = 0; part < kDeciderParts; ++part) {
    const DeciderTensor tensor = TensorOf(static_cast<DeciderPart>(part), shape);
    SafetensorsTensor entry{.name = tensor.name, .info = {.dtype = tensor.dtype, .shape = tensor.shape}, .offset = offset};
    entry.info.bytes = ElementBytes(tensor.dtype);
    for (const int64_t size : tensor.shape) entry.info.bytes *= size;
    header.tensors.push_back(entry);
    offset += 4096;
  }
  return header;
}

TEST(DeciderFileTest, BitsAndDirectionsComeFromTheShapes) {
  for (int bits = kLeastCopyBits; bits <= kMostCopyBits; ++bits) {
    DeciderShape shape = kShape;
    shape.bits = bits;
    const auto file = FindDecider(HeaderOf(shape), 3, 40, "f");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->has_value());
    EXPECT_EQ((*file)->shape, shape);
    EXPECT_EQ((*file)->bytes(), 3 * 8 * bits + 3 * 36 + 3 * 2 + 40 * 4 + 2 * 40 * 2);
  }
  EXPECT_FALSE(FindDecider({}, 3, 40, "f")->has_value());
}

TEST(DeciderFileTest, HostileHeadersAreRefusedByName) {
  const auto refused = [](const std::function<void(SafetensorsHeader&)>& change) {
    SafetensorsHeader header = HeaderOf(kShape);
    change(header);
    const auto file = FindDecider(header, 3, 40, "f");
    EXPECT_FALSE(file.ok());
    return std::string(file.status().message());
  };
  for (size_t part = 0; part < kDeciderParts; ++part) {
    SCOPED_TRACE(part);
    EXPECT_THAT(refused([&](auto& header) { header.tensors.erase(header.tensors.begin() + static_cast<int64_t>(part)); }),
                HasSubstr("f: "));
    EXPECT_THAT(refused([&](auto& header) { header.tensors[part].info.shape.back() += 1; }), HasSubstr("f: "));
    EXPECT_THAT(refused([&](auto& header) { header.tensors[part].info.dtype = DType::kI64; }), HasSubstr("has not the type and shape"));
    EXPECT_THAT(refused([&](auto& header) { header.tensors[part].offset += 64; }), HasSubstr("not at a multiple of 4096"));
    EXPECT_THAT(refused([&](auto& header) { header.tensors[part].info.shape = {}; }), HasSubstr("f: "));
  }
  EXPECT_FALSE(FindDecider(HeaderOf(kShape), 4, 40, "f").ok()) << "another model";
  EXPECT_FALSE(FindDecider(HeaderOf(kShape), 3, 41, "f").ok());
}

TEST(DeciderFileTest, NumbersThatNoCopyHasAreRefused) {
  const std::vector<float> weights(120, 0.5f);
  const auto copy = DeciderCopy::Create({.rows = 3, .cols = 40, .weights = weights, .bits = 5},
                                        {.mean = std::vector<float>(40, 0.1f), .directions = std::vector<float>(80, 0.2f)});
  ASSERT_TRUE(copy.ok());
  const DeciderView view = copy->view();
  std::vector<uint8_t> codes(view.codes, view.codes + 3 * CodeRowBytes(40, 5));
  std::vector<int8_t> kept(view.kept, view.kept + 6);
  const auto parse = [&](const std::vector<CopiedRow>& rows, const std::vector<float>& mean, const std::vector<BF16>& axes) {
    return ParseDecider(kShape,
                        {std::as_bytes(std::span(codes)), std::as_bytes(std::span(rows)), std::as_bytes(std::span(kept)),
                         std::as_bytes(std::span(mean)), std::as_bytes(std::span(axes))},
                        "f");
  };
  const std::vector<CopiedRow> rows(view.of_rows, view.of_rows + 3);
  const std::vector<float> mean(view.mean, view.mean + 40);
  const std::vector<BF16> axes(view.axes, view.axes + 80);
  const auto read = parse(rows, mean, axes);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->axes_norm, view.axes_norm);
  EXPECT_EQ(read->mean_norm, view.mean_norm);
  EXPECT_FALSE(parse({rows.begin(), rows.end() - 1}, mean, axes).ok());
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  const auto with = [&](float CopiedRow::*field, float value) {
    std::vector<CopiedRow> changed = rows;
    changed[1].*field = value;
    return std::string(parse(changed, mean, axes).status().message());
  };
  for (float CopiedRow::*field : {&CopiedRow::weight, &CopiedRow::copy, &CopiedRow::error, &CopiedRow::kept, &CopiedRow::kept_error,
                                  &CopiedRow::subnormal, &CopiedRow::scale, &CopiedRow::kept_scale}) {
    EXPECT_THAT(with(field, kNan), HasSubstr("f: row 1 of __lime_decider__.rows has a scale or bound"));
    EXPECT_THAT(with(field, -0.125f), HasSubstr("row 1"));
  }
  EXPECT_THAT(with(&CopiedRow::mean_product, kNan), HasSubstr("row 1"));
  EXPECT_EQ(with(&CopiedRow::mean_product, -kInfinity), "");
  EXPECT_THAT(with(&CopiedRow::scale, kInfinity), HasSubstr("row 1"));
  EXPECT_THAT(with(&CopiedRow::scale, 1.0000001f), HasSubstr("row 1")) << "products of codes would not be exact";
  EXPECT_EQ(with(&CopiedRow::error, kInfinity), "") << "it proves nothing";
  std::vector<float> no_mean = mean;
  no_mean[7] = kInfinity;
  EXPECT_THAT(std::string(parse(rows, no_mean, axes).status().message()), HasSubstr("not finite"));
  std::vector<BF16> no_axes = axes;
  no_axes[7] = FromFloat<BF16>(kNan);
  EXPECT_THAT(std::string(parse(rows, mean, no_axes).status().message()), HasSubstr("not finite"));
}

}  // namespace
}  // namespace lime
