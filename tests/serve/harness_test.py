"""The tests' own client: it takes the streams that the server writes (tests/golden), cut anywhere, and no others. Needs no built program."""
import re
import socket
import threading
import unittest

import wire
from processes import ROOT
from responses_test import Replay
from serve_case import begun, text_of


def scenes(name):
    """{title: bytes} of a golden file of answers."""
    text = (ROOT / "tests/golden" / name).read_text()
    found = {}
    for scene in re.split(r"(?m)^# ", text)[1:]:
        title, body = scene.split("\n", 1)
        found[title] = (body.replace("----\n", "").rstrip("\n") + "\n\n").encode()
    return found


def chunked(body, size):
    return b"".join(b"%x\r\n%s\r\n" % (len(body[at:at + size]), body[at:at + size]) for at in range(0, len(body), size)) + b"0\r\n\r\n"


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class HarnessTest(unittest.TestCase):
    def serve(self, answer):
        """The URL of a server that sends these bytes to whoever connects, and closes."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.addCleanup(listener.close)

        def answer_one():
            client, _ = listener.accept()
            with client:
                client.recv(65536)
                client.sendall(answer)

        thread = threading.Thread(target=answer_one, daemon=True)
        thread.start()
        self.addCleanup(thread.join)
        return "http://127.0.0.1:%d" % listener.getsockname()[1]

    def stream(self, body, size=1 << 20):
        stream = wire.Stream(self.serve(HEAD + chunked(body, size)), "/", {})
        self.addCleanup(stream.close)
        return stream

    def test_chats_are_read_however_they_are_cut(self):
        for title, body in scenes("api_chat_stream.txt").items():
            if b'"error"' in body:
                continue
            whole = list(self.stream(body))
            self.assertEqual([chunk["object"] for chunk in whole], ["chat.completion.chunk"] * len(whole), title)
            for size in (1, 7, 100):
                stream = self.stream(body, size)
                self.assertEqual(list(stream), whole)
                self.assertEqual((stream.done, stream.comments), (1, body.count(b": keep-alive")))

    def test_a_chat_that_has_begun_goes_on(self):
        stream = self.stream(scenes("api_chat_stream.txt")["Text, with a sign of life before it. Two pieces waited in the last write."])
        self.assertEqual(text_of(begun(stream)), " you.")

    def test_responses_are_built_from_their_events(self):
        streams = {title: body for title, body in scenes("api_responses.txt").items() if b"event: response.created" in body}
        self.assertGreaterEqual(len(streams), 1)
        for title, body in streams.items():
            with self.subTest(title):
                replay = Replay(self, self.stream(body, 50))
                self.assertIn(replay.last["status"], ("completed", "incomplete", "failed"))

    def test_a_response_that_differs_from_its_events_is_found(self):
        body = scenes("api_responses.txt")["A stream."]
        for before, after in ((b'"delta":"He"', b'"delta":"Hi"'), (b'"sequence_number":9,', b'"sequence_number":8,'), (b'"item_id":"fc_1_2"', b'"item_id":"fc_1_3"'),
                              (b'"part":{"type":"output_text","text":"Hello."', b'"part":{"type":"output_text","text":"Hullo."'),
                              (b"event: response.in_progress\n", b"event: response.progress\n")):
            self.assertIn(before, body)
            with self.subTest(before), self.assertRaises((AssertionError, AttributeError, KeyError)):
                Replay(self, self.stream(body.replace(before, after, 1)))

    def test_what_comes_behind_the_end_is_found(self):
        with self.assertRaises(AssertionError):
            list(self.stream(b"data: [DONE]\n\ndata: {}\n\n"))

    def test_a_stream_that_ends_early_is_found(self):
        whole = HEAD + chunked(b"data: {}\n\n", 4)
        for end in range(len(HEAD), len(whole)):
            with self.subTest(end), self.assertRaises((wire.Gone, AssertionError)):
                list(wire.Stream(self.serve(whole[:end]), "/", {}))
        with self.assertRaises(AssertionError):
            list(self.stream(b"data: {}\n"))

    def test_an_answer_without_a_length_ends_with_its_connection(self):
        answer = wire.call(self.serve(b"HTTP/1.0 200 OK\r\n\r\nab\r\n"), "GET", "/")
        self.assertEqual((answer.status, answer.body), (200, b"ab\r\n"))

    def test_a_header_that_comes_twice_is_found(self):
        with self.assertRaises(AssertionError):
            wire.call(self.serve(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n"), "GET", "/")

    def test_an_error_has_four_fields_and_a_sentence(self):
        self.assertEqual(wire.Answer(400, {}, b'{"error":{"message":"No.","type":"t","param":null,"code":"c"}}').error(), ("c", None))
        for body in (b'{"error":{"message":"No.","type":"t","param":null}}', b'{"error":{"message":"No","type":"t","param":null,"code":"c"}}'):
            with self.assertRaises(AssertionError):
                wire.Answer(400, {}, body).error()


if __name__ == "__main__":
    unittest.main(verbosity=2)
