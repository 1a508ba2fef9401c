"""Errors by status, code and param. A wrong request is refused before anything is computed, with one sentence."""
import unittest

import wire
from serve_case import ServeCase, begun, chat_body

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def with_message(**message):
    return {"messages": [{"role": "user", "content": "a"} | message]}


def with_schema(schema):
    return chat_body(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": schema}})


# (path, body, code, param): all of them 400
FIELDS = [
    (CHAT, {}, "missing_required_parameter", "messages"),
    (CHAT, {"messages": []}, "invalid_value", "messages"),
    (CHAT, {"messages": "a"}, "invalid_type", "messages"),
    (CHAT, {"messages": ["a"]}, "invalid_type", "messages[0]"),
    (CHAT, with_message(role="nobody"), "invalid_value", "messages[0].role"),
    (CHAT, with_message(content=1), "invalid_type", "messages[0].content"),
    (CHAT, with_message(content=[{"type": "image_url", "image_url": {"url": "data:,"}}]), "unsupported_content", "messages[0].content[0].type"),
    (CHAT, chat_body(model=1), "invalid_type", "model"),
    (CHAT, chat_body(max_tokens=0), "invalid_value", "max_tokens"),
    (CHAT, chat_body(max_tokens="8"), "invalid_type", "max_tokens"),
    (CHAT, chat_body(max_completion_tokens=-1), "invalid_value", "max_completion_tokens"),
    (CHAT, chat_body(temperature=2.5), "invalid_value", "temperature"),
    (CHAT, chat_body(temperature="hot"), "invalid_type", "temperature"),
    (CHAT, chat_body(top_p=0), "invalid_value", "top_p"),
    (CHAT, chat_body(top_p=1.5), "invalid_value", "top_p"),
    (CHAT, chat_body(top_k=-2), "invalid_value", "top_k"),
    (CHAT, chat_body(min_p=1.5), "invalid_value", "min_p"),
    (CHAT, chat_body(repetition_penalty=0), "invalid_value", "repetition_penalty"),
    (CHAT, chat_body(frequency_penalty=2.5), "invalid_value", "frequency_penalty"),
    (CHAT, chat_body(presence_penalty=-2.5), "invalid_value", "presence_penalty"),
    (CHAT, chat_body(n=0), "invalid_value", "n"),
    (CHAT, chat_body(n=17), "invalid_value", "n"),
    (CHAT, chat_body(n=1.5), "invalid_type", "n"),
    (CHAT, chat_body(seed=-1), "invalid_value", "seed"),
    (CHAT, chat_body(stop=["a", "b", "c", "d", "e"]), "invalid_value", "stop"),
    (CHAT, chat_body(stop=[1]), "invalid_type", "stop[0]"),
    (CHAT, chat_body(top_logprobs=2), "invalid_value", "top_logprobs"),
    (CHAT, chat_body(logprobs=True, top_logprobs=21), "invalid_value", "top_logprobs"),
    (CHAT, chat_body(logit_bias={"65": 101}), "invalid_value", "logit_bias"),
    (CHAT, chat_body(logit_bias={"99999": 1}), "invalid_value", "logit_bias"),
    (CHAT, chat_body(stream="yes"), "invalid_type", "stream"),
    (CHAT, chat_body(stream_options={"include_usage": True}), "invalid_value", "stream_options"),
    (CHAT, chat_body(response_format={"type": "xml"}), "invalid_value", "response_format.type"),
    (CHAT, chat_body(tools=[{"type": "retrieval"}]), "invalid_value", "tools[0].type"),
    (CHAT, chat_body(tools=[{"type": "function", "function": {"name": "a b"}}]), "invalid_value", "tools[0].function.name"),
    (CHAT, chat_body(tools=[TOOL, TOOL]), "invalid_value", None),
    (CHAT, chat_body(tool_choice="required"), "invalid_value", "tool_choice"),
    (CHAT, chat_body(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "other"}}), "invalid_value", "tool_choice"),
    (CHAT, with_schema({"type": "strange"}), "invalid_json_schema", None),
    (CHAT, with_schema({"type": "object", "patternProperties": {"a": {}}}), "invalid_json_schema", None),
    (CHAT, with_schema({"$ref": "#"}), "invalid_json_schema", None),
    (CHAT, with_schema({"oneOf": [{"type": "string"}, {"type": "string"}]}), "invalid_json_schema", None),
    (COMPLETIONS, {}, "missing_required_parameter", "prompt"),
    (COMPLETIONS, {"prompt": {"a": 1}}, "invalid_type", "prompt"),
    (COMPLETIONS, {"prompt": [99999]}, "invalid_value", "prompt[0]"),
    (COMPLETIONS, {"prompt": "a", "logprobs": 6}, "invalid_value", "logprobs"),
    (COMPLETIONS, {"prompt": "a", "suffix": "b"}, None, "suffix"),
    (COMPLETIONS, {"prompt": "a", "best_of": 3}, None, "best_of"),
    (RESPONSES, {}, "missing_required_parameter", "input"),
    (RESPONSES, {"input": "a", "previous_response_id": "resp_1"}, "unsupported_parameter", "previous_response_id"),
    (RESPONSES, {"input": "a", "conversation": "conv_1"}, "unsupported_parameter", "conversation"),
    (RESPONSES, {"input": "a", "background": True}, "unsupported_parameter", "background"),
    (RESPONSES, {"input": "a", "max_output_tokens": 0}, "invalid_value", "max_output_tokens"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]}, "unsupported_content", "input[0].content[0].type"),
    ("/tokenize", {}, None, None),
    ("/detokenize", {"tokens": ["a"]}, "invalid_type", "tokens[0]"),
]

# (method, path, headers, body as bytes, status, code)
REQUESTS = [
    ("GET", "/v1/chat/completion", [], None, 404, "unknown_url"),
    ("GET", "/v1/embeddings", [], None, 404, "unknown_url"),
    ("GET", "/v1/models/nobody", [], None, 404, "model_not_found"),
    ("GET", CHAT, [], None, 405, "method_not_allowed"),
    ("POST", "/health", [], b"{}", 405, "method_not_allowed"),
    ("DELETE", "/v1/models", [], None, 405, "method_not_allowed"),
    ("POST", CHAT, [("Content-Type", "text/plain")], b"{}", 415, "unsupported_media_type"),
    ("POST", CHAT, [], b"{", 400, "invalid_json"),
    ("POST", CHAT, [], b"[]", 400, None),
    ("POST", CHAT, [], b'{"messages": "\xff"}', 400, "invalid_json"),
    ("POST", CHAT, [], b'{"messages": "\\ud800"}', 400, "invalid_json"),
    ("POST", CHAT, [], b'{"a":' * 65 + b"1" + b"}" * 65, 400, "invalid_json"),
    ("GET", "/health", [("Origin", "https://evil.example")], None, 403, "origin_not_allowed"),
]


class ErrorsTest(ServeCase):
    over = "process"  # what refuses is the server

    def test_a_wrong_field_is_named(self):
        for path, body, code, param in FIELDS:
            with self.subTest(path=path, body=body):
                answer = self.call("POST", path, body)
                self.assertEqual(answer.status, 400, answer)
                said = answer.error()
                self.assertEqual(answer.json()["error"]["type"], "invalid_request_error")
                self.assertEqual((code or said[0], param or said[1]), said)

    def test_null_is_absent_and_unknown_fields_are_ignored(self):
        body = chat_body(n=None, seed=None, tools=None, tool_choice=None, stop=None, service_tier="auto", user="me", store=False, metadata={"a": "b"})
        self.post(CHAT, body)

    def test_a_wrong_request_has_its_status(self):
        for method, path, headers, body, status, code in REQUESTS:
            with self.subTest(method=method, path=path, body=body):
                answer = self.call(method, path, body, headers)
                self.assertEqual(answer.status, status, answer)
                said = answer.error()[0]
                self.assertEqual(code or said, said)
                if status == 405:
                    self.assertIn("OPTIONS", answer.headers["allow"])

    def test_a_model_that_is_not_here(self):
        for path, body in ((CHAT, chat_body()), (COMPLETIONS, {"prompt": "a"}), (RESPONSES, {"input": "a"})):
            answer = self.call("POST", path, body | {"model": "nobody"})
            self.assertEqual((answer.status, *answer.error()), (404, "model_not_found", "model"))

    def test_a_prompt_that_leaves_no_room_names_both_numbers(self):
        for path, body, param in ((CHAT, chat_body("a" * self.context), "messages"), (COMPLETIONS, {"prompt": "a" * self.context}, "prompt"),
                                  (RESPONSES, {"input": "a" * self.context}, "input")):
            answer = self.call("POST", path, body)
            self.assertEqual((answer.status, *answer.error()), (400, "context_length_exceeded", param))
            self.assertIn(str(self.context), answer.json()["error"]["message"])

    def test_more_tokens_than_are_left_are_cut_to_them(self):
        answer = self.chat("a" * (self.context - 40), max_tokens=4096)
        self.assertEqual((answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]), ("length", self.context))

    def test_a_template_that_refuses_says_why(self):
        service = self.start(template="llama3")
        call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        body = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [call, call | {"id": "call_2"}]}], "tools": [TOOL]}
        answer = wire.call(service.url, "POST", CHAT, body)
        self.assertEqual(answer.status, 400)
        self.assertIn("A message has one call.", answer.json()["error"]["message"])


class BusyTest(ServeCase):
    """One request computes, one waits, and the next is refused."""

    over, parallel, flags = "process", 1, ("--queue", "1", "--max-wait", "3", "--pace", "20")

    def test_a_full_queue_is_429_and_a_long_wait_503(self):
        running = self.stream(CHAT, chat_body(max_tokens=1000))
        begun(running)
        waiting = wire.Connection(self.url)
        self.addCleanup(waiting.close)
        waiting.request("POST", CHAT, chat_body())
        self.await_metric("lime_requests_waiting", 1)
        refused = self.call("POST", CHAT, chat_body())
        self.assertEqual((refused.status, *refused.error()), (429, "rate_limit_exceeded", None))
        self.assertEqual(refused.json()["error"]["type"], "rate_limit_error")
        seconds = int(refused.headers["retry-after"])
        self.assertTrue(1 <= seconds <= 60)
        self.assertIn(f"try again in {seconds} s", refused.json()["error"]["message"])
        late = waiting.answer()
        self.assertEqual((late.status, *late.error()), (503, "queue_timeout", None))
        rejected = self.metrics()
        self.assertEqual(rejected['lime_requests_rejected_total{reason="queue_full"}'], 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
