// Tokenizers that are small enough to read, for tests of one behaviour at a time.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "coordinator/text/tokenizer.h"
#include "coordinator/text/unicode/byte_level.h"
#include "lime/v1/sentencepiece_model.pb.h"

namespace lime {

// The bytes as ids 0 to 255, <s> = 256 (BOS, added), </s> = 257, "ab" = 258, "abc" = 259.
inline Json ByteLevelJson() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) vocab[std::string(ByteLevelChar(static_cast<unsigned char>(byte)))] = byte;
  vocab["<s>"] = 256;
  vocab["</s>"] = 257;
  vocab["ab"] = 258;
  vocab["abc"] = 259;
  const Json byte_level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  return {{"added_tokens", {{{"id", 256}, {"content", "<s>"}, {"special", true}}, {{"id", 257}, {"content", "</s>"}, {"special", true}}}},
          {"normalizer", nullptr},
          {"pre_tokenizer", byte_level},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}}},
          {"decoder", byte_level},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"a b", "ab c"}}}}};
}

inline std::unique_ptr<Tokenizer> FromJsonOrDie(const Json& json) {
  auto tokenizer = Tokenizer::FromJson(json.dump(), "test");
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.status();
  return std::move(tokenizer).value();
}

inline std::unique_ptr<Tokenizer> ByteLevelTokenizer() {
  return FromJsonOrDie(ByteLevelJson());
}

// A SentencePiece model of <unk>, <s>, </s>, the 256 byte pieces if `bytes`, and `pieces` with
// their scores.
struct SmallPiece {
  std::string text;
  float score = 0;
  v1::sentencepiece::ModelProto::SentencePiece::Type type = v1::sentencepiece::ModelProto::SentencePiece::NORMAL;
};

inline v1::sentencepiece::ModelProto SmallModel(v1::sentencepiece::TrainerSpec::ModelType type, bool bytes,
                                                const std::vector<SmallPiece>& pieces) {
  using Piece = v1::sentencepiece::ModelProto::SentencePiece;
  v1::sentencepiece::ModelProto model;
  const auto add = [&](const std::string& text, float score, Piece::Type piece_type) {
    Piece* piece = model.add_pieces();
    piece->set_piece(text);
    piece->set_score(score);
    piece->set_type(piece_type);
  };
  add("<unk>", 0, Piece::UNKNOWN);
  add("<s>", 0, Piece::CONTROL);
  add("</s>", 0, Piece::CONTROL);
  for (int byte = 0; bytes && byte < 256; ++byte) {
    char text[8];
    std::snprintf(text, sizeof(text), "<0x%02X>", byte);
    add(text, 0, Piece::BYTE);
  }
  for (const SmallPiece& piece : pieces) add(piece.text, piece.score, piece.type);
  model.mutable_trainer_spec()->set_model_type(type);
  model.mutable_trainer_spec()->set_byte_fallback(bytes);
  model.mutable_normalizer_spec()->set_remove_extra_whitespaces(false);
  return model;
}

inline std::unique_ptr<Tokenizer> FromModelOrDie(const v1::sentencepiece::ModelProto& model) {
  auto tokenizer = Tokenizer::FromSentencePiece(model.SerializeAsString(), "test");
  if (!tokenizer.ok()) ADD_FAILURE() << tokenizer.status();
  return std::move(tokenizer).value();
}

}  // namespace lime
