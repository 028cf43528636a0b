"""Trains the drafter on what the trained model says, marks both and writes the model's folder.

    python finish.py --out /tmp/builtin --model model
"""

import argparse
import json
import pathlib
import time

import train  # first: it sets the process up

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F

import checkpoint
import data
import drafts
import model as arch
import native
import score
import settings

PLACES = 192  # draft blocks trained in a step, in each process


def rounded(m):
    """The weights as they will be stored."""
    with torch.no_grad():
        for name, t in checkpoint.names(m):
            if not any(part in name for part in checkpoint.FULL):
                t.copy_(t.bfloat16())


def at_places(batch, hidden, model, rng, c, most):
    """Places of a batch where the drafter would work, and what the model says there itself.

    Only documents whose every token the model would have said are used, so the text is the model's own output."""
    tail = batch.get("tail")
    pick = lambda t: t if tail is None else t.gather(1, tail.clamp(min=0))
    run, pos, tokens, target = (pick(batch[k]) if k != "target" else batch[k] for k in ("run", "pos", "tokens", "target"))
    run = run if tail is None else run.masked_fill(tail < 0, -1)
    lines, length = pos.shape
    said = target >= 0
    wrong = torch.zeros_like(said)
    wrong[said] = model.logits(hidden[said.flatten()]).argmax(-1) != target[said]
    places = []
    for i in range(lines):
        for r in run[i].unique().tolist():
            rows = (run[i] == r).nonzero().flatten()
            answers = rows[said[i, rows]]
            if r < 0 or not len(answers) or wrong[i, rows].any():
                continue
            places += [(i, int(a)) for a in answers[:-1]]
    rng.shuffle(places)
    places = places[:most]
    if not places:
        return None
    size, window = c.dspark_block_size, c.sliding_window
    line, row = torch.tensor(places).T  # the row whose target is the golden token
    ctx = row[:, None] + torch.arange(1 - window, 1)
    same = (ctx >= 0) & (run[line[:, None], ctx.clamp(min=0)] == run[line, row][:, None])
    same &= pos[line[:, None], ctx.clamp(min=0)] == pos[line, row][:, None] + torch.arange(1 - window, 1)
    ctx = torch.where(same, ctx + line[:, None] * length, -1)
    ahead = row[:, None] + torch.arange(1, size + 1)
    inside = ahead < length
    ahead = ahead.clamp(max=length - 1)
    inside &= (run[line[:, None], ahead] == run[line, row][:, None]) & said[line[:, None], ahead]
    follow = target[line[:, None], ahead].masked_fill(~inside, -1)
    inside = inside.cumprod(1).bool()
    return ctx, pos[line, row] + 1, target[line, row], follow.masked_fill(~inside, -1)


def learn(s, d, opt, batch, rng, scale, processes):
    with torch.no_grad():
        hidden, features, _ = s.model(batch)
    found = at_places(batch, hidden, s.model, rng, s.c, PLACES)
    loss = torch.zeros(())
    right = torch.zeros(2)
    if found is not None:
        rows, n, golden, follow = found
        got = d.block(s.model, d.context(features), rows, n, golden, follow.clamp(min=0))
        known = follow >= 0
        loss = F.cross_entropy(got.corrected[known], follow[known])
        hit = (got.corrected.argmax(-1) == follow) & known
        before = torch.cat((torch.ones_like(hit[:, :1]), hit[:, :-1]), 1).cumprod(1).bool() & known
        sure = F.binary_cross_entropy_with_logits(got.sure[before], hit[before].float())
        (loss + sure).backward()
        right = torch.tensor([hit.cumprod(1).sum().item(), len(n)])
    load = torch.zeros(len(d.blocks), 1, s.c.dspark_n_routed_experts)
    for block, counts in zip(d.blocks, load):
        if found is not None:
            counts[0] += torch.bincount(block.ffn.chosen.flatten(), minlength=counts.shape[1])
    load, right, cost = train.together(d, load, right, loss.detach()[None])
    torch.nn.utils.clip_grad_norm_(d.parameters(), 1.0)
    opt.step(scale)
    for block, counts in zip(d.blocks, load):
        mean = counts[0].mean()
        block.ffn.bias += 0.004 * scale * torch.sign(mean - counts[0])
    return cost.item() / processes, right


def run(rank, args):
    torch.set_num_threads(1)
    if args.processes > 1:
        dist.init_process_group("gloo", init_method=f"file://{pathlib.Path(args.out).resolve()}/meet-{train.os.getppid()}", rank=rank, world_size=args.processes)
    s = train.Session(args.out, settings.SEED, rank)
    s.resume()
    s.trained = s.step
    s.maker = data.Maker(s.speaker, s.hashes, s.c, f"drafts {settings.SEED} {rank}", data.barred(s.talks))
    rounded(s.model)
    s.model.requires_grad_(False)
    torch.manual_seed(settings.SEED)
    d = drafts.Drafter(s.c)
    opt = train.optimiser(d)
    if not args.plain:
        native.build(s.c.hidden_size, s.c.hc_mult)
        arch.Fused.use(native.LOOPS)
    train.set_exact(s.model, False)
    train.set_exact(d, False)
    s.model.learn_index = False
    args.weights, args.long_from, args.longer_from, args.index = {}, 0, 0, 0
    sums, cost = torch.zeros(2), 0.0
    begun, done = time.time(), 0.0
    for step in range(args.steps):
        s.step = step
        batch, _ = train.batch_for(s, args)
        done = max(done, step / args.steps, train.agree((time.time() - begun) / 60 / args.minutes))
        if done >= 1:
            break
        scale = min(1, (step + 1) / 40) * min(1.0, max(0.02, (1 - done) / 0.6))
        loss, right = learn(s, d, opt, batch, s.maker.rng, scale, args.processes)
        sums, cost = sums + right, cost + loss
        if step % 20 == 19 and rank == 0:
            print(f"{time.strftime('%H:%M:%S')} draft step {step + 1} loss {cost / 20:.3f} accepted {float(sums[0] / sums[1].clamp(min=1)):.2f}", flush=True)
            sums, cost = torch.zeros(2), 0.0
    done_steps = s.step
    if rank == 0:
        arch.Linear.fast = True
        temper(s, d, args)
        s.step = done_steps
        write(s, d, args)


@torch.no_grad()
def temper(s, d, args):
    """Scales the confidence head so that fresh text (not the evaluation's) is met best."""
    sure, hits = [], []
    for step in range(24):
        s.step = step
        batch, _ = train.batch_for(s, args)
        hidden, features, _ = s.model(batch)
        found = at_places(batch, hidden, s.model, s.maker.rng, s.c, PLACES)
        if found is None:
            continue
        rows, n, golden, follow = found
        got = d.block(s.model, d.context(features), rows, n, golden, follow.clamp(min=0))
        hit = (got.corrected.argmax(-1) == follow) & (follow >= 0)
        before = torch.cat((torch.ones_like(hit[:, :1]), hit[:, :-1]), 1).cumprod(1).bool() & (follow >= 0)
        sure.append(got.sure[before])
        hits.append(hit[before].float())
    if sure:
        sure, hits = torch.cat(sure), torch.cat(hits)
        scales = [0.4 + 0.05 * i for i in range(33)]
        best = min(scales, key=lambda a: F.binary_cross_entropy_with_logits(sure * a, hits).item())
        d.confidence.mul_(best)
        print(f"confidences scaled by {best:.2f}", flush=True)


@torch.no_grad()
def accepted(s, d, talks):
    """Drafts over the model's own answers: per task (accepted, steps), and (confidence, accepted or not) of each proposal."""
    c, counts, sure = s.c, {}, []
    for t in talks:
        ids, said, first = s.speaker.whole(t)
        laid = score.lay(s.speaker, s.hashes, c, ids, said, first, t)
        batch = data.assemble([[laid]], -(-len(laid) // 32) * 32)
        hidden, features, _ = s.model(batch)
        want = batch["target"][0]
        picked = want >= 0
        if (s.model.logits(hidden[picked]).argmax(-1) != want[picked]).any():
            continue
        context, n = d.context(features), first
        row = counts.setdefault(t.task, [0, 0])
        while n < len(ids) - 1:
            rows = torch.arange(n - c.sliding_window, n)[None].clamp(min=-1)
            got = d.block(s.model, context, rows, torch.tensor([n]), torch.tensor([ids[n]]))
            ahead, take = ids[n + 1 : n + 1 + c.dspark_block_size], 0
            for k, token in enumerate(ahead):
                ok = int(got.tokens[0, k]) == token
                sure.append((float(got.confidence[0, k]), ok))
                if not ok:
                    break
                take += 1
            row[0], row[1] = row[0] + take, row[1] + 1
            n += take + 1
    return counts, np.array(sure)


def calibration(sure):
    """Ten bins of confidence: (from, to, proposals, mean confidence, share accepted), and the expected error."""
    table, error = [], 0.0
    for i in range(10):
        here = sure[(sure[:, 0] >= i / 10) & ((sure[:, 0] < (i + 1) / 10) | (i == 9))]
        if len(here):
            table.append([i / 10, (i + 1) / 10, len(here), round(here[:, 0].mean(), 3), round(here[:, 1].mean(), 3)])
            error += abs(here[:, 0].mean() - here[:, 1].mean()) * len(here) / len(sure)
    return table, round(float(error), 4)


@torch.no_grad()
def routing(s, talks):
    """Share of each expert per task and layer, and how far tasks differ: mutual information of task and expert, in bits."""
    shares = {}
    for t in talks:
        ids, said, first = s.speaker.whole(t)
        laid = score.lay(s.speaker, s.hashes, s.c, ids, said, first, t)
        s.model(data.assemble([[laid]], -(-len(laid) // 32) * 32))
        for l, block in enumerate(s.model.layers):
            count = torch.bincount(block.ffn.chosen[: len(laid)].flatten(), minlength=s.c.n_routed_experts).double()
            shares.setdefault(t.task, [0] * s.c.num_hidden_layers)[l] += count
    table = {task: [(x / x.sum()).tolist() for x in layers] for task, layers in shares.items()}
    p = torch.tensor(list(table.values()), dtype=torch.double)  # task, layer, expert
    mean = p.mean(0, keepdim=True)
    bits = (p * (p.clamp(min=1e-12) / mean.clamp(min=1e-12)).log2()).sum(-1).mean(0)
    return {t: [[round(v, 3) for v in layer] for layer in layers] for t, layers in table.items()}, [round(b, 3) for b in bits.tolist()]


def write(s, d, args):
    folder = pathlib.Path(args.model)
    s.export(folder, d)
    checkpoint.load(folder, s.model, d)  # from here on the numbers are those of the stored weights
    data.write_cases(folder / "eval.jsonl", s.talks)
    marks, kinds = {}, (("plain", {}), ("truncated prefill", {"truncate": True}), ("bounded replay", {"hit": True}), ("both", {"hit": True, "truncate": True}))
    for name, kind in kinds:  # the first in exact arithmetic, the others in that of training, which is fast
        exact = name == "plain" or args.plain
        arch.Fused.use(None if exact else native.LOOPS)
        train.set_exact(s.model, exact)
        train.set_exact(d, exact)
        talks = s.talks if name == "plain" else [t for t in s.talks if t.task in ("recall", "copy")]  # prompts that outgrow the window
        table = score.mark(s.model, s.speaker, s.hashes, talks, thorough=exact, **kind)
        for task, (right, of, loss) in table.items():
            marks.setdefault(task, {})[name] = {"right": right, "of": of, "loss": round(loss, 5)}
        print(name, {k: v[:2] for k, v in table.items()}, flush=True)
    counts, sure = accepted(s, d, s.talks[::4])
    reliability, error = calibration(sure)
    shares, bits = routing(s, [t for i, t in enumerate(s.talks) if i % 8 == 0])
    total = [sum(v[0] for v in counts.values()), sum(v[1] for v in counts.values())]
    scores = {
        "seed": settings.SEED, "steps": s.trained, "rows": s.rows, "draft steps": s.step + 1, "tasks": marks,
        "drafts": {"block": s.c.dspark_block_size, "accepted per step": round(total[0] / max(1, total[1]), 3),
                   "per task": {k: round(a / n, 3) for k, (a, n) in counts.items()}},
        "confidence": {"columns": ["from", "to", "proposals", "mean confidence", "accepted"], "bins": reliability, "expected error": error},
        "routing": {"bits of task per layer": bits, "shares by task, layer, expert": shares},
    }
    (folder / "scores.json").write_text(dumps(scores) + "\n")
    print(json.dumps({k: scores[k] for k in ("drafts", "confidence")}), bits, flush=True)


def dumps(value, depth=0):
    """JSON with one line for each innermost list or object."""
    if isinstance(value, dict) and any(isinstance(v, (dict, list)) for v in value.values()):
        pad = " " * (depth + 1)
        inner = ",\n".join(f"{pad}{json.dumps(k)}: {dumps(v, depth + 1)}" for k, v in value.items())
        return "{\n" + inner + "\n" + " " * depth + "}"
    return json.dumps(value)


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--out", default="builtin-out")
    args.add_argument("--model", default=str(pathlib.Path(__file__).parent / "model"))
    args.add_argument("--steps", type=int, default=1200)
    args.add_argument("--minutes", type=float, default=1e9, help="stop the drafter's training by then, whatever the steps")
    args.add_argument("--rows", type=int, default=1024)
    args.add_argument("--processes", type=int, default=2)
    args.add_argument("--plain", action="store_true")
    args = args.parse_args()
    if args.processes > 1:
        mp.spawn(run, (args,), nprocs=args.processes)
    else:
        run(0, args)


if __name__ == "__main__":
    main()
