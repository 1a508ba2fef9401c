// Tokenizers that are small enough to read, for tests of one behaviour at a time.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "coordinator/text/tokenizer.h"
#include "lime/v1/sentencepiece_model.pb.h"
#include "tests/coordinator/byte_level_tokenizer.h"

namespace lime {

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
