// What a choice has done and nobody has written yet.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/api/answers/answer_events.h"

namespace lime {

class ChoiceBacklog {
 public:
  struct Piece {
    enum class Kind {
      kContent,    // text
      kReasoning,  // text
      kCallBegin,  // text: the id; name
      kArguments,  // text
      kCallEnd,    // nothing more
    };
    Kind kind = Kind::kContent;
    std::string text, name;
  };

  // REQUIRES: as the events say, and no ChoiceEnd so far.
  void Add(ChoiceEvent event);

  // Removes and returns all pieces whose text is certain: neighbours of one kind are merged, a
  // character that is not complete stays. Text is UTF-8: where it cannot become a character, it is
  // U+FFFD.
  std::vector<Piece> TakePieces();
  std::vector<TokenScore> TakeScores();
  bool HasScores() const { return !scores_.empty(); }

  bool begun() const { return begun_; }
  const std::optional<ChoiceEnd>& end() const { return end_; }
  // All so far.
  const std::vector<int32_t>& ids() const { return ids_; }

 private:
  void AddText(Piece::Kind kind, std::string text);
  void CloseCall();

  std::vector<Piece> pieces_;
  std::vector<TokenScore> scores_;
  std::vector<int32_t> ids_;
  std::optional<ChoiceEnd> end_;
  bool begun_ = false;
  bool in_call_ = false;
};

}  // namespace lime
