"""The page in a browser while one of three devices is killed and started again, and while its server is (tests/page/faults.mjs)."""
import http.server
import signal
import sys
import threading
import unittest

from processes import ROOT, HeldPort, Server
from serve_case import ServeCase

sys.path.insert(0, str(ROOT / "tests/page"))
import browser_test  # noqa: E402

LOST = 1  # of the cluster's devices: neither the embedding nor the head


class Faults:
    """Calls a function for each POST of its name, for a test in JavaScript."""

    def __init__(self, functions):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                functions[self.path.strip("/")]()
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class PageFaultsCase(ServeCase):
    @classmethod
    def setUpClass(cls):
        browser_test.need(cls)
        super().setUpClass()

    def run_page(self, functions, **environment):
        faults = Faults(functions)
        self.addCleanup(faults.close)
        browser_test.run(self, "faults.mjs", {"LIME_URL": self.url, "LIME_FAULTS": faults.url, **environment})


class LostDevicePageTest(PageFaultsCase):
    """A step takes a while, so that the device is lost in the middle of an answer."""

    over, parallel, context, flags = "cluster", 2, 512, ("--pace", "25", "--patience", "60")

    def test_a_lost_device_on_the_page(self):
        cluster = self.service.cluster
        self.run_page({"kill": lambda: cluster.kill(LOST), "start": lambda: cluster.start_again(LOST)}, LIME_LOST_DEVICE=cluster.limed[LOST].name)


class RestartedServerPageTest(PageFaultsCase):
    over, parallel, context = "process", 2, 512

    @classmethod
    def setUpClass(cls):
        held = HeldPort()  # also while the server is away
        cls.addClassCleanup(held.close)
        cls.port = held.number
        super().setUpClass()

    def serve_again(self):
        """On the same port, which the page knows."""
        self.service.server = Server(*self.service.words, port=self.port)

    def test_a_server_that_is_started_again(self):
        self.run_page({"stop": lambda: self.assertEqual(self.service.server.end(signal.SIGTERM), 0), "serve": self.serve_again})


if __name__ == "__main__":
    unittest.main(verbosity=2)
