"""Batches: talks laid side by side in lines, some of them as a truncated prefill or a bounded replay would see them."""

import json
import random

import numpy as np
import torch

import draw
import tasks

ROWS = ("tokens", "pos", "run", "doc", "low", "target")
FILL = {"tokens": 0, "pos": 0, "run": -1, "doc": -1, "low": 0, "target": -1, "write": False, "image": False}


class Layout:
    """One talk as rows, in the form that a batch takes them."""

    def __init__(self, ids, said, first, image_id, hashes, window, truncate=False, hit=0):
        n = len(ids)
        image = np.array(ids) == image_id
        rows, run = np.arange(n), np.zeros(n, dtype=np.int64)
        if hit:  # the first `hit` rows are the run that stored its keys, then the replay begins a window earlier
            start = hit - window
            rows = np.concatenate((np.arange(hit), np.arange(start, n)))
            run = np.concatenate((np.zeros(hit, dtype=np.int64), np.ones(n - start, dtype=np.int64)))
        target = np.where(np.append(said[1:], False), np.append(ids[1:], 0), -1)
        target[: first - 1] = -1
        self.tokens, self.pos, self.run, self.image = np.array(ids)[rows], rows, run, image[rows]
        self.low = np.full(len(rows), max(0, first - window - 6) if truncate else 0)
        self.write = (run == 0) | (rows >= hit)
        self.target = np.where(run == run.max(), target[rows], -1)
        self.engram = hashes.rows(ids, image)[:, rows]
        self.images = []

    def __len__(self):
        return len(self.tokens)


class Maker:
    """Makes batches without end from a seed; never anything that the evaluation asks."""

    def __init__(self, speaker, hashes, config, seed, barred):
        self.speaker, self.hashes, self.c, self.rng, self.barred = speaker, hashes, config, random.Random(seed), barred
        self.waiting = []
        self.truncate, self.replay = 0.4, 0.15

    def allowed(self, talk):
        return talk.known not in self.barred and not any(t.text in self.barred for t in talk.turns if t.image is None)

    def talk(self, make):
        while True:
            talk = make()
            if self.allowed(talk):
                return talk

    def lay(self, talk, truncate):
        ids, said, first = self.speaker.whole(talk)
        window, hit = self.c.sliding_window, 0
        has_image = any(t.image is not None for t in talk.turns)
        if first > window + 4 and not has_image and self.rng.random() < self.replay:
            hit = self.rng.randrange(window + 2, first, 2)
        laid = Layout(ids, said, first, self.c.image_token, self.hashes, window, truncate, hit)
        laid.images = [t.image for t in talk.turns if t.image is not None]
        return laid

    def short(self, lines, length, weights):
        """Short talks, packed."""
        packed, room, misses = [[] for _ in range(lines)], [length] * lines, []
        waiting, self.waiting = self.waiting, []
        while len(misses) < 12:
            if waiting:
                laid = waiting.pop()
            else:
                talk = self.talk(lambda: tasks.short(self.rng, weights))
                laid = self.lay(talk, self.rng.random() < self.truncate)
                if len(laid) > length:
                    continue
            size = len(laid) + len(laid) % 2
            fitting = next((i for i in range(lines) if room[i] >= size), None)
            if fitting is None:
                misses.append(laid)
            else:
                packed[fitting].append(laid)
                room[fitting] -= size
        self.waiting = misses + waiting
        return assemble(packed, length)

    def long(self, lines, length, tail, asked):
        """One haystack a line; the decoder computes its last rows only, unless `tail` is 0."""
        packed = []
        while len(packed) < lines:
            size = int(length * self.rng.uniform(0.6, 0.97)) - 34 * asked
            talk = self.talk(lambda: tasks.long(self.rng, max(60, size), asked))
            laid = self.lay(talk, tail > 0)
            if len(laid) <= length and (not tail or (laid.pos >= laid.low).sum() <= tail + self.c.sliding_window):
                packed.append([laid])
        batch = assemble(packed, length)
        if tail:
            keep = torch.full((lines, tail), -1)
            for i, (laid,) in enumerate(packed):
                at = np.flatnonzero((laid.run == laid.run.max()) & (laid.pos >= laid.low))[:tail]
                keep[i, : len(at)] = torch.from_numpy(at)
            batch["tail"] = keep
            batch["target"] = batch["target"].gather(1, keep.clamp(min=0)).masked_fill(keep < 0, -1)
        return batch


def assemble(packed, length):
    """Lines of layouts to one batch of tensors."""
    lines = len(packed)
    out = {k: np.full((lines, length), v) for k, v in FILL.items()}
    first = next(l for line in packed for l in line)
    engram = np.zeros((first.engram.shape[0], lines, length, first.engram.shape[2]), dtype=np.int64)
    images, image_rows = [], []
    for i, line in enumerate(packed):
        at = 0
        for d, laid in enumerate(line):
            here = slice(at, at + len(laid))
            for k in ("tokens", "pos", "low", "target", "write", "image"):
                out[k][i, here] = getattr(laid, k)
            out["run"][i, here], out["doc"][i, here] = laid.run + 2 * d, d
            engram[:, i, here] = laid.engram
            if laid.images:
                images += laid.images
                image_rows += (i * length + at + np.flatnonzero(laid.image)).tolist()
            at += len(laid) + len(laid) % 2
    batch = {k: torch.from_numpy(v) for k, v in out.items()}
    batch["engram"] = torch.from_numpy(engram)
    if images:
        batch["images"], batch["image_rows"] = torch.from_numpy(np.stack(images)), torch.tensor(image_rows)
    return batch


def held_out(seed, each=100):
    """The evaluation: talks of every task that training never sees."""
    rng, talks, seen = random.Random(seed), [], set()
    first = tasks.Turn("What is 37 + 45?", tasks.add(37, 45), "82")
    talks.append(tasks.Talk("arithmetic", [first], known=("+", 37, 45)))
    makers = {name: make for name, (make, _) in tasks.SHORT.items()}
    makers["recall"] = lambda r: tasks.long(r, r.randint(100, 880), 1)
    for name, make in makers.items():
        count = sum(t.task == name for t in talks)
        while count < each:
            talk = make(rng)
            key = (talk.turns[0].text, talk.turns[0].answer) if name == "image" else talk.turns[0].text
            if (key in seen and name != "image") or len(talk.turns) > 1:
                continue
            seen.add(key)
            talks.append(talk)
            count += 1
    return talks


def barred(talks):
    """What training must not make."""
    return {t.turns[0].text for t in talks if t.task != "image"} | {t.known for t in talks if t.known}


def write_cases(path, talks):
    with open(path, "w") as file:
        for talk in talks:
            turn, content = talk.turns[0], talk.turns[0].text
            if turn.image is not None:
                content = [{"type": "image_url", "image_url": {"url": draw.data_url(turn.image)}}, {"type": "text", "text": turn.text}]
            messages = [{"role": "user", "content": content}]
            file.write(json.dumps({"task": talk.task, "messages": messages, "answer": turn.answer}) + "\n")
