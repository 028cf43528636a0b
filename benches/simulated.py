#!/usr/bin/env python3
"""The same requests, live and simulated: what a simulation says, beside what happens.

    benches/simulated.py MODEL [--binary target/release/millstream] [--minutes 10] [--rate 0.5] [--seed 1] [--split]

Draws requests that come at random moments, some of which begin alike, and writes them down as a trace. Serves MODEL and asks
them when the trace says; what steps cost is fitted meanwhile. Then the same topology simulates the same trace with these
coefficients. Prints mean time to first token, time per token of an answer, and tokens of answers a second, side by side;
exits 1 when they are apart by more than 15 %, 8 % and 5 %.
"""

import argparse
import asyncio
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time

TOPOLOGY = """model = "{model}"
[actors.gateway]
listen = "127.0.0.1:0"
requests_max = 1000
[actors.prefill]
step_time = "150ms"
chunk_tokens = 1024
[actors.decode]
joined = {joined}
"""
BLOCK = 16
BOUNDS = (("time to first token", 0.15), ("per token", 0.08), ("answer tokens a second", 0.05))


def drawn(options):
    """Requests: seconds, tokens of prompt and answer, numbers of blocks."""
    draw, at, requests, own = random.Random(options.seed), 0.0, [], 1 << 20
    while (at := at + draw.expovariate(options.rate)) < options.minutes * 60:
        tokens = min(max(int(draw.lognormvariate(5.3, 0.8)), 8), 1500)
        answer = min(max(int(draw.lognormvariate(3.9, 0.6)), 4), 200)
        beginning = draw.choice((0, 0, 100, 200))  # nothing, or one of two that many have
        shared = min(8, tokens // BLOCK) if beginning else 0
        blocks = [beginning + n for n in range(shared)]
        blocks += range(own, own + tokens // BLOCK - shared)
        own += 1 << 12
        requests.append((at, tokens, answer, blocks))
    return requests


def ids(tokens, blocks, own, vocabulary):
    """Token ids: of a block they follow from its number."""
    of = lambda number, count: [random.Random(number * 7919 + n).randrange(300, vocabulary) for n in range(count)]
    known = [token for block in blocks for token in of(block, BLOCK)]
    return known + of((1 << 40) + own, tokens - len(known))


async def ask(address, request, number, vocabulary, results, began):
    at, tokens, answer, blocks = request
    body = {"model": "default", "stream": True, "max_tokens": answer, "ignore_eos": True, "temperature": 0}
    data = json.dumps(body | {"prompt": ids(tokens, blocks, number, vocabulary)}).encode()
    await asyncio.sleep(max(0.0, began + at - time.monotonic()))
    sent, first, last = time.monotonic(), None, None
    reader, writer = await asyncio.open_connection(*address)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {address[0]}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data)
    while line := await reader.readline():
        if line.startswith(b"data: {"):
            if b'"error"' in line:
                sys.exit(line.decode())
            last = time.monotonic()
            first = first or last
    writer.close()
    if first is None:
        sys.exit(f"request {number} was not answered")
    results.append((first - sent, (last - first) / max(answer - 1, 1), answer, last - began))


async def live(options, topology, folder, requests):
    """Serves and asks; gives the three numbers."""
    environment = os.environ | {"MILLSTREAM_CACHE": str(folder)}
    server = subprocess.Popen([options.binary, "serve", topology], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        url = next(word for line in server.stdout for word in line.split() if word.startswith("http://"))
        host, port = url.removeprefix("http://").rstrip("/.,").split(":")
        address, results = (host, int(port)), []
        # What happens once, happens before.
        for warm in range(8):
            await ask(address, (0.0, 300, 24, []), (1 << 30) + warm, options.vocabulary, [], time.monotonic())
        began = time.monotonic()
        asked = [ask(address, request, n, options.vocabulary, results, began) for n, request in enumerate(requests)]
        await asyncio.gather(*asked)
    finally:
        server.terminate()
        server.wait(60)
    mean = lambda of: sum(result[of] for result in results) / len(results)
    return mean(0), mean(1), sum(result[2] for result in results) / max(result[3] for result in results)


def simulated(options, topology, folder, trace):
    costs = sorted(pathlib.Path(folder, "costs").glob("*.json"))
    if len(costs) != 1:
        sys.exit(f"{len(costs)} files of costs in {folder}: there should be one")
    command = [options.binary, "simulate", topology, "--trace", trace, "--costs", costs[0], "--json"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return report["first_token"]["mean"], report["per_token"]["mean"], report["rates"]["answer_tokens"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--binary", default="target/release/millstream")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vocabulary", type=int, help="token ids below this one are asked")
    parser.add_argument("--split", action="store_true")
    options = parser.parse_args()
    model = "builtin" if str(options.model) == "builtin" else options.model.resolve()
    options.vocabulary = options.vocabulary or (900 if model == "builtin" else 40_000)
    requests = drawn(options)
    with tempfile.TemporaryDirectory() as folder:
        topology, trace = pathlib.Path(folder, "topology.toml"), pathlib.Path(folder, "trace.jsonl")
        topology.write_text(TOPOLOGY.format(model=model, joined=str(not options.split).lower()))
        keys = ("timestamp", "input_length", "output_length", "hash_ids")
        lines = [{"chat_id": n} | dict(zip(keys, request)) for n, request in enumerate(requests)]
        trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        real = asyncio.run(live(options, topology, folder, requests))
        said = simulated(options, topology, folder, trace)
    print(f"{len(requests)} requests in {options.minutes} minutes\n{'':<24} {'live':>12} {'simulated':>12} {'apart':>8}")
    apart = [said / real - 1.0 for said, real in zip(said, real)]
    for (name, bound), real, said, apart_by in zip(BOUNDS, real, said, apart):
        print(f"{name:<24} {real:>12.4f} {said:>12.4f} {100 * apart_by:>7.1f}%  (bound {100 * bound:.0f} %)")
    sys.exit(any(abs(by) > bound for by, (_, bound) in zip(apart, BOUNDS)))


if __name__ == "__main__":
    main()
