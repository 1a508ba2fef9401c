#!/usr/bin/python3
"""Passes connections on, later: imitates the latency of a link, on kernels without netem, too.

    bench/delayed.py MILLISECONDS LISTEN_ADDRESS:PORT TO_ADDRESS:PORT

Every byte arrives so many milliseconds later, in both directions, in order. The rate is not limited. Prints "ready" when it listens, and ends with a signal.
"""
import asyncio
import sys

CHUNK = 1 << 16


async def pass_on(reader, writer, delay_s):
    """Until the sender closes its side."""
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue()

    async def deliver():
        while True:
            due, data = await waiting.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()

    delivering = asyncio.create_task(deliver())
    try:
        while True:
            data = await reader.read(CHUNK)
            waiting.put_nowait((loop.time() + delay_s, data))
            if not data:
                break
        await delivering
    except OSError:  # one side has broken the connection
        delivering.cancel()
        writer.close()


def parse_address(text):
    host, _, port = text.rpartition(":")
    return host, int(port)


async def serve(delay_s, listen, to):
    async def connected(reader, writer):
        try:
            far_reader, far_writer = await asyncio.open_connection(*to)
        except OSError:
            writer.close()
            return
        await asyncio.gather(pass_on(reader, far_writer, delay_s), pass_on(far_reader, writer, delay_s))
        writer.close()
        far_writer.close()

    server = await asyncio.start_server(connected, *listen)
    print("ready", flush=True)
    await server.serve_forever()


def main():
    if len(sys.argv) != 4:
        sys.exit(__doc__)
    asyncio.run(serve(float(sys.argv[1]) / 1e3, parse_address(sys.argv[2]), parse_address(sys.argv[3])))


if __name__ == "__main__":
    main()
