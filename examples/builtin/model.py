"""The DeepSeek-V4.1 architecture, small and trainable: the whole sequence at once, dense masks, no caches.

Sequences are *packed*: a line of a batch holds several documents (and, for bounded replay, a second run over a part of
one), told apart by four numbers a row:

    doc    which document; compressed keys are visible within a document only
    run    which pass over it; window keys are visible within a run only
    pos    the position, which rotary and all visibility follow
    write  whether the row's compressed key is kept (rows of a replay below the hit write none)

`low` is the lowest window position that the decoder layers see (truncation of prefill), `tail` the rows that they
compute at all. Matrices are multiplied in bfloat16 when `Model.fast` is set, everything else is float32.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

BAND = 32  # rows of window attention that are computed together
PART = 32  # an expert's rows are rounded up to a multiple of this


@dataclass
class Config:
    """The fields of config.json that the arithmetic needs."""

    text: dict
    vision: dict
    image_token: int
    source: dict = field(default_factory=dict)

    @staticmethod
    def of(raw):
        return Config(raw["text_config"], raw["vision_config"], raw["image_token_id"], raw)

    def __getattr__(self, name):
        try:
            return self.__dict__["text"][name]
        except KeyError as missing:
            raise AttributeError(name) from missing

    @property
    def first_decoder(self):
        return self.compress_ratios.index(1)


def inverse_frequencies(theta, size, yarn=None):
    """Rotary frequencies in double, rounded once."""
    i = np.arange(0, size, 2, dtype=np.float64)
    f = theta ** (-i / size)
    if yarn:
        turn = lambda n: size * math.log(yarn["original_max_position_embeddings"] / (n * 2 * math.pi)) / (2 * math.log(theta))
        low, high = max(math.floor(turn(yarn["beta_fast"])), 0), min(math.ceil(turn(yarn["beta_slow"])), size - 1)
        ramp = np.clip((np.arange(size // 2) - low) / (high - low + (0.001 if high == low else 0)), 0, 1)
        f = f * (1 - ramp) + f / yarn["factor"] * ramp
    return torch.from_numpy(f.astype(np.float32))


def rms(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def angles(pos, freq):
    a = (pos.unsqueeze(-1).float() * freq).double()
    return a.cos().float(), a.sin().float()


def rotate(x, turn, inverse=False):
    """Rotates the trailing channels of x [..., d] as interleaved pairs; turn = (cos, sin), each [..., pairs]."""
    cos, sin = turn
    if inverse:
        sin = -sin
    size = 2 * cos.shape[-1]
    head, tail = x.float().split((x.shape[-1] - size, size), -1)
    a, b = tail.unflatten(-1, (-1, 2)).unbind(-1)
    tail = torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2)
    return torch.cat((head, tail), -1)


def sinkhorn(comb, rounds, eps):
    """comb [rows, m, n], softmaxed over n: columns and rows are scaled to one in turn."""
    comb = comb / (comb.sum(1, keepdim=True) + eps)
    for _ in range(rounds - 1):
        comb = comb / (comb.sum(2, keepdim=True) + eps)
        comb = comb / (comb.sum(1, keepdim=True) + eps)
    return comb


def mixes(z, inv, scale, base, hc_eps, rounds, s):
    """A hyper-connection's pre [rows, S], post [rows, S], comb [rows, S, S] from its product z [rows, 2 S + S S]."""
    m = z.float() * inv.unsqueeze(-1)
    pre = torch.sigmoid(m[:, :s] * scale[0] + base[:s]) + hc_eps
    post = 2 * torch.sigmoid(m[:, s : 2 * s] * scale[1] + base[s : 2 * s])
    comb = (m[:, 2 * s :] * scale[2] + base[2 * s :]).view(-1, s, s)
    return pre, post, sinkhorn(torch.softmax(comb, 2) + hc_eps, rounds, hc_eps)


def step(x, written, pre, weight, eps):
    """Writes a result (out, post, comb) to the streams x [rows, S, D], new[n] = post[n] out + sum_m comb[m][n] x[m], and
    reads them, weighted by pre. Returns the streams, the same for a product, the row read, the streams' inverse size."""
    if written is not None:
        out, post, comb = written
        x = post.unsqueeze(-1) * out.float().unsqueeze(1) + comb.transpose(1, 2) @ x
    h = quick(rms((x * pre.unsqueeze(-1)).sum(1), weight, eps))
    return x, quick(x), h, torch.rsqrt(x.flatten(1).square().mean(-1) + eps)


def turned(x, heads, weight, turn, scale, eps):
    """rms (with a weight), rotary (with a turn) and a scale, of x [..., heads * width] as [..., heads, width]."""
    x = x.unflatten(-1, (heads, -1))
    x = x.float() if weight is None else rms(x, weight, eps)
    if turn is not None:
        x = rotate(x, (turn[0].unsqueeze(-2), turn[1].unsqueeze(-2)))
    return quick(x * scale)


def remember(x, kv, q_weight, k_weight, image, eps):
    """Adds an engram's value to each stream, as far as the stream agrees with its key."""
    k, v = kv[:, :-1], kv[:, -1].float()
    dot = (rms(x, q_weight, eps) * rms(k, k_weight, eps + 1e-12)).sum(-1) * x.shape[-1] ** -0.5
    gate = torch.sigmoid(dot.sign() * dot.abs().clamp(min=1e-6).sqrt())
    return x + (gate * (~image).unsqueeze(-1)).unsqueeze(-1) * v.unsqueeze(1)


def band(t, fill):
    """t [B, N, ...] cut in bands, each with the band before it: [B, N / BAND, 2 BAND, ...]."""
    t = t.unflatten(1, (-1, BAND))
    before = torch.cat((torch.full_like(t[:, :1], fill), t[:, :-1]), 1)
    return torch.cat((before, t), 2)


def window_logits(q, k):
    """q [B, N, heads, d] against the keys of its band and the one before: [B, N, heads, 2 BAND]; and those keys."""
    keys = band(k, 0.0).flatten(0, 1)
    rows = q.unflatten(1, (-1, BAND)).flatten(0, 1).flatten(1, 2)
    return (rows @ keys.transpose(1, 2)).view(*q.shape[:3], -1), keys


def attend(q, k, mask, sink, g=None, chosen=None):
    """Window keys and chosen compressed keys g [B, G, d] in one softmax."""
    near, keys = window_logits(q, k)
    far = None if g is None else (q.flatten(1, 2) @ g.transpose(1, 2)).view(*q.shape[:3], -1)
    near, far = Fused.softmax(near, far, mask, chosen, sink)
    o = (near.reshape(len(keys), -1, 2 * BAND) @ keys).view(q.shape)
    return o if g is None else o + (far.flatten(1, 2) @ g).view(q.shape)


def softmax(near, far, mask, chosen, sink):
    """Softmax over [B, N, heads, keys] window logits, compressed ones (or None) and a sink without a value."""
    b, n, heads, count = near.shape
    parts = [near.float().masked_fill(~mask.unsqueeze(2), -math.inf)]
    if far is not None:
        parts.append(far.float().masked_fill(~chosen.unsqueeze(2), -math.inf))
    p = torch.softmax(torch.cat((*parts, sink.view(1, 1, -1, 1).expand(b, n, heads, 1)), -1), -1)
    return quick(p[..., :count]), None if far is None else quick(p[..., count:-1])


def weighted(a, g, limit, exact):
    """silu(gate) * up, the gate bounded from above and up on both sides, times g."""
    gate, up = a.float().chunk(2, -1)
    if exact:
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
    return quick(F.silu(gate) * up * g)


class Fused:
    """The functions that native.py has as single loops, plain or native."""

    plain = {f.__name__: f for f in (step, mixes, turned, softmax, weighted, remember)}

    @classmethod
    def use(cls, other):
        for name, f in (other or cls.plain).items():
            setattr(cls, name, staticmethod(f))


Fused.use(None)


def look(x, written, pre, weight, hyper):
    """One step between sub-layers: streams, the row read, and the mixes with which its result will be written."""
    fn, scale, base, eps, hc_eps, rounds = hyper
    s = x.shape[1]
    x, same, h, inv = Fused.step(x, written, pre, weight, eps)
    return x, h, *Fused.mixes(matmul(same.flatten(1), fn), inv, scale, base, hc_eps, rounds, s)


class Linear(nn.Module):
    """x w^T, in bfloat16 when fast."""

    fast = False

    def __init__(self, rows, columns, gain=1.0, bias=False):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(rows, columns) * gain * columns**-0.5)
        self.bias = nn.Parameter(torch.zeros(rows)) if bias else None

    def forward(self, x):
        y = matmul(x, self.weight)
        return y if self.bias is None else y + self.bias


def matmul(x, w):
    """x w^T; in bfloat16 when fast."""
    return quick(x) @ quick(w).T


def quick(x):
    return x.bfloat16() if Linear.fast else x.float()


class Grouped(torch.autograd.Function):
    """Rows sorted by expert, each part times its expert's matrix: x [n, a], w [E, b, a] to [n, b]."""

    @staticmethod
    def forward(ctx, x, w, sizes):
        ctx.save_for_backward(x, w)
        ctx.sizes = sizes
        return Grouped.parts(x, w.transpose(1, 2), sizes)

    @staticmethod
    def parts(x, w, sizes):
        out, at = x.new_empty(x.shape[0], w.shape[2]), 0
        for e, n in enumerate(sizes):
            if n:
                torch.mm(x[at : at + n], w[e], out=out[at : at + n])
            at += n
        return out

    @staticmethod
    def backward(ctx, grad):
        x, w = ctx.saved_tensors
        grad = grad.contiguous()
        dw, at = torch.zeros_like(w), 0
        for e, n in enumerate(ctx.sizes):
            if n:
                torch.mm(grad[at : at + n].T, x[at : at + n], out=dw[e])
            at += n
        return Grouped.parts(grad, w, ctx.sizes), dw, None


class Hyper(nn.Module):
    """Weights of one hyper-connection."""

    def __init__(self, c, depth):
        super().__init__()
        s = c.hc_mult
        self.fn = nn.Parameter(torch.randn(2 * s + s * s, s * c.hidden_size) * 0.02)
        self.scale = nn.Parameter(torch.full((3,), 0.3))
        base = torch.randn(2 * s + s * s) * 0.3
        base[depth % s] += 1.0
        base[2 * s :] += (3.0 * torch.eye(s)).flatten()
        self.base = nn.Parameter(base)
        self.settings = (c.rms_norm_eps, c.hc_eps, c.hc_sinkhorn_iters)

    def weights(self):
        return self.fn, self.scale, self.base, *self.settings


class Experts(nn.Module):
    """Shared and routed experts; only the rows of an expert are computed by it."""

    def __init__(self, c, count, top):
        super().__init__()
        d, i = c.hidden_size, c.moe_intermediate_size
        self.gate = nn.Parameter(torch.randn(count, d) * 0.5 * d**-0.5)
        self.register_buffer("bias", torch.zeros(count))
        self.register_buffer("bias_vl", torch.zeros(count))
        self.w13 = nn.Parameter(torch.randn(count + 1, 2 * i, d) * d**-0.5)  # the last one is the shared expert
        self.w2 = nn.Parameter(torch.randn(count + 1, d, i) * 0.3 * i**-0.5)
        self.top, self.limit, self.scale = top, c.swiglu_limit, c.routed_scaling_factor
        self.chosen = None
        self.exact = True

    def forward(self, x, image):
        """Rows are sorted by expert, the shared one last, multiplied part by part and put back."""
        s = F.softplus(x.float() @ self.gate.T).sqrt()
        bias = self.bias if image is None else torch.where(image.unsqueeze(-1), self.bias_vl, self.bias)
        chosen = torch.topk(s.detach() + bias, self.top, sorted=False).indices
        self.chosen = chosen
        g = s.gather(1, chosen)
        g = g / g.sum(-1, keepdim=True).clamp(min=1e-20) * self.scale
        count, n, d = self.gate.shape[0], *x.shape
        order = chosen.flatten().argsort(stable=True)
        sizes = torch.bincount(chosen.flatten(), minlength=count)
        room = (sizes + PART - 1) // PART * PART  # a new size of a product costs far more than a few rows of zeros
        shift = (room.cumsum(0) - room) - (sizes.cumsum(0) - sizes)
        slot = torch.arange(len(order)) + shift.repeat_interleave(sizes)
        total, sizes = int(room.sum()), room.tolist() + [n]
        x = quick(x)
        rows = x.new_zeros(total, d).index_copy(0, slot, x.index_select(0, order // self.top))
        weight = g.new_zeros(total).index_copy(0, slot, g.flatten().index_select(0, order))
        weight = torch.cat((weight, torch.ones(n))).unsqueeze(-1)
        a = Fused.weighted(Grouped.apply(torch.cat((rows, x)), quick(self.w13), sizes), weight, self.limit, self.exact)
        made = Grouped.apply(a, quick(self.w2), sizes)
        back = torch.empty_like(order).index_copy_(0, order, slot)
        routed = made.index_select(0, back).view(n, self.top, -1)
        return routed.float().sum(1) + made[total:].float()


class Attention(nn.Module):
    """Projections of one attention layer, and of the compressor and indexer where it owns them."""

    def __init__(self, c, ratio=0, owns_keys=False, owns_index=False):
        super().__init__()
        d, h, hd, r = c.hidden_size, c.num_attention_heads, c.head_dim, c.q_lora_rank
        g, o = c.o_groups, c.o_lora_rank
        self.c, self.ratio = c, ratio
        self.wq_a, self.q_norm, self.wq_b = Linear(r, d), nn.Parameter(torch.ones(r)), Linear(h * hd, r)
        self.wkv, self.kv_norm = Linear(hd, d), nn.Parameter(torch.ones(hd))
        self.wo_a = nn.Parameter(torch.randn(g, o, h // g * hd) * (h // g * hd) ** -0.5)
        self.wo_b = Linear(d, g * o, 0.3)
        self.sink = nn.Parameter(torch.zeros(h))
        self.compressor = self.indexer = self.compressor_gate = self.index_q = None
        ih, ihd = c.index_n_heads, c.index_head_dim
        if owns_keys:
            self.compressor, self.compressor_norm = Linear(hd, d), nn.Parameter(torch.ones(hd))
            self.compressor_gate = Linear(hd, d, 0.3) if ratio == 2 else None
            self.indexer, self.index_norm = Linear(ihd, hd), nn.Parameter(torch.ones(ihd))
        if owns_index:
            self.index_q, self.index_weight = Linear(ih * ihd, r), Linear(ih, d)

    def project(self, h, turn):
        """The latent query, scaled queries and window keys of rows h [B, N, D]."""
        c, eps = self.c, self.c.rms_norm_eps
        qa = Fused.turned(self.wq_a(h), 1, self.q_norm, None, 1.0, eps).squeeze(-2)
        q = Fused.turned(self.wq_b(qa), c.num_attention_heads, None, turn, c.head_dim**-0.5, eps)
        return qa, q, Fused.turned(self.wkv(h), 1, self.kv_norm, turn, 1.0, eps).squeeze(-2)

    def compress(self, h, turn):
        """h [B, N, D] to keys and index keys [B, N / ratio, ...]; the index sees no gradient of the text."""
        value = self.compressor(h)
        if self.ratio == 2:
            pair = lambda t: t.unflatten(1, (-1, 2))
            value = (torch.softmax(pair(self.compressor_gate(h)).float(), 2) * pair(value)).sum(2)
            turn = turn[0][:, ::2], turn[1][:, ::2]
        latent = rms(value, self.compressor_norm, self.c.rms_norm_eps)
        index = rms(self.indexer(latent.detach()), self.index_norm, self.c.rms_norm_eps)
        return quick(rotate(latent, turn)), quick(rotate(index, turn))

    def index_scores(self, h, qa, turn, index_keys):
        """[B, N, groups]: how much each row wants each compressed key."""
        h, qa = h.detach(), qa.detach()
        heads = self.c.index_n_heads
        q = self.index_q(qa).view(*h.shape[:-1], heads, self.c.index_head_dim)
        q = quick(rotate(q, (turn[0].unsqueeze(-2), turn[1].unsqueeze(-2))))
        dots = (q.flatten(1, 2) @ index_keys.transpose(1, 2)).relu().view(*h.shape[:-1], heads, -1)
        return (dots.float() * self.index_weight(h).float().unsqueeze(-1)).sum(2)

    def output(self, o, turn):
        """Turns o [B, N, heads, d] back and projects it in groups."""
        o = Fused.turned(o.flatten(2), o.shape[2], None, (turn[0], -turn[1]), 1.0, 0.0)
        parts = o.flatten(2).chunk(len(self.wo_a), -1)
        return self.wo_b(torch.cat([matmul(part, w) for part, w in zip(parts, self.wo_a)], -1))


class Engram(nn.Module):
    """Memory addressed by hashes of the last tokens."""

    def __init__(self, c, rows):
        super().__init__()
        s, d = c.hc_mult, c.hidden_size
        width = (c.engram_max_ngram_size - 1) * c.engram_n_heads * c.engram_head_dim
        self.q_weight, self.k_weight = nn.Parameter(torch.ones(s, d)), nn.Parameter(torch.ones(s, d))
        self.embed = nn.Parameter(torch.randn(rows, c.engram_head_dim) * 0.5)
        self.wkv = Linear((s + 1) * d, width, 0.5)
        self.c = c

    def forward(self, x, rows, image):
        c = self.c
        kv = self.wkv(F.embedding(rows, self.embed).flatten(1)).view(-1, c.hc_mult + 1, c.hidden_size)
        return Fused.remember(x, kv, self.q_weight, self.k_weight, image, c.rms_norm_eps)


class Block(nn.Module):
    def __init__(self, c, layer, draft=False):
        super().__init__()
        ratio = 0 if draft else c.compress_ratios[layer]
        owns = lambda ids: not draft and layer in ids
        self.attn = Attention(c, ratio, owns(c.kv_source_layer_ids), owns(c.index_source_layer_ids))
        experts = (c.dspark_n_routed_experts, c.dspark_num_experts_per_tok) if draft else (c.n_routed_experts, c.num_experts_per_tok)
        self.ffn = Experts(c, *experts)
        self.attn_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.ffn_norm = nn.Parameter(torch.ones(c.hidden_size))
        self.hc_attn, self.hc_ffn = Hyper(c, 2 * layer), Hyper(c, 2 * layer + 1)
        self.engram = None
        if not draft and layer in c.engram_layer_ids:
            self.engram = Engram(c, c.engram_num_embeddings[c.engram_layer_ids.index(layer)])


class VisionBlock(nn.Module):
    def __init__(self, v):
        super().__init__()
        d = v["hidden_size"]
        self.norm1, self.norm2 = nn.Parameter(torch.ones(d)), nn.Parameter(torch.ones(d))
        self.wqkv, self.wo = Linear(3 * d, d, bias=True), Linear(d, d, 0.3, bias=True)
        self.w1, self.w2 = Linear(2 * v["intermediate_size"], d), Linear(d, v["intermediate_size"], 0.3)
        self.heads = v["num_attention_heads"]

    def forward(self, x, turn):
        b, n, d = x.shape
        qkv = self.wqkv(rms(x, self.norm1, 1e-6)).float().view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        cos, sin = turn

        def turned(t):
            first, second = t.chunk(2, -1)
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

        o = F.scaled_dot_product_attention(turned(qkv[0]), turned(qkv[1]), qkv[2])
        x = x + self.wo(o.transpose(1, 2).reshape(b, n, d))
        gate, up = self.w1(rms(x, self.norm2, 1e-6)).float().chunk(2, -1)
        return x + self.w2(F.silu(gate) * up)


class Vision(nn.Module):
    """Images of one size to rows of the text model."""

    def __init__(self, c):
        super().__init__()
        v, d = c.vision, c.hidden_size
        self.v = v
        side, dv, r = v["patch_size"], v["hidden_size"], v["downsample_ratio"]
        self.patch = Linear(dv, 3 * side * side, bias=True)
        self.blocks = nn.ModuleList(VisionBlock(v) for _ in range(v["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(dv))
        self.aligner1, self.aligner2 = Linear(d, dv * r * r, bias=True), Linear(d, d, bias=True)
        self.start, self.newline, self.end = (nn.Parameter(torch.randn(d)) for _ in range(3))

    def forward(self, rgb):
        """rgb uint8 [B, h, w, 3], sides multiples of the patch; spans [B, n, D]."""
        v = self.v
        p, r, b = v["patch_size"], v["downsample_ratio"], rgb.shape[0]
        gh, gw = rgb.shape[1] // p, rgb.shape[2] // p
        x = ((rgb.float() / 255 - 0.5) / 0.5).permute(0, 3, 1, 2)
        x = x.reshape(b, 3, gh, p, gw, p).permute(0, 2, 4, 1, 3, 5).reshape(b, gh * gw, -1)
        x = self.patch(x).float()
        freq = inverse_frequencies(v["rope_theta"], v["hidden_size"] // v["num_attention_heads"] // 2)
        row, column = torch.arange(gh).repeat_interleave(gw), torch.arange(gw).repeat(gh)
        turn = angles(torch.stack((row, column), -1), freq)
        turn = turn[0].flatten(-2), turn[1].flatten(-2)
        for block in self.blocks:
            x = block(x, turn)
        x = rms(x, self.norm, 1e-6)
        lh, lw = -(-gh // r), -(-gw // r)
        x = F.pad(x.view(b, gh, gw, -1), (0, 0, 0, lw * r - gw, 0, lh * r - gh))
        x = x.view(b, lh, r, lw, r, -1).permute(0, 1, 3, 5, 2, 4).flatten(3)
        x = self.aligner2(F.gelu(self.aligner1(x).float()))
        d = x.shape[-1]
        x = torch.cat((x, self.newline.expand(b, lh, 1, d)), 2).flatten(1, 2)
        return torch.cat((self.start.expand(b, 1, d), x.float(), self.end.expand(b, 1, d)), 1)


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.c = c
        d = c.hidden_size
        self.embed = nn.Parameter(torch.randn(c.vocab_size, d))
        self.head = nn.Parameter(torch.randn(c.vocab_size, d) * 0.3 * d**-0.5)
        self.norm = nn.Parameter(torch.ones(d))
        self.layers = nn.ModuleList(Block(c, l) for l in range(c.num_hidden_layers))
        self.vision = Vision(c)
        self.freq_window = inverse_frequencies(c.rope_theta, c.qk_rope_head_dim)
        self.freq_compressed = inverse_frequencies(c.compress_rope_theta, c.qk_rope_head_dim, c.rope_scaling)
        self.dense = False      # whether selection is left out (warm-up of the index)
        self.learn_index = True
        self.keep_features = True

    def rows_of(self, batch):
        """Embeddings [B, N, D], image spans in their places."""
        x = F.embedding(batch["tokens"], self.embed)
        if batch.get("images") is not None:
            b, n, d = x.shape
            spans = self.vision(batch["images"])
            x = x.flatten(0, 1).index_copy(0, batch["image_rows"], spans.flatten(0, 1)).view(b, n, d)
        return x

    def forward(self, batch):
        """Hidden rows before the head, of the decoder's rows; also the drafter's features and the index loss."""
        c = self.c
        rows = self.rows_of(batch)
        b, n, d = rows.shape
        x = rows.reshape(b * n, 1, d).expand(-1, c.hc_mult, -1).contiguous()
        pre = torch.zeros(b * n, c.hc_mult)
        pre[:, 0] = 1
        sight = Sight(c, self, batch)
        image, any_image = batch["image"].flatten(), batch.get("images") is not None
        features, written = [], None
        for l, block in enumerate(self.layers):
            if block.engram is not None:
                x = Fused.step(x, written, pre, block.attn_norm, c.rms_norm_eps)[0]
                x, written = block.engram(x, batch["engram"][c.engram_layer_ids.index(l)].flatten(0, 1), image), None
            x, h, pre, post, comb = look(x, written, pre, block.attn_norm, block.hc_attn.weights())
            if l == c.first_decoder:
                sight.enter_decoder(block, h.view(b, n, d))
                if sight.tail is not None:
                    keep = sight.tail_rows
                    x, h, image, pre, post, comb = (t[keep] for t in (x, h, image, pre, post, comb))
                    features = [f[keep] for f in features]
            if self.keep_features and l in c.dspark_target_layer_ids:
                features.append(x.mean(1))
            written = sight.attend(block, l, h), post, comb
            x, h, pre, post, comb = look(x, written, pre, block.ffn_norm, block.hc_ffn.weights())
            written = block.ffn(h, image if any_image else None), post, comb
        return Fused.step(x, written, pre, self.norm, c.rms_norm_eps)[2], features, sight.index_loss()

    def logits(self, hidden):
        return matmul(hidden, self.head).float()


class Sight:
    """What the rows of a batch see: masks, rotary angles, the compressed keys and the selection in force."""

    def __init__(self, c, model, batch):
        self.c, self.model, self.batch = c, model, batch
        self.tail = batch.get("tail")
        self.whole = {k: batch[k] for k in ("pos", "run", "doc", "low")}
        self.rows = self.whole
        self.turns = angles(batch["pos"], model.freq_window), angles(batch["pos"], model.freq_compressed)
        self.whole_turn = self.turns[1]
        self.no_low = torch.zeros_like(batch["low"])
        self.window_mask = self.band_mask(self.no_low)
        self.g = self.ik = self.group_mask = self.chosen = self.candidates = None
        self.scores = self.target = None
        self.losses = []

    def band_mask(self, low):
        r = self.rows
        pos, run = r["pos"].unflatten(1, (-1, BAND)), r["run"].unflatten(1, (-1, BAND))
        kp, kr = band(r["pos"], -1), band(r["run"], -2)
        away = pos.unsqueeze(-1) - kp.unsqueeze(-2)
        ok = (away >= 0) & (away < self.c.sliding_window) & (run.unsqueeze(-1) == kr.unsqueeze(-2))
        return ok & (kp.unsqueeze(-2) >= low.unflatten(1, (-1, BAND)).unsqueeze(-1))

    def enter_decoder(self, block, h):
        """From here on rows may be fewer and windows end at `low`; the compressed keys come from all rows."""
        self.publish(block.attn, h)
        if self.tail is not None:
            n = h.shape[1]
            self.tail_rows = (self.tail.clamp(min=0) + torch.arange(h.shape[0]).unsqueeze(1) * n).flatten()
            pick = lambda t: t.flatten(0, 1)[self.tail_rows].unflatten(0, self.tail.shape)
            self.rows = {k: pick(v) for k, v in self.whole.items()}
            for k in ("run", "doc"):
                self.rows[k] = self.rows[k].masked_fill(self.tail < 0, -1)
            self.turns = tuple(tuple(pick(t) for t in turn) for turn in self.turns)
        self.window_mask = self.band_mask(self.rows["low"])
        self.chosen = None
        self.see_groups(block.attn.ratio)

    def publish(self, attn, h):
        self.settle()
        self.g, self.ik = attn.compress(h, self.whole_turn)
        self.chosen = self.candidates = None

    def see_groups(self, ratio):
        w, keep = self.whole, self.batch["write"]
        end, doc = w["pos"][:, ratio - 1 :: ratio], w["doc"][:, ::ratio]
        if ratio == 2:  # both rows of a pair belong together
            first = w["pos"][:, ::2]
            keep = keep[:, ::2] & keep[:, 1::2] & (end == first + 1) & (doc == w["doc"][:, 1::2])
        r = self.rows
        self.group_mask = (r["doc"].unsqueeze(-1) == doc.unsqueeze(1)) & (end.unsqueeze(1) <= r["pos"].unsqueeze(-1)) & keep.unsqueeze(1)

    def select(self, block, layer, h, qa):
        """The mask of compressed keys that are seen, and what the index is to learn from."""
        c = self.c
        if block.attn.index_q is None:
            return
        self.settle()
        self.chosen = self.group_mask
        most = int(self.group_mask.sum(-1).max())
        narrow = most > c.index_topk and not self.model.dense
        if not narrow and not (self.model.learn_index and torch.is_grad_enabled()):
            return
        scores = block.attn.index_scores(h, qa, self.turns[1], self.ik)
        if torch.is_grad_enabled() and self.model.learn_index:
            self.scores, self.target = scores, 0
        if not narrow:
            return
        s = scores.detach().masked_fill(~self.group_mask, -math.inf)
        if layer == c.candidate_source_layer_id:
            self.candidates = self.blocks(s)
        elif self.candidates is not None and layer > c.candidate_source_layer_id:
            s = s.masked_fill(~self.candidates, -math.inf)
        if s.shape[-1] > c.index_topk:
            best = torch.topk(s, c.index_topk, sorted=False).indices
            self.chosen = torch.zeros_like(self.group_mask).scatter_(-1, best, True) & (s > -math.inf)
        else:
            self.chosen = s > -math.inf

    def blocks(self, s):
        """Candidate blocks of keys, by their best score; a row's newest block is always one of them."""
        c, size = self.c, self.c.candidate_block_size
        groups = s.shape[-1]
        best = F.pad(s, (0, -groups % size), value=-math.inf).unflatten(-1, (-1, size)).amax(-1)
        number = torch.arange(best.shape[-1])
        newest = torch.where(best > -math.inf, number, -1).amax(-1, keepdim=True)
        best = best.masked_fill(number == newest, math.inf)
        keep = torch.topk(best, min(c.candidate_topk_blocks, best.shape[-1]), sorted=False).indices
        mask = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, keep, True)
        return mask.repeat_interleave(size, -1)[..., :groups]

    def settle(self):
        """Closes the index's lesson: its scores against the attention its layers really gave."""
        if self.scores is not None and not isinstance(self.target, int):
            mass = self.target.sum(-1, keepdim=True)
            want = self.target / mass.clamp(min=1e-6)
            log = torch.log_softmax(self.scores.masked_fill(~self.group_mask, -1e9), -1)
            kl = (want * (want.clamp(min=1e-9).log() - log)).sum(-1)
            weight = mass.squeeze(-1) * self.group_mask.any(-1)
            self.losses.append((kl * weight).sum() / weight.sum().clamp(min=1e-6))
        self.scores = self.target = None

    def index_loss(self):
        self.settle()
        return sum(self.losses) if self.losses else torch.zeros(())

    def attend(self, block, layer, h):
        attn, c = block.attn, self.c
        b, n = self.rows["pos"].shape
        h = h.view(b, n, -1)
        turn = self.turns[1 if attn.ratio else 0]
        mask = self.window_mask.flatten(1, 2)
        qa, q, k = attn.project(h, turn)
        if not attn.ratio:
            return attn.output(attend(q, k, mask, attn.sink), turn).flatten(0, 1)
        if attn.compressor is not None and layer != c.first_decoder:
            self.publish(attn, h)
            self.see_groups(attn.ratio)
        self.select(block, layer, h, qa)
        if self.scores is not None:
            self.watch(q, k, mask, attn.sink)
        return attn.output(attend(q, k, mask, attn.sink, self.g, self.chosen), turn).flatten(0, 1)

    @torch.no_grad()
    def watch(self, q, k, mask, sink):
        """Adds the attention that a layer would give if it saw every key."""
        near, _ = window_logits(q, k)
        far = (q.flatten(1, 2) @ self.g.transpose(1, 2)).view(*q.shape[:3], -1)
        self.target = self.target + Fused.softmax(near, far, mask, self.group_mask, sink)[1].float().sum(2)
