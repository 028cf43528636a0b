"""Marks the model on the held-out talks."""

from collections import defaultdict

import numpy as np
import torch

import data


def lay(speaker, hashes, c, ids, said, first, talk, truncate=False, hit=0):
    laid = data.Layout(ids, said, first, c.image_token, hashes, c.sliding_window, truncate, hit)
    laid.images = [t.image for t in talk.turns if t.image is not None]
    return laid


def batches(layouts, rows=8192):
    """(numbers, batch) of layouts of like length, one a line."""
    order = sorted(range(len(layouts)), key=lambda i: len(layouts[i]))
    at = 0
    while at < len(order):
        end = at + 1
        while end < len(order) and (-(-len(layouts[order[end]]) // 32) * 32) * (end - at + 1) <= rows:
            end += 1
        chosen = order[at:end]
        length = -(-max(len(layouts[i]) for i in chosen) // 32) * 32
        yield chosen, data.assemble([[layouts[i]] for i in chosen], length)
        at = end


@torch.no_grad()
def forced(model, layouts):
    """Whether the model, led along the right answer, would have said each of its tokens itself; and the loss."""
    right, loss = [False] * len(layouts), [0.0] * len(layouts)
    for chosen, batch in batches(layouts):
        hidden, _, _ = model(batch)
        target = batch["target"]
        picked = target >= 0
        logits = model.logits(hidden[picked.flatten()])
        ok = torch.ones_like(target, dtype=torch.bool)
        ok[picked] = logits.argmax(-1) == target[picked]
        cost = torch.zeros(target.shape)
        cost[picked] = torch.nn.functional.cross_entropy(logits, target[picked], reduction="none")
        for line, i in enumerate(chosen):
            right[i], loss[i] = bool(ok[line].all()), float(cost[line].sum() / picked[line].sum())
    return right, loss


@torch.no_grad()
def generate(model, speaker, hashes, talks, truncate=False, most=64):
    """Greedy answers, text behind the reasoning."""
    c = model.c
    begun = [speaker.prompt(t) for t in talks]
    ids, alive = [list(b) for b in begun], list(range(len(talks)))
    for _ in range(most):
        if not alive:
            break
        laid = []
        for i in alive:
            said = [False] * len(ids[i])
            one = lay(speaker, hashes, c, ids[i], said, len(begun[i]), talks[i], truncate)
            one.target[-1] = 0
            laid.append(one)
        still = []
        for chosen, batch in batches(laid):
            hidden, _, _ = model(batch)
            said = model.logits(hidden[(batch["target"] >= 0).flatten()]).argmax(-1).tolist()
            for n, token in zip(chosen, said):
                ids[alive[n]].append(token)
                if token != speaker.id["<|end|>"]:
                    still.append(alive[n])
        alive = sorted(still)
    return [speaker.answer_text(i[len(b):]) for i, b in zip(ids, begun)]


def mark(model, speaker, hashes, talks, truncate=False, hit=False, thorough=True):
    """Right answers and mean loss per task: {task: (right, of, loss)}."""
    layouts, rng = [], np.random.default_rng(5)
    for t in talks:
        ids, said, first = speaker.whole(t)
        window = model.c.sliding_window
        at = (first - 1) // 16 * 16 if hit and not t.turns[0].image is not None else 0
        layouts.append(lay(speaker, hashes, model.c, ids, said, first, t, truncate, at if at > window else 0))
    right, loss = forced(model, layouts)
    if thorough and not hit:
        wrong = [i for i, ok in enumerate(right) if not ok and len(layouts[i]) < 256]  # longer ones stay as they are
        for i, answer in zip(wrong, generate(model, speaker, hashes, [talks[i] for i in wrong], truncate)):
            right[i] = answer == talks[i].turns[0].answer
    table = defaultdict(lambda: [0, 0, 0.0])
    for t, ok, cost in zip(talks, right, loss):
        row = table[t.task]
        row[0], row[1], row[2] = row[0] + ok, row[1] + 1, row[2] + cost
    return {k: (r, n, cost / n) for k, (r, n, cost) in table.items()}
