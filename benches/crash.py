#!/usr/bin/env python3
"""A server with a prefix store that is killed in the middle of its work, again and again.

    benches/crash.py [MODEL] [--binary target/release/millstream] [--rounds 100] [--seed N]

Each round starts a server on the same folder, asks again what the last round was asked, then lets clients with shared
beginnings ask at once, and kills it (SIGKILL) at a random moment, some rounds before it listens. After every third kill
a byte of some pack is changed, or a pack is cut short. What must come out: the store is usable each time, and whoever is
answered is answered as by a server without a store that nobody kills. Prints what each round saw; exits 1 where a word
differs, a server does not start, or a store finds nothing any more.
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time

TOPOLOGY = """model = "{model}"
[actors.gateway]
listen = "127.0.0.1:0"
[actors.prefill]
[actors.decode]
{cache}"""
CACHE = '[cache]\ntiers = [{{ host = "8MiB" }}, {{ disk = "{folder}", size = "256MiB" }}]\n'
WORDS = """river mountain letter window market garden copper silver winter summer morning evening harbour bridge engine
carpet ladder bottle candle forest meadow island desert valley planet comet signal mirror basket hammer anchor ribbon
thunder shadow feather marble orchard lantern""".split()


class Server:
    """A process of the program, and its client."""

    def __init__(self, binary, file, wait=True):
        self.started = time.monotonic()
        self.process = subprocess.Popen([binary, "serve", file], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.address = None
        if wait:
            said = self.process.stdout.readline()
            if "http://" not in said:
                raise SystemExit(f"the server said {said!r}")
            self.address = said.split()[-1].removeprefix("http://")
        self.ready_s = time.monotonic() - self.started

    def ask(self, question):
        """The whole answer, and how much of the prompt was found; None where the connection was cut."""
        try:
            connection = http.client.HTTPConnection(self.address, timeout=60)
            connection.request("POST", "/v1/chat/completions", json.dumps(question), {"content-type": "application/json"})
            response = connection.getresponse()
            body = response.read()
            connection.close()
        except (OSError, http.client.HTTPException):
            return None
        if response.status != 200:
            raise SystemExit(f"the server answers {response.status}: {body[:500].decode(errors='replace')}")
        answer = json.loads(body)
        found = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return answer["choices"][0]["message"]["content"], found

    def metric(self, name):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        return sum(float(n) for n in re.findall(rf"^millstream_store_{name}\S* (\S+)$", text, re.M))

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


def questions(draw, beginnings, each):
    """Prompts with shared beginnings, greedy ones and ones that draw."""
    words = lambda count: " ".join(draw.choice(WORDS) for _ in range(count))
    asked = []
    for _ in range(beginnings):
        beginning = words(110)
        for n in range(each):
            wishes = {"temperature": 0} if n % 2 else {"temperature": 0.8, "seed": draw.randrange(1 << 31)}
            messages = [{"role": "user", "content": f"{beginning} {words(12)}"}]
            asked.append({"model": "default", "messages": messages, "max_tokens": 16, "ignore_eos": True, **wishes})
    return asked


class Crowd(threading.Thread):
    """Asks what is left, one after the other, until all is answered or the server is gone."""

    def __init__(self, server, left, answers):
        super().__init__()
        self.server, self.left, self.answers = server, left, answers

    def run(self):
        while self.left:
            try:
                number, question = self.left.pop()
            except IndexError:
                return
            answer = self.server.ask(question)
            if answer is None:
                return
            self.answers[number] = answer


def harm(draw, folder):
    """Changes a byte of a pack, or cuts it short. Says what it did."""
    packs = sorted(folder.glob("*/pack-*"))
    if not packs:
        return "-"
    pack = draw.choice(packs)
    data = bytearray(pack.read_bytes())
    place = draw.randrange(len(data))
    if draw.random() < 0.3:
        pack.write_bytes(data[:place])
        return "cut"
    data[place] ^= 1 << draw.randrange(8)
    pack.write_bytes(data)
    return "flip"


def round_of(number, draw, options, files, before):
    """One life of a server. Returns what it saw, and what the next one is asked first."""
    store, plain, folder = files
    row = {"round": number}
    server = Server(options.binary, store, wait=number % 10 != 9)
    if server.address is None:
        time.sleep(draw.uniform(0, 0.15))
        server.kill()
        return row | {"killed": "at start"}, before
    row["start"] = f"{server.ready_s * 1000:.0f} ms"
    # What the last life was asked, whether it answered or not.
    again = [(question, answer, server.ask(question)) for question, answer in before]
    row["found"] = sum(said[1] for _, _, said in again)
    row["wrong"] = sum(said[0] != answer for _, answer, said in again)
    row["damaged"] = int(server.metric("damaged_blocks"))
    row["refused"] = int(server.metric("refused"))
    asked = questions(draw, options.beginnings, options.each)
    left, answers = list(enumerate(asked)), {}
    clients = [Crowd(server, left, answers) for _ in range(options.clients)]
    for client in clients:
        client.start()
    wait = draw.uniform(0.02, options.longest)
    time.sleep(wait)
    server.kill()
    for client in clients:
        client.join()
    row["killed"] = f"{wait:.2f} s"
    expected = [plain.ask(question)[0] for question in asked]
    row["whole"] = f"{len(answers)}/{len(asked)}"
    row["wrong"] += sum(said != expected[n] for n, (said, _) in answers.items())
    row["drafts"] = len(list(folder.glob("*/.draft-*")))
    row["packs"] = len(list(folder.glob("*/pack-*")))
    row["harm"] = harm(draw, folder) if number % 3 == 2 else ""
    return row, list(zip(asked, expected))[:: options.each]


COLUMNS = {"round": 5, "start": 8, "found": 6, "damaged": 8, "refused": 8, "killed": 9, "whole": 6, "drafts": 7, "packs": 6, "harm": 5, "wrong": 6}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="builtin")
    parser.add_argument("--binary", default="target/release/millstream")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31))
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--beginnings", type=int, default=3)
    parser.add_argument("--each", type=int, default=4, help="questions of each beginning")
    parser.add_argument("--longest", type=float, default=1.0, help="seconds of work before a kill, at most")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"seed {options.seed}")
    print("".join(f"{name:>{width}}" for name, width in COLUMNS.items()), flush=True)
    draw = random.Random(options.seed)
    model = options.model if options.model == "builtin" else pathlib.Path(options.model).resolve()
    wrong, found, damaged, rows, start = 0, 0, 0, [], time.monotonic()
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        folder, files = place / "kv", []
        for name, cache in [("store", CACHE.format(folder=folder)), ("plain", "")]:
            files.append(place / f"{name}.toml")
            files[-1].write_text(TOPOLOGY.format(model=model, cache=cache))
        plain = Server(options.binary, files[1])
        before = []
        try:
            for number in range(options.rounds):
                row, before = round_of(number, draw, options, (files[0], plain, folder), before)
                rows.append(row)
                print("".join(f"{row.get(name, ''):>{width}}" for name, width in COLUMNS.items()), flush=True)
        finally:
            plain.kill()
    wrong, found, damaged, refused, drafts = (sum(row.get(name, 0) for row in rows) for name in ("wrong", "found", "damaged", "refused", "drafts"))
    print(f"{len(rows)} kills in {time.monotonic() - start:.0f} s: {drafts} while an object was written; {found} tokens found again,"
          f" {damaged} damaged blocks and {refused} damaged packs passed over, {wrong} wrong answers")
    sys.exit(0 if wrong == 0 and (found > 0 or len(rows) < 3) else 1)


if __name__ == "__main__":
    main()
