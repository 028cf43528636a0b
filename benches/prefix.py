#!/usr/bin/env python3
"""What a shared prefix saves: time to the first token of 16 clients whose prompts begin alike.

    benches/prefix.py http://127.0.0.1:8000 [--clients 16] [--tokens 2000] [--rounds 3]

Works against any server that speaks OpenAI's chat completions. Each round takes a prefix that the server cannot have
seen: first one client alone (cold), then all clients at once with the same prefix and another question each. A server
that keeps prefixes answers the second kind sooner than the first; one that does not, many times later.
"""

import argparse
import http.client
import json
import random
import statistics
import threading
import time
import urllib.parse

WORDS = """river mountain letter window market garden copper silver winter summer morning evening harbour bridge engine
carpet ladder bottle candle forest meadow island desert valley planet comet signal mirror basket hammer anchor ribbon
thunder shadow feather marble orchard lantern""".split()


def connect(url):
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    return kind(url.hostname, url.port, timeout=600)


def ask(url, body):
    """A connection with its answer's head read."""
    connection = connect(url)
    headers = {"content-type": "application/json"}
    connection.request("POST", url.path.rstrip("/") + "/chat/completions", json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"the server answers {response.status}: {response.read(500).decode(errors='replace')}")
    return connection, response


def body(model, prompt, **more):
    messages = [{"role": "user", "content": prompt}]
    return {"model": model, "messages": messages, "temperature": 0, "max_tokens": 4, **more}


def first_token(url, model, prompt):
    """Seconds from sending a request to the first piece of its answer."""
    start = time.perf_counter()
    connection, response = ask(url, body(model, prompt, stream=True))
    taken = None
    for line in response:
        data = line.decode().strip()
        if data.startswith("data:") and data != "data: [DONE]":
            choices = json.loads(data[5:]).get("choices") or [{}]
            delta = choices[0].get("delta", {})
            if taken is None and (delta.get("content") or delta.get("reasoning_content")):
                taken = time.perf_counter() - start
    connection.close()
    if taken is None:
        raise SystemExit("an answer ended without a token")
    return taken


def together(url, model, prompts):
    """The same for several clients at once."""
    times, lock, gate = [], threading.Lock(), threading.Barrier(len(prompts))

    def client(prompt):
        gate.wait()
        taken = first_token(url, model, prompt)
        with lock:
            times.append(taken)

    threads = [threading.Thread(target=client, args=(prompt,)) for prompt in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(times) != len(prompts):
        raise SystemExit("some clients got no answer")
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--model", help="default: the first that the server names")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    root = options.url.rstrip("/")
    url = urllib.parse.urlsplit(root if root.endswith("/v1") else root + "/v1")
    model = options.model
    if model is None:
        connection = connect(url)
        connection.request("GET", url.path + "/models")
        model = json.loads(connection.getresponse().read())["data"][0]["id"]
    draw = random.SystemRandom()
    words = lambda count: " ".join(draw.choice(WORDS) for _ in range(count))
    count = lambda prompt: json.loads(ask(url, body(model, prompt))[1].read())["usage"]["prompt_tokens"]
    few, many = count(words(50)), count(words(250))
    length = round(options.tokens * 200 / max(many - few, 1))
    cold, shared = [], []
    for _ in range(options.rounds):
        prefix = words(length) + "\n\n"
        cold.append(first_token(url, model, prefix + "Question 0: which word came first?"))
        prompts = [f"{prefix}Question {i}: which word came at place {i}?" for i in range(1, options.clients + 1)]
        shared.extend(together(url, model, prompts))
    tokens = count(words(length))
    one, all_ = statistics.median(cold), statistics.median(shared)
    print(f"{model}: prefix of about {tokens} tokens, {options.rounds} rounds, seconds to the first token")
    print(f"  one client, cold             median {one:8.3f}")
    print(f"  {options.clients:>2} clients, shared prefix   median {all_:8.3f}   worst {max(shared):8.3f}")
    print(f"  shared / cold                       {all_ / one:8.3f}")


if __name__ == "__main__":
    main()
