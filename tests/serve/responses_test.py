"""Answers and streams of /v1/responses, field by field."""
import unittest

from models import EOS
from serve_case import ServeCase

TOOL = {"type": "function", "name": "look", "description": "Looks.",
        "parameters": {"type": "object", "properties": {"at": {"enum": ["north", "south"]}}, "required": ["at"]}}
RESPONSE = {"id", "object", "created_at", "status", "background", "error", "incomplete_details", "model", "output", "previous_response_id", "store",
            "usage", "instructions", "max_output_tokens", "metadata", "parallel_tool_calls", "reasoning", "temperature", "text", "tool_choice", "tools", "top_p"}
# The fields of each event beside `type` and `sequence_number`.
EVENTS = {
    "response.created": {"response"},
    "response.in_progress": {"response"},
    "response.output_item.added": {"output_index", "item"},
    "response.content_part.added": {"item_id", "output_index", "content_index", "part"},
    "response.output_text.delta": {"item_id", "output_index", "content_index", "delta", "logprobs"},
    "response.output_text.done": {"item_id", "output_index", "content_index", "text", "logprobs"},
    "response.content_part.done": {"item_id", "output_index", "content_index", "part"},
    "response.output_item.done": {"output_index", "item"},
    "response.function_call_arguments.delta": {"item_id", "output_index", "delta"},
    "response.function_call_arguments.done": {"item_id", "output_index", "arguments"},
    "response.reasoning_text.delta": {"item_id", "output_index", "content_index", "delta"},
    "response.reasoning_text.done": {"item_id", "output_index", "content_index", "text"},
    "response.completed": {"response"},
    "response.incomplete": {"response"},
    "response.failed": {"response"},
}
OPTIONAL = {"name", "obfuscation"}  # of single events


def body(text="Hello", /, **more):  # `text` is a field of requests, too
    return {"input": text, "max_output_tokens": 12, "temperature": 0.8, "seed": 5, "ignore_eos": True, **more}


class Replay:
    """Builds the response from its events, as a client does, and complains about every field that does not fit."""

    def __init__(self, case, stream):
        self.case, self.items, self.names, self.last = case, [], [], None
        for number, (name, event) in enumerate(stream.named()):
            case.assertEqual((event["type"], event["sequence_number"]), (name, number))
            case.assertIn(name, EVENTS)
            case.assertEqual(event.keys() - OPTIONAL - {"type", "sequence_number"}, EVENTS[name], name)
            case.assertIsNone(self.last, f"{name} comes behind the end")
            self.names.append(name)
            getattr(self, "on_" + name.removeprefix("response.").replace(".", "_"))(event)
        case.assertEqual(stream.done, 0)  # no [DONE]
        case.assertIsNotNone(self.last)

    def item(self, event):
        item = self.items[event["output_index"]]
        self.case.assertEqual(event["item_id"], item["id"])
        return item

    def on_created(self, event):
        self.case.assertGreaterEqual(event["response"].keys(), RESPONSE)
        self.case.assertEqual((event["response"]["status"], event["response"]["output"], event["response"]["usage"]), ("in_progress", [], None))
        self.first = event["response"]

    def on_in_progress(self, event):
        self.case.assertEqual(event["response"], self.first)

    def on_output_item_added(self, event):
        self.case.assertEqual(event["output_index"], len(self.items))
        self.case.assertEqual(event["item"]["status"], "in_progress")
        self.items.append(event["item"])

    def on_content_part_added(self, event):
        content = self.item(event)["content"]
        self.case.assertEqual((event["content_index"], event["part"]["text"]), (len(content), ""))
        content.append(dict(event["part"]))

    def add_text(self, event):
        self.case.assertTrue(event["delta"])
        part = self.item(event)["content"][event["content_index"]]
        part["text"] += event["delta"]
        if "logprobs" in event:
            part["logprobs"] = part["logprobs"] + event["logprobs"]

    on_output_text_delta = on_reasoning_text_delta = add_text

    def end_text(self, event):
        part = self.item(event)["content"][event["content_index"]]
        self.case.assertEqual(part["text"], event["text"])
        if "logprobs" in event:  # of tokens without a text of their own, too
            self.case.assertEqual(event["logprobs"][:len(part["logprobs"])], part["logprobs"])
            part["logprobs"] = event["logprobs"]

    on_output_text_done = on_reasoning_text_done = end_text

    def on_content_part_done(self, event):
        self.case.assertEqual(self.item(event)["content"][event["content_index"]], event["part"])

    def on_function_call_arguments_delta(self, event):
        self.item(event)["arguments"] += event["delta"]

    def on_function_call_arguments_done(self, event):
        self.case.assertEqual(self.item(event)["arguments"], event["arguments"])

    def on_output_item_done(self, event):
        self.case.assertIn(event["item"]["status"], ("completed", "incomplete"))
        self.case.assertEqual(self.items[event["output_index"]] | {"status": event["item"]["status"]}, event["item"])
        self.items[event["output_index"]] = event["item"]

    def end(self, event):
        self.case.assertEqual(event["response"]["output"], self.items)
        self.case.assertEqual(event["response"]["id"], self.first["id"])
        self.last = event["response"]

    def on_failed(self, event):
        self.items = [item | {"status": "incomplete" if item["status"] == "in_progress" else item["status"]} for item in self.items]
        self.case.assertTrue(event["response"]["error"]["code"])
        self.end(event)

    on_completed = on_incomplete = end


class ResponsesTest(ServeCase):
    def replayed(self, request):
        return Replay(self, self.stream("/v1/responses", request))

    def test_an_answer_has_every_field(self):
        said = self.post("/v1/responses", body(instructions="Be short.", metadata={"k": "v"}))
        self.assertGreaterEqual(said.keys(), RESPONSE | {"lime"})
        self.assertRegex(said["id"], r"^resp_\w+$")
        self.assertEqual((said["object"], said["instructions"], said["metadata"], said["max_output_tokens"]), ("response", "Be short.", {"k": "v"}, 12))
        self.assertEqual((said["status"], said["incomplete_details"]), ("incomplete", {"reason": "max_output_tokens"}))
        [message] = said["output"]
        self.assertEqual((message["type"], message["role"], message["content"][0]["type"]), ("message", "assistant", "output_text"))
        usage = said["usage"]
        self.assertEqual((usage["output_tokens"], usage["total_tokens"]), (12, usage["input_tokens"] + 12))

    def test_a_stream_builds_the_answer(self):
        whole, replay = self.post("/v1/responses", body()), self.replayed(body())
        self.assertEqual(replay.names[:4], ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"])
        self.assertEqual(replay.names[-4:], ["response.output_text.done", "response.content_part.done", "response.output_item.done", "response.incomplete"])
        self.assertEqual(replay.last["output"][0]["content"], whole["output"][0]["content"])

    def test_log_probabilities_are_in_the_events(self):
        replay = self.replayed(body(top_logprobs=2, include=["message.output_text.logprobs"], logit_bias={str(EOS): -100}))  # end tokens have no entry
        self.assertEqual(len(replay.last["output"][0]["content"][0]["logprobs"]), 12)

    def test_a_forced_call_streams_its_arguments_and_its_result_goes_back(self):
        request = body(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_output_tokens=400, ignore_eos=False)
        replay = self.replayed(request)
        [call] = replay.last["output"]
        self.assertEqual((call["type"], call["name"], replay.last["status"]), ("function_call", "look", "completed"))
        self.assertIn(call["arguments"].replace(" ", "").replace("\n", ""), ('{"at":"north"}', '{"at":"south"}'))
        self.assertIn("response.function_call_arguments.delta", replay.names)
        back = [{"role": "user", "content": "Look"}, {key: call[key] for key in ("type", "call_id", "name", "arguments")},
                {"type": "function_call_output", "call_id": call["call_id"], "output": "a hill"}]
        answer = self.post("/v1/responses", body(back, tools=[TOOL]))
        self.assertEqual(answer["output"][0]["type"], "message")
        self.assertGreater(answer["usage"]["input_tokens"], replay.last["usage"]["input_tokens"])

    def test_a_custom_tool_takes_text_and_other_tools_are_skipped(self):
        tools = [{"type": "custom", "name": "shell", "description": "Runs."}, {"type": "web_search"}, {"type": "local_shell"}]
        replay = self.replayed(body(tools=tools, tool_choice="required", max_output_tokens=200, ignore_eos=False))
        self.assertEqual(replay.last["output"][0]["name"], "shell")

    def test_items_of_every_kind_are_read(self):
        items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be short."}]},
                 {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello"}]},
                 {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
                 {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes?", "annotations": []}]},
                 {"role": "user", "content": "Go on"}]
        self.assertEqual(self.replayed(body(items)).names[-1], "response.incomplete")

    def test_an_answer_by_a_schema(self):
        schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
        said = self.replayed(body(text={"format": {"type": "json_schema", "name": "a", "schema": schema, "strict": True}}, max_output_tokens=100, ignore_eos=False)).last
        self.assertEqual(said["status"], "completed")
        self.assertIn("".join(said["output"][0]["content"][0]["text"].split()), ('{"a":true}', '{"a":false}'))

    def test_nothing_is_remembered_and_that_is_said(self):
        said = self.post("/v1/responses", body(store=True))
        self.assertIs(said["store"], False)
        self.assertEqual(self.call("GET", f"/v1/responses/{said['id']}").status, 404)


class ThinkingResponsesTest(ServeCase):
    template = "thinking"

    def test_reasoning_is_an_item_of_its_own(self):
        replay = Replay(self, self.stream("/v1/responses", body()))
        self.assertEqual(replay.last["output"][0]["type"], "reasoning")
        self.assertIn("response.reasoning_text.done", replay.names)


if __name__ == "__main__":
    unittest.main(verbosity=2)
