#!/usr/bin/env python3
"""A crowd for a long time: 1,000 streams of mixed lengths at once, each client asking again when it is answered.

    benches/soak.py MODEL [--binary target/release/millstream] [--streams 1000] [--minutes 10]

Starts a server of its own on MODEL, with room for the crowd and all memory for keys and values taken at once, and
prints once a minute what failed, its memory and its blocks. What must come out: none fails, memory is flat after the
first minute, and at the end every block is back. Exits 1 when it is not so. As a measure beside it, one client alone
asks before the crowd comes.
"""

import argparse
import asyncio
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile
import time

TOPOLOGY = """model = "{model}"
kv = "f16"
reserve = true
[actors.gateway]
listen = "127.0.0.1:0"
requests_max = {room}
deadline = "30m"
[actors.prefill]
[actors.decode]
"""
WORDS = "river stone lamp cloud green seven paper north early quiet bright small water road glass iron field".split()
# Memory may move by so much after the first minute: what the allocator keeps, not what streams leave behind.
SLACK = 1.03


class Crowd:
    """What all clients saw together."""

    def __init__(self, address):
        self.host, self.port = address.removeprefix("http://").split(":")
        self.whole, self.tokens, self.failed, self.open = 0, 0, [], 0

    async def ask(self, draw):
        """One stream, read to its end; counts its pieces."""
        prompt = " ".join(draw.choice(WORDS) for _ in range(draw.choice((4, 16, 60, 240))))
        body = {"model": "default", "stream": True, "max_tokens": draw.choice((8, 32, 128, 400)), "ignore_eos": True}
        body |= {"messages": [{"role": "user", "content": prompt}], "seed": draw.randrange(1 << 31)}
        data = json.dumps(body).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: {self.host}\r\ncontent-type: application/json\r\n"
        head += f"connection: close\r\ncontent-length: {len(data)}\r\n\r\n"
        reader, writer = await asyncio.open_connection(self.host, int(self.port))
        self.open += 1
        try:
            writer.write(head.encode() + data)
            pieces, finish, status = 0, None, None
            while line := await reader.readline():
                status = status or line.split()[1].decode()
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return f"status {status}: {event['error']}"
                    for choice in event["choices"]:
                        pieces += 1
                        finish = choice.get("finish_reason") or finish
            if status != "200" or finish != "length":
                return f"status {status}, finish {finish} after {pieces} pieces"
            self.tokens += body["max_tokens"]
            self.whole += 1
            return None
        finally:
            self.open -= 1
            writer.close()

    async def client(self, seed, until):
        draw = random.Random(seed)
        while time.monotonic() < until:
            try:
                problem = await self.ask(draw)
            except (OSError, ValueError, IndexError) as error:
                problem = repr(error)
            if problem:
                self.failed.append(problem)

    async def blocks_used(self):
        reader, writer = await asyncio.open_connection(self.host, int(self.port))
        writer.write(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        text = (await reader.read()).decode()
        writer.close()
        return sum(float(n) for n in re.findall(r"^millstream_group_blocks_used\S* (\S+)$", text, re.M))


def resident(pid):
    """Memory of a process in MiB."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) / 1024


async def run(crowd, pid, options):
    start = time.monotonic()
    problem = await crowd.ask(random.Random(0))
    if problem:
        raise SystemExit(f"one client alone: {problem}")
    print(f"one client alone: {time.monotonic() - start:.2f} s; now {options.streams} for {options.minutes} minutes", flush=True)
    start = time.monotonic()
    until = start + options.minutes * 60
    clients = [asyncio.create_task(crowd.client(seed, until)) for seed in range(options.streams)]
    memory = []
    while time.monotonic() < until:
        await asyncio.sleep(max(0.0, min(60.0, until - time.monotonic())))
        memory.append(resident(pid))
        seconds = time.monotonic() - start
        blocks = await crowd.blocks_used()
        print(f"{seconds / 60:5.1f} min  {crowd.whole:6} whole  {len(crowd.failed):4} failed  {crowd.tokens / seconds:7.0f} tokens/s"
              f"  {memory[-1]:7.0f} MiB  {blocks:6.0f} blocks used", flush=True)
    await asyncio.gather(*clients)
    await asyncio.sleep(1)
    return memory, await crowd.blocks_used()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--binary", default="target/release/millstream")
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=10)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "crowd.toml"
        file.write_text(TOPOLOGY.format(model=options.model.resolve(), room=options.streams + 100))
        server = subprocess.Popen([options.binary, "serve", file], stdout=subprocess.PIPE, text=True)
        try:
            said = server.stdout.readline()
            if "http://" not in said:
                raise SystemExit(f"the server said {said!r}")
            crowd = Crowd(said.split()[-1])
            memory, blocks = asyncio.run(run(crowd, server.pid, options))
        finally:
            server.terminate()
            server.wait()
    print(f"{crowd.whole} whole, {len(crowd.failed)} failed, {blocks:.0f} blocks used at the end")
    for problem in crowd.failed[:5]:
        print("  " + problem)
    flat = max(memory) <= memory[0] * SLACK
    print(f"memory {memory[0]:.0f} MiB after the first minute, {max(memory):.0f} at most: {'flat' if flat else 'NOT flat'}")
    sys.exit(0 if flat and not crowd.failed and blocks == 0 else 1)


if __name__ == "__main__":
    main()
