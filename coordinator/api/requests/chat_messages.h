// The messages of a conversation.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "coordinator/api/requests/parse_request.h"
#include "coordinator/api/requests/request_fields.h"

namespace lime {

inline constexpr Names<ChatMessage::Role, 5> kRoles = {{{ChatMessage::Role::kSystem, "system"},
                                                        {ChatMessage::Role::kSystem, "developer"},
                                                        {ChatMessage::Role::kUser, "user"},
                                                        {ChatMessage::Role::kAssistant, "assistant"},
                                                        {ChatMessage::Role::kTool, "tool"}}};

// A string, or parts of these types, whose texts are joined. Nothing if it is absent.
std::optional<std::string> ReadContent(RequestFields& fields, std::string_view key, std::initializer_list<std::string_view> part_types);

// The array `messages` of chat completions, at least one.
std::vector<ChatMessage> ReadChatMessages(RequestFields& fields);

// The arguments of a call in an earlier answer: a string, or an object that becomes one.
std::string ReadArguments(RequestFields& fields, std::string_view key);

}  // namespace lime
