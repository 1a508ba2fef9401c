// Predictors in files: what is written is read, and hostile headers, records and numbers are refused by name.
#include "daemon/formats/predictor_file.h"

#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "daemon/stores/predictor_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "planner/base/float_bits.h"

namespace lime {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

const std::vector<PredictorShape> kLayers = {{.layer = 0, .neurons = 3, .cols = 8, .dtype = DType::kBF16},
                                             {.layer = 2, .neurons = 5, .cols = 8, .dtype = DType::kBF16}};

PredictorLayer LayerOf(PredictorShape shape, int64_t rank) {
  shape.rank = rank;
  PredictorLayer layer{.shape = shape};
  float value = 1;
  for (size_t part = 0; part < kPredictorParts; ++part) {
    int64_t numbers = 1;
    for (const int64_t size : PredictorTensorShape(shape, static_cast<PredictorPart>(part))) numbers *= size;
    for (int64_t i = 0; i < numbers; ++i) {
      const BF16 number = FromFloat<BF16>(value += 1);
      const auto bytes = std::as_bytes(std::span(&number, 1));
      layer.parts[part].insert(layer.parts[part].end(), bytes.begin(), bytes.end());
    }
  }
  return layer;
}

PredictorRecord RecordOf(const std::vector<PredictorLayer>& layers) {
  PredictorRecord record{.model = "key", .text_xxh3 = "0123456789abcdef", .tokens = 100, .held_out = 10, .context = 50, .seed = 7};
  for (const PredictorLayer& layer : layers) {
    record.layers.push_back({.layer = layer.shape.layer,
                             .neurons = static_cast<int32_t>(layer.shape.neurons),
                             .rank = static_cast<int32_t>(layer.shape.rank),
                             .xxh3 = PredictorLayerHash(layer.bytes()),
                             .false_negatives = 0.05,
                             .false_positives = 0.07,
                             .active = 0.03,
                             .predicted = 0.1});
  }
  return record;
}

const std::vector<PredictorLayer> kWritten = {LayerOf(kLayers[0], 2), LayerOf(kLayers[1], 4)};

absl::StatusOr<SafetensorsHeader> HeaderOf(const std::string& file) {
  const auto bytes = std::as_bytes(std::span(file));
  const auto length = ParseSafetensorsLength(bytes, std::ssize(bytes), "f");
  if (!length.ok()) return length.status();
  return ParseSafetensorsHeader(std::string_view(file).substr(8, static_cast<size_t>(*length)), std::ssize(bytes), "f");
}

TEST(PredictorFileTest, WhatIsWrittenIsRead) {
  const PredictorRecord record = RecordOf(kWritten);
  const std::string file = EncodePredictorFile(record, "calibration", kWritten);
  const auto header = HeaderOf(file);
  ASSERT_TRUE(header.ok()) << header.status();
  const auto found = FindPredictors(*header, kLayers, "f");
  ASSERT_TRUE(found.ok()) << found.status();
  ASSERT_THAT(found->layers, SizeIs(2));
  const auto text = [&](const BundleTensor& tensor) {
    return file.substr(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.bytes));
  };
  EXPECT_EQ(text(found->calibration), "calibration");
  EXPECT_EQ(ParsePredictorRecord(text(found->record), "f").value(), record);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(found->layers[i].shape, kWritten[i].shape);
    for (size_t part = 0; part < kPredictorParts; ++part) {
      const std::string bytes = text(found->layers[i].parts[part]);
      ASSERT_EQ(bytes.size(), kWritten[i].parts[part].size());
      EXPECT_EQ(std::memcmp(bytes.data(), kWritten[i].parts[part].data(), bytes.size()), 0);
    }
    const auto view = ParsePredictor(kWritten[i].shape, kWritten[i].bytes(), "f");
    ASSERT_TRUE(view.ok()) << view.status();
    EXPECT_EQ(view->rank, kWritten[i].shape.rank);
    EXPECT_EQ(view->limit, ToFloat(*reinterpret_cast<const BF16*>(kWritten[i].parts[3].data())));
  }
}

TEST(PredictorFileTest, TheHashIsOfAllNumbers) {
  const std::string hash = PredictorHash(RecordOf(kWritten));
  EXPECT_THAT(hash, SizeIs(16));
  for (size_t part = 0; part < kPredictorParts; ++part) {
    std::vector<PredictorLayer> changed = kWritten;
    changed[1].parts[part].back() ^= std::byte{1};
    EXPECT_NE(PredictorHash(RecordOf(changed)), hash) << part;
  }
  PredictorRecord record = RecordOf(kWritten);
  record.perplexity = 3, record.tokens = 5;
  EXPECT_EQ(PredictorHash(record), hash) << "what is said of it changes no result";
}

TEST(PredictorFileTest, HostileHeadersAreRefusedByName) {
  const SafetensorsHeader whole = HeaderOf(EncodePredictorFile(RecordOf(kWritten), "c", kWritten)).value();
  const auto refused = [&](const std::function<void(SafetensorsHeader&)>& change, std::span<const PredictorShape> layers = kLayers) {
    SafetensorsHeader header = whole;
    change(header);
    const auto file = FindPredictors(header, layers, "f");
    EXPECT_FALSE(file.ok());
    return std::string(file.status().message());
  };
  for (size_t i = 0; i < whole.tensors.size(); ++i) {
    SCOPED_TRACE(whole.tensors[i].name);
    EXPECT_THAT(refused([&](auto& header) { header.tensors.erase(header.tensors.begin() + static_cast<int64_t>(i)); }), HasSubstr("f: "));
    EXPECT_THAT(refused([&](auto& header) { header.tensors[i].info.dtype = DType::kI64; }), HasSubstr("f: "));
    EXPECT_THAT(refused([&](auto& header) { header.tensors[i].unknown_dtype = "X"; }), HasSubstr("f: "));
    EXPECT_THAT(refused([&](auto& header) { header.tensors[i].info.shape = {}; }), HasSubstr("f: "));
    EXPECT_THAT(refused([&](auto& header) { header.tensors[i].name = "__lime_predictor__.7.a"; }), HasSubstr("f: "));
    EXPECT_THAT(refused([&](auto& header) { header.tensors[i].name = "__lime_predictor__.00.a"; }), HasSubstr("f: "));
    if (whole.tensors[i].info.dtype == DType::kU8) {
      EXPECT_THAT(refused([&](auto& header) { header.tensors[i].info.bytes = int64_t{1} << 40; }), HasSubstr("at most"));
    } else {
      EXPECT_THAT(refused([&](auto& header) { header.tensors[i].info.shape.back() += 1; }), HasSubstr("f: "));
    }
  }
  EXPECT_THAT(refused([](auto& header) { std::erase_if(header.tensors, [](const auto& t) { return t.info.dtype != DType::kU8; }); }),
              HasSubstr("no predictor of any layer"));
  EXPECT_THAT(refused([](auto& header) { header.tensors[0].info.shape = {9, 8}; }), HasSubstr("rank 9, need 1 to 8"));
  EXPECT_THAT(refused([](auto&) {}, std::span(kLayers).first(1)), HasSubstr("of no layer that may have a predictor"));
}

TEST(PredictorFileTest, NumbersThatAreNotFiniteAreRefused) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    for (size_t part = 0; part < kPredictorParts; ++part) {
      PredictorLayer layer = kWritten[0];
      const BF16 number = FromFloat<BF16>(bad);
      std::memcpy(layer.parts[part].data() + layer.parts[part].size() - 2, &number, 2);
      const auto view = ParsePredictor(layer.shape, layer.bytes(), "f");
      EXPECT_THAT(std::string(view.status().message()), HasSubstr("not finite"));
      layer.parts[part].pop_back();
      EXPECT_THAT(std::string(ParsePredictor(layer.shape, layer.bytes(), "f").status().message()), HasSubstr("bytes, need"));
    }
  }
}

TEST(PredictorFileTest, HostileRecordsAreRefusedByName) {
  const std::string whole = EncodePredictorRecord(RecordOf(kWritten));
  const auto refused = [&](const char* from, const char* to) {
    const std::string text = absl::StrReplaceAll(whole, {{from, to}});
    EXPECT_NE(text, whole) << from;
    const auto record = ParsePredictorRecord(text, "f");
    EXPECT_FALSE(record.ok()) << to;
    EXPECT_EQ(record.status().message().find('\n'), absl::string_view::npos);
    return std::string(record.status().message());
  };
  EXPECT_THAT(refused("\"lime_predictor\":1", "\"lime_predictor\":2"), HasSubstr("version 2"));
  EXPECT_THAT(refused("\"layer\":2", "\"layer\":0"), HasSubstr("layers ascend"));
  EXPECT_THAT(refused("\"rank\":2", "\"rank\":0"), HasSubstr("rank"));
  EXPECT_THAT(refused("0123456789abcdef", "0123456789ABCDEF"), HasSubstr("hexadecimal"));
  EXPECT_THAT(refused("\"false_negatives\":0.05", "\"false_negatives\":1.5"), HasSubstr("false_negatives"));
  EXPECT_THAT(refused("\"tokens\":100", "\"tokens\":1e300"), HasSubstr("tokens"));
  EXPECT_FALSE(ParsePredictorRecord("", "f").ok());
  EXPECT_FALSE(ParsePredictorRecord("[]", "f").ok());
  EXPECT_FALSE(ParsePredictorRecord(R"({"lime_predictor":1})", "f").ok());
}

}  // namespace
}  // namespace lime
