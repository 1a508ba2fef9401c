// The model that a server serves, as far as text is concerned: its names, tokenizer, chat template,
// the syntax of its calls, its thinking, and its defaults of sampling.
//
// Pure: the caller reads the files (coordinator/cli/served_model_files.h).
// Thread: any; immutable after SetPlan.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/time/civil_time.h"
#include "common/json_schema/mask_memory.h"
#include "common/json_schema/vocabulary.h"
#include "coordinator/api/answers/server_answers.h"
#include "coordinator/api/requests/parse_request.h"
#include "coordinator/generation/sampling_defaults.h"
#include "coordinator/text/jinja/chat_template.h"
#include "coordinator/text/jinja/model_template.h"
#include "coordinator/text/tokenizer.h"
#include "coordinator/text/tools/tool_format.h"

namespace lime {

class ServedModel {
 public:
  struct Options {
    // By its first name. `context`, `chat_template`, `has_tools` and `has_thinking` are set here.
    ListedModel listed;
    std::vector<std::string> aliases;
    std::shared_ptr<const Tokenizer> tokenizer;
    std::optional<int32_t> bos;  // begins an empty prompt
    // An answer ends after one of these, and after <|call|> and <|return|> of harmony.
    std::vector<int32_t> end_tokens;
    int64_t vocab_size = 0;            // of the weights: ids are below it
    int64_t short_positions = 0;       // ModelConfig::short_positions
    ModelTemplate chat_template;       // without a source: plain
    std::optional<ToolSyntax> syntax;  // --tool-format; nullopt: found in the template
    bool divides_thinking = true;      // --reasoning
    SamplingDefaults defaults;
  };
  // Errors: InvalidArgument for a template that is none, or end tokens beyond the vocabulary.
  static absl::StatusOr<std::unique_ptr<ServedModel>> Create(Options options);

  // Positions of a request, and the numerics of the devices that compute it. Call once, when a plan
  // is installed and before the first request.
  void SetPlan(int64_t context, std::span<const std::string> numerics_ids);
  int64_t context() const { return options_.listed.context; }
  // Tokens that may follow a prompt if a request states no number: the rest of the context, or of the
  // positions of short sequences, if the model computes these in another way and the prompt is one.
  int64_t MostTokensAfter(int64_t prompt) const;
  // system_fingerprint: of the model and the numerics, not of the plan.
  const std::string& fingerprint() const { return fingerprint_; }

  const std::string& id() const { return options_.listed.id; }
  // For the id and each alias, in this order.
  std::vector<ListedModel> listed() const;
  // Null if it is not served. An empty name is the id.
  const std::string* FindName(std::string_view name) const;

  // What ParseRequest needs. REQUIRES: this object outlives the result.
  ParseOptions parse_options() const;

  const Tokenizer& tokenizer() const { return *options_.tokenizer; }
  int64_t vocab_size() const { return options_.vocab_size; }
  const std::vector<int32_t>& end_tokens() const { return options_.end_tokens; }
  bool IsEnd(int32_t token) const;
  const SamplingDefaults& defaults() const { return options_.defaults; }
  // The texts of all tokens, for masks: special tokens count as their text. As in a request that
  // ends at end tokens.
  const json_schema::VocabularyPtr& vocabulary() const { return vocabulary_; }
  // Memory that masks take on the device that makes them, at most, beside this vocabulary.
  Bytes mask_memory() const { return json_schema::MostMaskMemory(vocabulary_->size()); }

  // Without a chat template: the contents of the messages, joined by line feeds.
  bool is_plain() const { return !template_.has_value(); }
  const ToolFormat& tool_format() const { return tool_format_; }
  // The template writes harmony messages (harmony_header.h).
  bool has_harmony_template() const { return has_harmony_template_; }
  // It does, or --tool-format says that the model writes them.
  bool is_harmony() const { return has_harmony_template_ || tool_format_.syntax == ToolSyntax::kHarmony; }
  // The template or the vocabulary knows </think>, or it is harmony; and --reasoning is not off.
  bool thinks() const { return thinks_; }

  // The text of a prompt by the template. `variables`: those of TemplateVariables. An error is the
  // template's sentence. REQUIRES: !is_plain()
  absl::StatusOr<std::string> Render(Json variables, absl::CivilSecond now) const;

  // Ids of text that came from a template: special tokens are found in it, and nothing is added.
  // With `add_special`, as `lime run` encodes a prompt.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special) const;

 private:
  explicit ServedModel(Options options) : options_(std::move(options)) {}
  absl::Status ReadTemplate();
  void AddHarmonyEnds();

  Options options_;
  std::string fingerprint_;
  std::optional<ChatTemplate> template_, template_with_tools_;
  ToolFormat tool_format_;
  bool has_harmony_template_ = false;
  bool thinks_ = false;
  json_schema::VocabularyPtr vocabulary_;
};

}  // namespace lime
