"""Two optimisers in one: Muon for matrices inside the layers, Adam for everything else."""

from collections import defaultdict

import torch
import torch.distributed as dist


def orthogonal(g):
    """The nearest matrix of orthonormal rows or columns, roughly: five steps of Newton and Schulz, batched."""
    x = g.bfloat16()
    flip = x.shape[-2] > x.shape[-1]
    x = x.transpose(-1, -2) if flip else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x.transpose(-1, -2) if flip else x


def shared_orthogonal(g):
    """The same, each process doing its part of the batch."""
    if not dist.is_initialized() or len(g) < 2 * dist.get_world_size():
        return orthogonal(g).float()
    count = dist.get_world_size()
    part = -(-len(g) // count)
    mine = orthogonal(g[dist.get_rank() * part :][:part]).contiguous()
    if len(mine) < part:
        mine = torch.cat((mine, mine.new_zeros(part - len(mine), *g.shape[1:])))
    all_parts = [torch.empty_like(mine).view(torch.uint8) for _ in range(count)]
    dist.all_gather(all_parts, mine.view(torch.uint8))
    return torch.cat([p.view(torch.bfloat16) for p in all_parts])[: len(g)].float()


class Optimiser:
    """`rates`: (matching function, rate) pairs, tried in order on (name, parameter); rate "muon" for matrices."""

    def __init__(self, named, muon, rates):
        self.muon_rate, self.step_count = muon, 0
        self.matrices, adam = defaultdict(list), defaultdict(list)
        self.matrix_names = []
        for name, p in named:
            rate = next(r for match, r in rates if match(name, p))
            if rate == "muon":
                self.matrices[tuple(p.shape[-2:])].append(p)
                self.matrix_names.append(name)
            else:
                adam[rate].append(p)
        self.adam = torch.optim.AdamW([{"params": ps, "lr": r, "base": r} for r, ps in adam.items()], betas=(0.9, 0.98), eps=1e-10, weight_decay=0.0)
        self.momentum = {shape: [torch.zeros_like(p) for p in ps] for shape, ps in self.matrices.items()}

    @torch.no_grad()
    def step(self, scale, beta=0.95):
        for group in self.adam.param_groups:
            group["lr"] = group["base"] * scale
        self.adam.step()
        for shape, params in self.matrices.items():
            live = [(p, m) for p, m in zip(params, self.momentum[shape]) if p.grad is not None]
            for p, m in live:
                m.lerp_(p.grad, 1 - beta)
            if not live:
                continue
            ahead = torch.cat([p.grad.lerp(m, beta).reshape(-1, *shape) for p, m in live])
            turn = shared_orthogonal(ahead).split([p.numel() // (shape[0] * shape[1]) for p, _ in live])
            for (p, _), t in zip(live, turn):
                p.add_(t.view_as(p), alpha=-self.muon_rate * scale * max(1, shape[0] / shape[1]) ** 0.5)
        self.clear()

    def clear(self):
        for params in self.matrices.values():
            for p in params:
                p.grad = None
        self.adam.zero_grad(set_to_none=True)

    def state(self):
        return {"adam": self.adam.state_dict(), "momentum": {k: v for k, v in self.momentum.items()}}

    def restore(self, state):
        self.adam.load_state_dict(state["adam"])
        for shape, ms in self.momentum.items():
            for m, s in zip(ms, state["momentum"][shape]):
                m.copy_(s)
