"""A model as a folder: released field and tensor names, weights in bfloat16."""

import json
import pathlib

import torch
from safetensors.torch import load_file, save_file

import model as arch

FULL = ("hc_", "attn_sink", "gate.bias")  # what stays float32


def engram_rows(text):
    """Primes for each engram layer: 2-, 3- and 4-grams, some heads each, none used twice."""
    used, layers = set(), []
    for _ in text["engram_layer_ids"]:
        layer = []
        for _ in range(text["engram_max_ngram_size"] - 1):
            at, heads = text["engram_vocab_size"] - 1, []
            while len(heads) < text["engram_n_heads"]:
                at += 1
                if at not in used and all(at % i for i in range(2, int(at**0.5) + 1)):
                    used.add(at)
                    heads.append(at)
            layer.append(heads)
        layers.append(layer)
    return layers


def names(m):
    """(released name, tensor) of everything stored; the tensors are views of the model's own."""
    yield "embed.weight", m.embed
    yield "head.weight", m.head
    yield "norm.weight", m.norm
    v = m.vision
    yield from (("image_start", v.start), ("image_newline", v.newline), ("image_end", v.end))
    yield from (("vision.patch_embed.proj.weight", v.patch.weight), ("vision.patch_embed.proj.bias", v.patch.bias))
    for i, b in enumerate(v.blocks):
        p = f"vision.blocks.{i}."
        yield from ((p + "norm1.weight", b.norm1), (p + "norm2.weight", b.norm2))
        for name, part in (("attn.wqkv", b.wqkv), ("attn.wo", b.wo)):
            yield from ((f"{p}{name}.weight", part.weight), (f"{p}{name}.bias", part.bias))
        yield from ((p + "mlp.w1.weight", b.w1.weight), (p + "mlp.w2.weight", b.w2.weight))
    yield "vision.norm.weight", v.norm
    for name, part in (("aligner.w1", v.aligner1), ("aligner.w2", v.aligner2)):
        yield from ((name + ".weight", part.weight), (name + ".bias", part.bias))
    for l, block in enumerate(m.layers):
        yield from block_names(f"layers.{l}.", block)
        if block.engram is not None:
            e, p = block.engram, f"layers.{l}.engram."
            yield from ((p + "q_weight", e.q_weight), (p + "k_weight", e.k_weight))
            yield from ((p + "embed.weight", e.embed), (p + "wkv.weight", e.wkv.weight))


def block_names(p, block):
    a, f = block.attn, block.ffn
    yield from ((p + "attn_norm.weight", block.attn_norm), (p + "ffn_norm.weight", block.ffn_norm))
    for name, part in (("wq_a", a.wq_a), ("wq_b", a.wq_b), ("wkv", a.wkv), ("wo_b", a.wo_b)):
        yield f"{p}attn.{name}.weight", part.weight
    yield from ((p + "attn.q_norm.weight", a.q_norm), (p + "attn.kv_norm.weight", a.kv_norm))
    yield p + "attn.wo_a.weight", a.wo_a.flatten(0, 1)
    yield p + "attn.attn_sink", a.sink
    if a.compressor is not None:
        yield p + "attn.compressor.wkv.weight", a.compressor.weight
        if a.compressor_gate is not None:
            yield p + "attn.compressor.wgate.weight", a.compressor_gate.weight
        yield p + "attn.compressor.norm.weight", a.compressor_norm
        yield from ((p + "attn.indexer.wk.weight", a.indexer.weight), (p + "attn.indexer.k_norm.weight", a.index_norm))
    if a.index_q is not None:
        yield p + "attn.indexer.wq_b.weight", a.index_q.weight
        yield p + "attn.indexer.weights_proj.weight", a.index_weight.weight
    yield from ((p + "ffn.gate.weight", f.gate), (p + "ffn.gate.bias", f.bias), (p + "ffn.gate.bias_vl", f.bias_vl))
    half = f.w13.shape[1] // 2
    for e in range(len(f.w13)):
        q = p + ("ffn.shared_experts." if e == len(f.w13) - 1 else f"ffn.experts.{e}.")
        yield from ((q + "w1.weight", f.w13[e, :half]), (q + "w3.weight", f.w13[e, half:]), (q + "w2.weight", f.w2[e]))
    for name, hc in (("attn", block.hc_attn), ("ffn", block.hc_ffn)):
        yield from ((f"{p}hc_{name}_fn", hc.fn), (f"{p}hc_{name}_scale", hc.scale), (f"{p}hc_{name}_base", hc.base))


def draft_names(d):
    for i, block in enumerate(d.blocks):
        yield from block_names(f"mtp.{i}.", block)
    last = f"mtp.{len(d.blocks) - 1}."
    yield from (("mtp.0.main_proj.weight", d.main_proj.weight), ("mtp.0.main_norm.weight", d.main_norm))
    yield from ((last + "norm.weight", d.norm), (last + "markov_head.embed.weight", d.markov_embed))
    yield from ((last + "markov_head.head.weight", d.markov_head), (last + "confidence_head.proj.weight", d.confidence))


def everything(model, drafter):
    yield from names(model)
    if drafter is not None:
        yield from draft_names(drafter)


def save(folder, raw, model, drafter, tokenizer, chat):
    """Writes the folder; `raw` is config.json, `chat` tokenizer_config.json."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {}
    for name, t in everything(model, drafter):
        t = t.detach().clone().contiguous()
        tensors[name] = t.float() if any(part in name for part in FULL) else t.bfloat16()
    save_file(dict(sorted(tensors.items())), folder / "model.safetensors", metadata={"format": "pt"})
    ids = {k: raw[k] for k in ("bos_token_id", "eos_token_id", "pad_token_id")}
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in (("config.json", raw), ("tokenizer_config.json", chat), ("generation_config.json", {**ids, "do_sample": False})):
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def load(folder, model, drafter=None):
    """Fills model and drafter from a folder; every stored tensor must have its place."""
    stored = load_file(pathlib.Path(folder) / "model.safetensors")
    with torch.no_grad():
        for name, t in everything(model, drafter):
            t.copy_(stored.pop(name).view_as(t))
    left = [n for n in stored if not n.startswith("mtp.") or drafter is not None]
    assert not left, left


def config(folder):
    return arch.Config.of(json.loads((pathlib.Path(folder) / "config.json").read_text()))
