"""Shows the progress of long work: one line on a terminal, nothing elsewhere."""
import sys
import time


def span(seconds):
    """A duration for people."""
    minutes = max(1, round(seconds / 60))
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


class Progress:
    """`expected`: seconds of all pieces together. The estimate for the remaining pieces is scaled
    by the ratio of real to expected time so far.
    """

    def __init__(self, noun, count, expected, stream=None, clock=time.monotonic):
        self.noun, self.count, self.expected = noun, count, expected
        self.stream, self.clock = stream or sys.stderr, clock
        self.live = self.stream.isatty()
        self.begun, self.pieces, self.done = clock(), 0, 0.0

    def piece_done(self, expected):
        self.pieces += 1
        self.done += expected
        self.show()

    def line(self):
        passed = self.clock() - self.begun
        slower = passed / self.done if self.done > 0 else 1.0
        text = f"{self.noun} {self.pieces} of {self.count}"
        if self.pieces > 0 and passed > 0:
            text += f", {60 * self.pieces / passed:.1f} a minute"
        return text + f", {span(max(0.0, self.expected - self.done) * slower)} left"

    def show(self):
        if self.live:
            self.stream.write("\r\x1b[K" + self.line())
            self.stream.flush()

    def say(self, *words):
        """Prints a line above the progress line."""
        if self.live:
            self.stream.write("\r\x1b[K" + " ".join([time.strftime("%H:%M:%S")] + [str(word) for word in words]) + "\n")
            self.show()

    def end(self):
        if self.live:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
