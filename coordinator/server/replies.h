// Answers as HttpResponses, without the headers that belong to the call. Pure.
#pragma once

#include <string>
#include <string_view>

#include "common/http/http_message.h"
#include "coordinator/api/api_error.h"
#include "coordinator/page/page_files.h"

namespace lime {

HttpResponse JsonReply(std::string body, int status = 200);
// `is_ollama`: as Ollama writes it, see IsOllama.
HttpResponse ErrorReply(bool is_ollama, const ApiError& error);
// The head of an answer of this type, whose body comes later. A stream is not stored on its way.
HttpResponse HeadReply(std::string_view content_type, bool is_stream);
// A file of the page, or 304 if the client has it.
HttpResponse PageReply(const PageFile& file, const HttpRequest& request);
// To OPTIONS, from a page of another origin or not.
HttpResponse OptionsReply(std::string_view allow);

// Of what is no usable request. `max_body_bytes`: the limit of HttpServer.
ApiError ErrorOf(const HttpRefusal& refusal, int64_t max_body_bytes);

}  // namespace lime
