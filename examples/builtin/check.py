"""Compares this implementation with stored vectors of the architecture: `check.py FOLDER`.

FOLDER holds ckpt-w16/ and vectors-w16.json, .safetensors. Logits may differ by 1e-3.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

import checkpoint
import drafts
import hashing
import model as arch


def batch_of(hashes, tokens, image=None, low=0, tail=None, replay=None):
    """One document as a batch; replay = (start, hit) recomputes from start behind stored keys up to hit."""
    n = len(tokens)
    image = np.zeros(n, dtype=bool) if image is None else np.array(image)
    rows, run = np.arange(n), np.zeros(n, dtype=int)
    write = np.ones(n, dtype=bool)
    if replay:
        start, hit = replay
        rows = np.concatenate((np.arange(hit), np.arange(start, n)))
        run = np.concatenate((np.zeros(hit), np.ones(n - start))).astype(int)
        write = (run == 0) | (rows >= hit)
    pad = -len(rows) % arch.BAND
    t = lambda a, fill: torch.from_numpy(np.concatenate((a, np.full((pad, *a.shape[1:]), fill, a.dtype))))[None]
    grams = hashes.rows(tokens, image)[:, rows]
    batch = {
        "tokens": t(np.array(tokens)[rows], 0), "pos": t(rows, 0), "run": t(run, -1), "doc": t(np.zeros(len(rows), dtype=int), -1),
        "low": t(np.full(len(rows), low), 0), "write": t(write, False), "image": t(image[rows], False),
        "engram": torch.nn.functional.pad(grams, (0, 0, 0, pad)).unsqueeze(1),
    }
    if tail is not None:
        kept = torch.arange(tail[0], tail[1])
        batch["tail"] = kept.masked_fill(kept >= n, -1)[None]
    return batch


def report(name, got, want, allowed=1e-3):
    gap = (got - want).abs().max().item()
    print(f"{'ok  ' if gap <= allowed else 'FAIL'} {name}: largest difference {gap:.1e}")
    return gap <= allowed


@torch.no_grad()
def main(folder):
    folder = pathlib.Path(folder)
    c = checkpoint.config(folder / "ckpt-w16")
    m, d = arch.Model(c), drafts.Drafter(c)
    checkpoint.load(folder / "ckpt-w16", m, d)
    stored = json.loads((folder / "vectors-w16.json").read_text())
    tensors = load_file(folder / "vectors-w16.safetensors")
    tables = load_file(folder / "ckpt-w16/engram_tables.safetensors")
    of, count = hashing.classes(Tokenizer.from_file(str(folder / "ckpt-w16/tokenizer.json")))
    good = np.array_equal(of, tables["vocab_map"].numpy()) and count == c.engram_compressed_vocab_size
    hashes = hashing.Hashes(c.text, of)
    good &= hashes.primes == tables["primes"].tolist() and np.array_equal(np.stack(hashes.multipliers), tables["multipliers"].numpy())
    print("ok  " if good else "FAIL", "engram tables")
    run = lambda tokens, **kind: m(batch_of(hashes, tokens, **kind))
    for length, prompt in stored["prompts"].items():
        hidden, _, _ = run(prompt["tokens"])
        good &= report(f"prompt of {length}", m.logits(hidden)[prompt["full_logit_positions"]], tensors[f"p{length}.logits"])
    for case in stored["decoder_truncation"]:
        n, keep = int(case["prompt"]), case["keep"]
        tokens = stored["prompts"][case["prompt"]]["tokens"]
        rows = n - keep, n - keep + -(-keep // arch.BAND) * arch.BAND
        want = tensors[f"trunc{n}.logits"]
        hidden, _, _ = run(tokens, low=n - keep, tail=rows)
        good &= report(f"truncated prefill of {n}, rows left out", m.logits(hidden)[[0, keep - 1]], want)
        hidden, _, _ = run(tokens, low=n - keep)
        good &= report(f"truncated prefill of {n}, rows masked", m.logits(hidden)[[n - keep, n - 1]], want)
    for i, case in enumerate(stored["prefix_hits"]):
        if case["H"] % 2 or case["decoder_truncation"] or case["donor"] != "cold":
            continue
        tokens, start, hit = stored["prompts"][case["prompt"]]["tokens"], case["replay_start"], case["H"]
        if start % 2:
            continue
        hidden, _, _ = run(tokens, replay=(start, hit))
        at = torch.tensor(case["logit_positions"]) - start + hit
        good &= report(f"hit of {hit}, {case['kind']} replay", m.logits(hidden)[at], tensors[f"hit{i}.logits"])
    for i, case in enumerate(stored["dspark"]):
        good &= draft_case(m, d, hashes, stored, tensors, i, case)
    good &= image_case(m, hashes, stored["vision"], tensors)
    return good


def draft_case(m, d, hashes, stored, tensors, i, case):
    """Base logits, corrected logits and confidences of one draft block."""
    n, prompt = case["n"], stored["prompts"][case["prompt"]]
    tokens = (prompt["tokens"] + prompt["greedy32"])[:n]
    low, c = 0, m.c
    if "truncated" in case["note"]:
        low = max(0, n - c.sliding_window - 6)
    _, features, _ = m(batch_of(hashes, tokens, low=low))
    rows = torch.arange(n - c.sliding_window, n)[None].clamp(min=-1)
    following = None if case["forced"] is None else torch.tensor([case["forced"]])
    got = d.block(m, d.context(features), rows, torch.tensor([n]), torch.tensor([case["golden"]]), following)
    good = True
    for name, value in (("base", got.base), ("corrected", got.corrected), ("confidence", got.confidence)):
        good &= report(f"draft {i}, {name}", value[0], tensors[f"dspark{i}.{name}"], 2e-4 if name == "confidence" else 1e-3)
    return good


def image_case(m, hashes, case, tensors):
    """The span of an image, and a prompt that holds it."""
    tokens, rgb = case["tokens"], tensors["vision.rgb"]
    image = np.array([case["span"][0] <= i < case["span"][1] for i in range(len(tokens))])
    batch = batch_of(hashes, tokens, image=image)
    batch["images"], batch["image_rows"] = rgb[None], torch.from_numpy(np.flatnonzero(image))
    hidden, _, _ = m(batch)
    good = report("image span", m.vision(rgb[None])[0], tensors["vision.span_rows"])
    return good & report("prompt with an image", m.logits(hidden)[case["logit_positions"]], tensors["vision.logits"])


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1]) else 1)
