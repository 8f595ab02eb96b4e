"""Measure how long a megabyte of server-sent events takes that comes in single bytes; it should be under two seconds.

Run as `python bench/sse.py`. Prints the time for three sizes; a flat last column says that the cost is linear.
"""

import time

from roder_trio.logic.sse import SseDecoder

FRAME = b"data: " + b"x" * 1000 + b"\n\n"


def main() -> None:
    """Feed streams of a quarter, a half and a whole megabyte, byte by byte."""
    for frames in (250, 500, 1000):
        stream, decoder = FRAME * frames, SseDecoder()
        began = time.process_time()
        found = sum(len(decoder.feed(stream[at : at + 1])) for at in range(len(stream)))
        spent = time.process_time() - began
        print(f"{len(stream):8} bytes, {found} frames: {spent:.2f} s, {spent / len(stream) * 1e6:.2f} us a byte")


if __name__ == "__main__":
    main()
