"""The loops of fused.cpp as functions with gradients. g++ compiles them once, in seconds."""

import ctypes
import hashlib
import pathlib
import subprocess
import tempfile

import torch
from torch.autograd import Function

LIBRARY = None


def build(width, streams):
    """Compiles fused.cpp for these widths and loads it; the result is kept in the temporary folder."""
    global LIBRARY
    source = pathlib.Path(__file__).with_name("fused.cpp")
    name = hashlib.sha256(source.read_bytes() + f"{width} {streams}".encode()).hexdigest()[:16]
    made = pathlib.Path(tempfile.gettempdir()) / f"builtin-{name}.so"
    if not made.exists():
        flags = ["-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", f"-DD={width}", f"-DS={streams}"]
        part = made.with_suffix(f".{torch.initial_seed() % 99991}")
        subprocess.run(["g++", *flags, str(source), "-o", str(part)], check=True)
        part.rename(made)
    LIBRARY = ctypes.CDLL(str(made))


def call(name, *args):
    """Calls a loop: tensors by address, None as null, whole numbers as such, floats as C floats."""
    out = []
    for a in args:
        if a is None:
            out.append(ctypes.c_void_p(0))
        elif isinstance(a, torch.Tensor):
            assert a.is_contiguous()
            out.append(ctypes.c_void_p(a.data_ptr()))
        else:
            out.append(ctypes.c_float(a) if isinstance(a, float) else a)
    getattr(LIBRARY, name)(*out)


def rows_of(n):
    return ctypes.c_int64(n)


def solid(t):
    return None if t is None else t.contiguous()


class Step(Function):
    @staticmethod
    def forward(ctx, x, out, post, comb, pre, weight, eps):
        ctx.set_materialize_grads(False)
        n, s, d = x.shape
        x, out, post, comb, pre = (solid(t) for t in (x, out, post, comb, pre))
        made = torch.empty_like(x)
        made16, h = torch.empty(n, s, d, dtype=torch.bfloat16), torch.empty(n, d, dtype=torch.bfloat16)
        inv, hinv = torch.empty(n), torch.empty(n)
        call("advance_forward", rows_of(n), x, out, post, comb, pre, weight, float(eps), made, made16, h, inv, hinv)
        ctx.save_for_backward(x, out, post, comb, pre, weight, made, inv, hinv)
        return made, made16, h, inv

    @staticmethod
    def backward(ctx, gmade, gmade16, gh, ginv):
        x, out, post, comb, pre, weight, made, inv, hinv = ctx.saved_tensors
        n = x.shape[0]
        gx, gpre, gw = torch.empty_like(x), torch.empty_like(pre), torch.zeros_like(weight)
        gout = gpost = gcomb = None
        if out is not None:
            gout, gpost, gcomb = torch.empty_like(out), torch.empty_like(post), torch.empty_like(comb)
        grads = (solid(t) for t in (gmade, gmade16, ginv, gh))
        call("advance_backward", rows_of(n), x, out, post, comb, pre, weight, made, inv, hinv, *grads, gx, gout, gpost, gcomb, gpre, gw)
        return gx, gout, gpost, gcomb, gpre, gw, None


class Mixes(Function):
    @staticmethod
    def forward(ctx, z, inv, scale, base, hc_eps, rounds, s):
        n = z.shape[0]
        pre, post, comb = torch.empty(n, s), torch.empty(n, s), torch.empty(n, s, s)
        call("mixes_forward", rows_of(n), z, inv, scale, base, float(hc_eps), rounds, pre, post, comb)
        ctx.save_for_backward(z, inv, scale, base)
        ctx.settings = hc_eps, rounds
        return pre, post, comb

    @staticmethod
    def backward(ctx, gpre, gpost, gcomb):
        z, inv, scale, base = ctx.saved_tensors
        hc_eps, rounds = ctx.settings
        gz, ginv, gscale, gbase = torch.empty_like(z), torch.empty_like(inv), torch.zeros_like(scale), torch.zeros_like(base)
        call("mixes_backward", rows_of(len(z)), z, inv, scale, base, float(hc_eps), rounds, *(solid(t) for t in (gpre, gpost, gcomb)), gz, ginv, gscale, gbase)
        return gz, ginv, gscale, gbase, None, None, None


class Softmax(Function):
    @staticmethod
    def forward(ctx, near, far, mask, chosen, sink):
        b, n, heads, count = near.shape
        near, far = (None if t is None else t.clone(memory_format=torch.contiguous_format) for t in (near, far))
        more = 0 if far is None else far.shape[-1]
        call("softmax_forward", rows_of(b * n), heads, count, more, near, far, mask.contiguous(), solid(chosen), sink)
        ctx.save_for_backward(near, far)
        return near, far

    @staticmethod
    def backward(ctx, gnear, gfar):
        near, far = ctx.saved_tensors
        b, n, heads, count = near.shape
        gnear, gfar = gnear.clone(memory_format=torch.contiguous_format), None if far is None else gfar.clone(memory_format=torch.contiguous_format)
        gsink = torch.zeros(heads)
        call("softmax_backward", rows_of(b * n), heads, count, 0 if far is None else far.shape[-1], near, far, gnear, gfar, gsink)
        return gnear, gfar, None, None, gsink


class Turned(Function):
    @staticmethod
    def forward(ctx, x, heads, weight, cos, sin, scale, eps):
        x = x.contiguous()
        rows, width = x.numel() // x.shape[-1], x.shape[-1] // heads
        cos, sin = solid(cos), solid(sin)
        y = torch.empty(*x.shape[:-1], heads, width, dtype=torch.bfloat16)
        inv = torch.empty(rows * heads) if weight is not None else None
        pairs = 0 if cos is None else cos.shape[-1]
        call("turn_forward", rows_of(rows), heads, width, pairs, x, weight, cos, sin, float(scale), float(eps), inv, y)
        ctx.save_for_backward(x, weight, cos, sin, inv)
        ctx.settings = rows, heads, width, pairs, scale
        return y

    @staticmethod
    def backward(ctx, gy):
        x, weight, cos, sin, inv = ctx.saved_tensors
        rows, heads, width, pairs, scale = ctx.settings
        gx, gw = torch.empty_like(x), None if weight is None else torch.zeros_like(weight)
        call("turn_backward", rows_of(rows), heads, width, pairs, x, weight, cos, sin, float(scale), inv, gy.contiguous(), gw, gx)
        return gx, None, gw, None, None, None, None


class Gated(Function):
    @staticmethod
    def forward(ctx, a, g, limit):
        a, g = a.contiguous(), g.contiguous()
        rows, inner = a.shape[0], a.shape[1] // 2
        y = torch.empty(rows, inner, dtype=torch.bfloat16)
        call("gated_forward", rows_of(rows), inner, float(limit), a, g, y)
        ctx.save_for_backward(a, g)
        ctx.limit = limit
        return y

    @staticmethod
    def backward(ctx, gy):
        a, g = ctx.saved_tensors
        ga, gg = torch.empty_like(a), torch.empty_like(g)
        call("gated_backward", rows_of(len(a)), a.shape[1] // 2, float(ctx.limit), a, g, gy.contiguous(), ga, gg)
        return ga, gg, None


class Recall(Function):
    @staticmethod
    def forward(ctx, x, kv, q_weight, k_weight, live, eps):
        x, kv, y = x.contiguous(), kv.contiguous(), torch.empty_like(x)
        call("recall_forward", rows_of(len(x)), x, kv, q_weight, k_weight, live, float(eps), y)
        ctx.save_for_backward(x, kv, q_weight, k_weight, live)
        ctx.eps = eps
        return y

    @staticmethod
    def backward(ctx, gy):
        x, kv, q_weight, k_weight, live = ctx.saved_tensors
        gx, gkv, gq, gk = torch.empty_like(x), torch.empty_like(kv), torch.zeros_like(q_weight), torch.zeros_like(k_weight)
        call("recall_backward", rows_of(len(x)), x, kv, q_weight, k_weight, live, float(ctx.eps), gy.contiguous(), gx, gkv, gq, gk)
        return gx, gkv, gq, gk, None, None


def step(x, written, pre, weight, eps):
    out, post, comb = written or (None, None, None)
    return Step.apply(x, None if out is None else out.float(), post, comb, pre, weight, eps)


def mixes(z, inv, scale, base, hc_eps, rounds, s):
    return Mixes.apply(z.float().contiguous(), inv, scale, base, hc_eps, rounds, s)


def softmax(near, far, mask, chosen, sink):
    return Softmax.apply(near, far, mask, chosen, sink)


def turned(x, heads, weight, turn, scale, eps):
    cos, sin = turn or (None, None)
    return Turned.apply(x, heads, weight, cos, sin, scale, eps)


def weighted(a, g, limit, exact):
    return Gated.apply(a, g, limit)


def remember(x, kv, q_weight, k_weight, image, eps):
    return Recall.apply(x, kv, q_weight, k_weight, (~image).float(), eps)


LOOPS = {f.__name__: f for f in (step, mixes, softmax, turned, weighted, remember)}
