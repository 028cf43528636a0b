#!/usr/bin/env python3
"""Millstream beside llama.cpp: one model file, one run, the same threads, turn by turn, the best turn of each.

    benches/peer.py MODEL.gguf --llama DIR [--threads N] [--rounds 3] [--depth 64]

DIR holds llama-bench and llama-batched-bench. Both sides compute the same: a prompt of 512 tokens, 128 tokens of one
sequence, and 128 tokens of each of 16 sequences, the latter two after DEPTH positions. Read the ratios: the speeds
change with the machine and its other load.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys

PROMPT, GENERATE, SEQUENCES = 512, 128, 16


def run(command, environment=None):
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def ours(options):
    said = run([
        options.millstream, "bench", options.model, "--json", "--repeat", "1", "--threads", str(options.threads),
        "--prompt", str(PROMPT), "--generate", str(GENERATE), "--depth", str(options.depth), "--batch", f"1,{SEQUENCES}",
    ])
    rows = json.loads(said)["rows"]
    # Two readings of the prompt are measured; the peer computes it in chunks that it likes best, and so may we.
    prefill = max(row["tokens_per_second"] for row in rows if row["kind"] == "prefill")
    decode = {row["batch"]: row["tokens_per_second"] for row in rows if row["kind"] == "decode"}
    return {"prefill": prefill, "decode": decode[1], "batch": decode[SEQUENCES]}


def theirs(options):
    folder = pathlib.Path(options.llama)
    environment = dict(os.environ)
    environment["LD_LIBRARY_PATH"] = f"{folder}:{environment.get('LD_LIBRARY_PATH', '')}"
    common = ["-m", options.model, "-t", str(options.threads), "-ngl", "0"]
    single = [str(folder / "llama-bench"), *common, "-r", "1", "-o", "json"]
    prefill = json.loads(run([*single, "-p", str(PROMPT), "-n", "0"], environment))
    decode = json.loads(run([*single, "-p", "0", "-n", str(GENERATE), "-d", str(options.depth)], environment))
    batched = run([
        str(folder / "llama-batched-bench"), *common, "-c", str(SEQUENCES * (options.depth + GENERATE) + 256),
        "-npp", str(options.depth), "-ntg", str(GENERATE), "-npl", str(SEQUENCES), "--output-format", "jsonl",
    ], environment)
    row = next(json.loads(line) for line in batched.splitlines() if line.startswith("{"))
    return {"prefill": prefill[0]["avg_ts"], "decode": decode[0]["avg_ts"], "batch": row["speed_tg"]}


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", root / "target"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--llama", required=True, help="folder of llama-bench and llama-batched-bench")
    parser.add_argument("--millstream", default=str(target / "release" / "millstream"))
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--depth", type=int, default=64)
    options = parser.parse_args()
    best = {"ours": {}, "theirs": {}}
    for turn in range(options.rounds):
        print(f"round {turn + 1} of {options.rounds}", file=sys.stderr)
        for side, measure in (("ours", ours), ("theirs", theirs)):
            for name, speed in measure(options).items():
                best[side][name] = max(speed, best[side].get(name, 0.0))
    print(f"{os.path.basename(options.model)}, {options.threads} threads, best of {options.rounds} rounds, tokens/s")
    print(f"{'':<34}{'millstream':>12}{'llama.cpp':>12}{'ratio':>8}")
    for name, words in (
        ("decode", f"decode, after {options.depth}"),
        ("prefill", f"prefill {PROMPT}"),
        ("batch", f"decode x {SEQUENCES}, after {options.depth}, together"),
    ):
        mine, other = best["ours"][name], best["theirs"][name]
        print(f"{words:<34}{mine:>12.1f}{other:>12.1f}{mine / other:>8.2f}")


if __name__ == "__main__":
    main()
