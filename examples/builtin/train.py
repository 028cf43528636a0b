"""Trains the built-in model: data, tokenizer, weights, everything from one seed.

    python train.py --out /tmp/builtin            # goes on from its last checkpoint when there is one

Two processes, a thread each, work on different batches and add their gradients: on a busy machine that keeps both cores
at work where threads of one process would wait for each other. `control.json` in the output folder, {"steps": ...,
"weights": {task: weight}}, changes a run while it goes on.
"""

import argparse
import json
import os
import random
import pathlib
import sys
import time

KEEP = {"MALLOC_MMAP_THRESHOLD_": "4294967296", "MALLOC_TRIM_THRESHOLD_": "17179869184", "MALLOC_TOP_PAD_": "268435456"}
if any(os.environ.get(k) != v for k, v in KEEP.items()):  # memory that is given back and fetched again costs a quarter of the time
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **KEEP})

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import checkpoint
import data
import draw
import hashing
import model as arch
import native
import optim
import score
import settings
import tasks
import text


def optimiser(m, muon=0.02):
    inside = lambda n: n.startswith("layers.") or n.startswith("vision.") or n.startswith("blocks.") or n.startswith("main_proj")
    small = ("hc_", "gate", "engram.embed", "sink", "norm", "engram.q_", "engram.k_", "bias", "start", "newline", "end")
    rates = [
        (lambda n, p: n in ("embed",), 6e-3),
        (lambda n, p: n in ("head", "markov_head"), 3e-3),
        (lambda n, p: ".engram.embed" in n, 1e-2),
        (lambda n, p: ".fn" in n or n.endswith("ffn.gate"), 2e-3),
        (lambda n, p: p.ndim >= 2 and inside(n) and "engram.q_" not in n and "engram.k_" not in n, "muon"),
        (lambda n, p: True, 4e-3),
    ]
    return optim.Optimiser(list(m.named_parameters()), muon, rates)


class Looking:
    """A second lesson for the eye, cheap and direct: colour, shape and count read off the mean of an image's rows."""

    def __init__(self, d, seed):
        self.rng = random.Random(seed)
        self.kinds = list(draw.COLOURS), draw.SHAPES, range(1, draw.MOST + 1)
        self.reader = torch.nn.Linear(d, sum(map(len, self.kinds)))
        self.opt = torch.optim.Adam(self.reader.parameters(), 3e-3)
        self.right, self.seen = [0.0, 0.0, 0.0], 0

    def loss(self, vision, count):
        drawn = [[self.rng.randrange(len(k)) for k in self.kinds] for _ in range(count)]
        images = [draw.picture(self.rng, draw.SHAPES[s], self.kinds[0][c], n + 1) for c, s, n in drawn]
        rows = vision(torch.from_numpy(np.stack(images)))[:, [1, 2, 4, 5]].mean(1)  # behind the start; a newline between
        self.seen += 1
        if self.seen <= 60:  # a reader that cannot read yet would teach the eye nonsense
            rows = rows.detach()
        parts = self.reader(rows).split([len(k) for k in self.kinds], -1)
        want = torch.tensor(drawn).T
        self.right = [0.95 * r + 0.05 * (p.argmax(-1) == w).float().mean().item() for r, p, w in zip(self.right, parts, want)]
        return sum(F.cross_entropy(p, w) for p, w in zip(parts, want))

    def step(self):
        self.opt.step()
        self.opt.zero_grad(set_to_none=True)


class Session:
    """Everything a run needs, and its checkpoint."""

    def __init__(self, out, seed, rank=0):
        self.rank = rank
        torch.manual_seed(seed)
        self.out = pathlib.Path(out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.tok = text.train(seed)
        self.raw, of = settings.config(self.tok)
        self.c = arch.Config.of(self.raw)
        self.hashes = hashing.Hashes(self.c.text, of)
        self.speaker = text.Speaker(self.tok, settings.SPAN)
        self.talks = data.held_out(seed + 1)
        self.model = arch.Model(self.c)
        self.opt = optimiser(self.model)
        self.step, self.rows, self.seed = 0, 0, seed
        self.make_data()

    def make_data(self):
        """Batches follow from the seed, the process and the step at which it began."""
        seed = f"{self.seed} {self.rank} {self.step}"
        self.looking = Looking(self.c.hidden_size, seed)
        self.maker = data.Maker(self.speaker, self.hashes, self.c, seed, data.barred(self.talks))

    def save(self):
        state = {"model": self.model.state_dict(), "opt": self.opt.state(), "step": self.step, "rows": self.rows, "words": self.tok.to_str()}
        torch.save(state, self.out / "state.new")
        (self.out / "state.new").rename(self.out / "state.pt")

    def resume(self):
        if not (self.out / "state.pt").exists():
            return
        state = torch.load(self.out / "state.pt", weights_only=False)
        assert state.get("words", self.tok.to_str()) == self.tok.to_str(), "the tokenizer is another one: its corpus has changed"
        self.model.load_state_dict(state["model"])
        self.opt.restore(state["opt"])
        self.step, self.rows = state["step"], state["rows"]
        self.make_data()

    def export(self, folder, drafter=None):
        checkpoint.save(folder, self.raw, self.model, drafter, self.tok, text.CHAT)


def set_exact(m, exact):
    """Exact arithmetic for marking, fast for training."""
    arch.Linear.fast = not exact
    for part in m.modules():
        if isinstance(part, arch.Experts):
            part.exact = exact


@torch.no_grad()
def loads(m, batch):
    """How often each expert was chosen, [layers, text or image, experts]."""
    live, image = (batch["run"] >= 0).flatten(), batch["image"].flatten()
    out = torch.zeros(len(m.layers), 2, m.c.n_routed_experts)
    for block, counts in zip(m.layers, out):
        chosen = block.ffn.chosen
        kinds = (chosen,) if len(chosen) != len(live) else (chosen[live & ~image], chosen[image])
        for count, part in zip(counts, kinds):
            count += torch.bincount(part.flatten(), minlength=len(count))
    return out


@torch.no_grad()
def balance(m, load, rate):
    """Pushes the bias of experts that get too little up, of those that get too much down."""
    for block, counts in zip(m.layers, load):
        for bias, count in zip((block.ffn.bias, block.ffn.bias_vl), counts):
            mean = count.mean()
            bias += rate * torch.sign(mean - count) * ((count - mean).abs() > 0.1 * mean)


def together(m, *more):
    """Adds up gradients and small tensors over the processes; what one has no gradient of counts as none."""
    params = [p for p in m.parameters() if p.requires_grad]
    flat = torch.cat([*(torch.zeros(p.numel()) if p.grad is None else p.grad.flatten() for p in params), *(t.flatten() for t in more)])
    if dist.is_initialized():
        dist.all_reduce(flat)
    at = 0
    for p in params:
        p.grad = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    out = []
    for t in more:
        out.append(flat[at : at + t.numel()].view_as(t))
        at += t.numel()
    return out


def batch_for(s, args):
    """The curriculum: short talks throughout; every fourth step, later every third, haystacks that grow. With it, whether
    the batch is seen without selection."""
    step, weights = s.step, {name: w for name, (_, w) in tasks.SHORT.items()}
    weights.update(tasks.LATER if step >= args.longer_from else {})
    weights.update(args.weights)
    every = 4 if step < 1000 else 3
    if step % every == 0 and step >= args.long_from:
        part = step // every % 8
        lengths = (256,) if step < args.longer_from else (256, 512, 256, 1152) if step < 2 * args.longer_from else (256, 512, 1152, 1152)
        length = lengths[part % len(lengths)]
        lines = max(2, args.rows * 5 // 4 // length)
        dense = part // 4 == 0 or step < args.longer_from
        if part == 3:  # without truncation of the decoder
            return s.maker.long(max(1, lines // 2), length, 0, 5), dense
        return s.maker.long(lines, length, *((352, 10) if length > 512 else (224, 6))), dense
    return s.maker.short(args.rows // 128, 128, weights), False


def learn(s, batch, dense, scale, args):
    m = s.model
    m.dense, m.learn_index = dense, batch["pos"].shape[1] > 128
    hidden, _, index = m(batch)
    target = batch["target"].flatten()
    picked = (target >= 0).nonzero().flatten()
    picked = torch.cat((picked, picked.new_zeros(-len(picked) % 64)))  # rows without a target; sizes that come again
    logits = m.logits(hidden.index_select(0, picked))
    loss = F.cross_entropy(logits, target[picked], ignore_index=-1)
    total = loss + args.index * index
    if batch["pos"].shape[1] == 128 and args.looks:
        total = total + s.looking.loss(m.vision, args.looks)
    total.backward()
    s.looking.step()
    load, cost = together(m, loads(m, batch), torch.stack((loss.detach(), index.detach())))
    norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
    if torch.isfinite(norm):
        s.opt.step(scale)
        balance(m, load, 0.004 * min(1, scale + 0.1))
    else:
        s.opt.clear()
        print("step", s.step, "left out: a gradient is not finite", flush=True)
    return [v / args.processes for v in cost.tolist()]


# Parts of a run, and the rate there as a share of the highest; straight in between.
FALL = ((0.32, 1.0), (0.6036, 0.2), (1.0, 0.0))


def rate(step, args):
    """Warm in 60 steps, whole for a third of the run, then down."""
    if step < 60:
        return (step + 1) / 60
    part = step / args.steps
    for (start, high), (end, low) in zip(FALL, FALL[1:]):
        if part < end:
            return max(0.02, high + (low - high) * max(0.0, part - start) / (end - start))
    return 0.02


def report(s, plain, part=5):
    """Marks every fifth held-out talk, led along the right answers: a quick look, not the final marks."""
    arch.Fused.use(None)
    talks = [t for i, t in enumerate(s.talks) if i % part == 0 and len(t.turns[0].text) < 3000]
    s.model.learn_index = False
    table = score.mark(s.model, s.speaker, s.hashes, talks, thorough=False)
    arch.Fused.use(None if plain else native.LOOPS)
    print("  marks", " ".join(f"{k} {r}/{n} ({cost:.3f})" for k, (r, n, cost) in table.items()), flush=True)


def arguments():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="builtin-out")
    args.add_argument("--steps", type=int, default=5500)
    args.add_argument("--rows", type=int, default=1024, help="rows of a batch, in each process")
    args.add_argument("--long-from", type=int, default=200)
    args.add_argument("--longer-from", type=int, default=700)
    args.add_argument("--index", type=float, default=0.3, help="weight of the index's loss")
    args.add_argument("--looks", type=int, default=24, help="images a step, in each process, for the eye's own lesson")
    args.add_argument("--processes", type=int, default=2)
    args.add_argument("--plain", action="store_true", help="without fused.cpp")
    args.add_argument("--save-every", type=float, default=180)
    return args.parse_args()


def control(s, args):
    args.weights = {}
    path = s.out / "control.json"
    if path.exists():
        wish = json.loads(path.read_text())
        args.steps, args.weights = wish.get("steps", args.steps), wish.get("weights", {})


def agree(value):
    """The first process's number, for all."""
    t = torch.tensor([float(value)])
    if dist.is_initialized():
        dist.broadcast(t, 0)
    return t.item()


def run(rank, args):
    torch.set_num_threads(1)
    if args.processes > 1:
        meet = pathlib.Path(args.out).resolve() / f"meet-{os.getppid()}"
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=args.processes)
    s = Session(args.out, settings.SEED, rank)
    s.resume()
    if not args.plain:
        native.build(s.c.hidden_size, s.c.hc_mult)
        arch.Fused.use(native.LOOPS)
    s.model.keep_features = False
    set_exact(s.model, False)
    lead = rank == 0
    if lead:
        print(f"{sum(p.numel() for p in s.model.parameters())} parameters, step {s.step}", flush=True)
    control(s, args)
    saved, recent, at = time.time(), {}, (time.time(), time.process_time(), s.rows)
    while s.step < args.steps:
        batch, dense = batch_for(s, args)
        loss, index = learn(s, batch, dense, rate(s.step, args), args)
        s.rows += batch["pos"].numel() * args.processes
        kind = str(batch["pos"].shape[1])
        recent.setdefault(kind, []).append(loss)
        if index:
            recent.setdefault("index", []).append(index)
        s.step += 1
        if s.step % 20:
            continue
        control(s, args)
        args.steps = int(agree(args.steps))
        if lead:
            wall, work = time.time() - at[0], time.process_time() - at[1]
            print(f"{time.strftime('%H:%M:%S')} step {s.step} rows {s.rows} {(s.rows - at[2]) / wall:.0f}/s, at work {work / wall:.2f}", " ".join(f"{k}: {sum(v)/len(v):.4f}" for k, v in sorted(recent.items())), " ".join(f"{r:.2f}" for r in s.looking.right), flush=True)
        recent, at = {}, (time.time(), time.process_time(), s.rows)
        if agree(time.time() - saved > args.save_every):
            if lead:
                s.save()
                report(s, args.plain)
            saved = time.time()
            at = time.time(), time.process_time(), s.rows
    if lead:
        s.save()
        report(s, args.plain)


def main():
    args = arguments()
    pathlib.Path(args.out).mkdir(parents=True, exist_ok=True)
    if args.processes > 1:
        mp.spawn(run, (args,), nprocs=args.processes)
    else:
        run(0, args)


if __name__ == "__main__":
    main()
