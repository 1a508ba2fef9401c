// POST /tokenize and /detokenize.
#include "coordinator/api/requests/endpoint_parsers.h"
#include "coordinator/api/requests/generation_fields.h"

namespace lime {

void ParseTokenize(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  if (fields.Find("content") == nullptr && fields.Find("prompt") == nullptr) {
    if (fields.Find("messages") == nullptr) return fields.errors().Add(MissingParameter("content"));
    ParseApplyTemplate(fields, options, request);
  } else {
    // llama-server's form, then vLLM's.
    const bool is_content = fields.Find("content") != nullptr;
    ReadModel(fields, options, request);
    request.prompt = TextPrompts{fields.NeededString(is_content ? "content" : "prompt")};
    request.add_special = is_content ? fields.BoolOr("add_special", false) : fields.BoolOr("add_special_tokens", true);
  }
  request.with_pieces = fields.BoolOr("with_pieces", false);
}

void ParseDetokenize(RequestFields& fields, const ParseOptions& options, ApiRequest& request) {
  ReadModel(fields, options, request);
  const Json* tokens = fields.NeededArray("tokens", kMaxBodyValues);
  if (tokens != nullptr) request.prompt = TextPrompts{ReadIds(*tokens, "tokens", options.vocab_size, fields.errors())};
}

}  // namespace lime
