"""Streams: many at once, clients that leave, answers that take long, an end in order. `--pace` makes a step take as long as the test needs."""
import concurrent.futures
import signal
import unittest

import wire
from serve_case import ServeCase, begun, chat_body, text_of

CHAT = "/v1/chat/completions"
STREAMS = 32


class ManyStreamsTest(ServeCase):
    parallel = 8

    def test_32_streams_at_once_say_what_each_says_alone(self):
        bodies = [chat_body(f"Tell {number}", max_tokens=20 + number, temperature=0.9, seed=number) for number in range(STREAMS)]
        alone = [self.post(CHAT, body)["choices"][0]["message"]["content"] for body in bodies]
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            together = list(pool.map(lambda body: text_of(self.stream(CHAT, body)), bodies))
        self.assertEqual(together, alone)
        self.assertEqual(self.metrics()["lime_requests_running"], 0)

    def test_every_kind_of_request_at_once(self):
        requests = [(CHAT, chat_body(max_tokens=30)), ("/v1/completions", {"prompt": "Once", "max_tokens": 30, "ignore_eos": True}),
                    ("/v1/responses", {"input": "Hello", "max_output_tokens": 30, "ignore_eos": True}), ("/tokenize", {"content": "a" * 1000}),
                    (CHAT, chat_body(n=20)), ("/api/generate", {"prompt": "a", "stream": False})]
        with concurrent.futures.ThreadPoolExecutor(STREAMS) as pool:
            statuses = list(pool.map(lambda request: self.call("POST", *request).status, requests * 8))
        self.assertEqual(statuses, [200, 200, 200, 200, 400, 200] * 8)


class LeavingTest(ServeCase):
    """One place: whoever comes next begins when the one before has gone."""

    parallel, flags = 1, ("--pace", "20")
    LONG = 1500  # tokens that would take 30 s

    def cancelled(self):
        return self.metrics()['lime_generations_total{finish="cancelled"}']

    def expect_that_leaving_frees_the_place(self, leave, **more):
        before = self.cancelled()
        first = self.stream(CHAT, chat_body(max_tokens=self.LONG, **more))
        begun(first)
        second = self.stream(CHAT, chat_body("Next", max_tokens=2))
        leave(first)
        chunks = list(second)
        self.assertLess(chunks[-1]["lime"]["timings"]["queue_ms"], self.LONG * 20 / 4)
        self.assertEqual(self.cancelled(), before + 1)

    def test_a_client_that_closes_is_noticed(self):
        self.expect_that_leaving_frees_the_place(lambda stream: stream.close())

    def test_a_client_that_resets_is_noticed(self):
        self.expect_that_leaving_frees_the_place(lambda stream: stream.connection.reset())

    def test_all_choices_of_a_client_end_with_it(self):
        service = self.start(parallel=4)
        stream = wire.Stream(service.url, CHAT, chat_body(max_tokens=self.LONG, n=4, stream=True))
        begun(stream)
        stream.close()
        answer = wire.call(service.url, "POST", CHAT, chat_body(max_tokens=2, n=4)).json()
        self.assertLess(answer["lime"]["timings"]["queue_ms"], self.LONG * 20 / 4)

    def test_one_that_waits_may_leave(self):
        first = self.stream(CHAT, chat_body(max_tokens=100))
        begun(first)
        waiting = self.stream(CHAT, chat_body("Waits"))
        waiting.close()
        third = list(self.stream(CHAT, chat_body("Third")))
        self.assertEqual(third[-1]["choices"][0]["finish_reason"], "length")

    def test_one_that_wants_no_stream_may_leave(self):
        before = self.cancelled()
        first = wire.Connection(self.url)
        first.request("POST", CHAT, chat_body(max_tokens=self.LONG))
        self.await_metric("lime_requests_running", 1)
        first.close()
        self.assertLess(self.chat("Next")["lime"]["timings"]["queue_ms"], self.LONG * 20 / 4)
        self.assertEqual(self.cancelled(), before + 1)

    def test_one_that_has_sent_more_requests_may_leave(self):
        before = self.cancelled()
        first = wire.Connection(self.url)
        first.request("POST", CHAT, chat_body(max_tokens=self.LONG))
        self.await_metric("lime_requests_running", 1)
        first.request("POST", CHAT, chat_body("a" * 100_000))
        first.close()
        self.assertLess(self.chat("Next")["lime"]["timings"]["queue_ms"], self.LONG * 20 / 4)
        self.assertEqual(self.cancelled(), before + 1)


class SignsOfLifeTest(ServeCase):
    """A step takes longer than the silence after which a sign of life comes."""

    over, parallel, flags = "process", 1, ("--pace", "300", "--keep-alive", "0.1")

    def test_a_stream_has_comments(self):
        stream = self.stream(CHAT, chat_body(max_tokens=3))
        chunks = list(stream)
        self.assertEqual(chunks[-1]["choices"][0]["finish_reason"], "length")
        self.assertGreaterEqual(stream.comments, 3)

    def test_an_answer_has_blanks_before_it(self):
        with wire.Connection(self.url) as wired:
            wired.request("POST", CHAT, chat_body(max_tokens=3))
            answer = wired.answer()
        self.assertEqual(answer.headers["transfer-encoding"], "chunked")
        self.assertEqual(answer.body[:3], b"   ")
        self.assertEqual(answer.json()["usage"]["completion_tokens"], 3)

    def test_one_that_waits_gets_them_too(self):
        first = self.stream(CHAT, chat_body(max_tokens=4))
        second = self.stream(CHAT, chat_body("Second", max_tokens=1))
        self.assertTrue(list(first))
        self.assertTrue(list(second))
        self.assertGreaterEqual(second.comments, 3)


class EndingTest(ServeCase):
    """Each test has a server of its own, which it ends: sooner than after --drain, though its clients keep their connections."""

    parallel, flags = 1, ("--pace", "20")
    SOON = 20  # seconds; --drain is 30

    def test_a_connection_without_a_request_delays_nothing(self):
        service = self.start()
        with wire.Connection(service.url) as idle:
            idle.request("GET", "/health")
            self.assertEqual(idle.answer().status, 200)
            service.server.send_signal(signal.SIGTERM)
            self.assertEqual(service.server.wait(self.SOON), 0)

    def test_what_runs_is_finished_what_waits_is_refused_and_the_exit_code_is_0(self):
        service = self.start()
        running = wire.Stream(service.url, CHAT, chat_body(max_tokens=60, stream=True))
        chunks = begun(running)
        waiting = wire.Stream(service.url, CHAT, chat_body("Waits", stream=True))
        self.assertEqual(waiting.head.status, 200)
        service.server.send_signal(signal.SIGTERM)
        rest = list(chunks)
        self.assertEqual((rest[-1]["choices"][0]["finish_reason"], running.done), ("length", 1))
        [error] = [chunk["error"] for chunk in waiting if "error" in chunk]
        self.assertEqual((error["code"], waiting.done), ("draining", 1))
        self.assertEqual(service.server.wait(self.SOON), 0)

    def test_health_says_that_it_drains(self):
        service = self.start()
        running = wire.Stream(service.url, CHAT, chat_body(max_tokens=150, stream=True))
        chunks = begun(running)
        service.server.send_signal(signal.SIGTERM)
        health = wire.call(service.url, "GET", "/health")
        while health.status == 200:  # until the signal has been handled; the server ends with the stream
            health = wire.call(service.url, "GET", "/health")
        self.assertEqual((health.status, health.json()), (503, {"status": "draining"}))
        refused = wire.call(service.url, "POST", CHAT, chat_body())
        self.assertEqual((refused.status, refused.error()[0]), (503, "draining"))
        self.assertTrue(list(chunks))
        self.assertEqual(service.server.wait(self.SOON), 0)

    def test_a_second_signal_ends_at_once(self):
        service = self.start()
        running = wire.Stream(service.url, CHAT, chat_body(max_tokens=1500, stream=True))
        begun(running)
        service.server.send_signal(signal.SIGTERM)
        service.server.send_signal(signal.SIGINT)  # another number, or the system might make one of the two
        self.assertIsNotNone(service.server.wait(10))


if __name__ == "__main__":
    unittest.main(verbosity=2)
