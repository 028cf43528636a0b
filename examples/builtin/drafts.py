"""The block drafter: three layers that look at the model's own features and propose the next five tokens at once."""

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

import model as arch


class Drafter(nn.Module):
    def __init__(self, c):
        super().__init__()
        d, rank = c.hidden_size, c.dspark_markov_rank
        self.c = c
        self.blocks = nn.ModuleList(arch.Block(c, i, draft=True) for i in range(c.num_nextn_predict_layers))
        self.main_proj, self.main_norm = arch.Linear(d, len(c.dspark_target_layer_ids) * d), nn.Parameter(torch.ones(d))
        self.norm = nn.Parameter(torch.ones(d))
        self.markov_embed = nn.Parameter(torch.randn(c.vocab_size, rank) * 0.5)
        self.markov_head = nn.Parameter(torch.randn(c.vocab_size, rank) * 0.1)
        self.confidence = nn.Parameter(torch.zeros(1, d + rank))
        self.freq = arch.inverse_frequencies(c.rope_theta, c.qk_rope_head_dim)

    def context(self, features):
        """Rows that the drafter reads instead of tokens, from the model's features [rows, D] at its target layers."""
        return arch.rms(self.main_proj(torch.cat(features, -1)), self.main_norm, self.c.rms_norm_eps)

    def block(self, model, context, rows, n, golden, following=None):
        """Drafts for A places: `rows` [A, W] are the context's rows of positions n-W..n-1 (-1: none), `golden` [A] the
        token of position n. With `following` [A, 5] given the proposals are conditioned on it, else on themselves."""
        c = self.c
        a, size = len(n), c.dspark_block_size
        x = model.embed[torch.full((a, size), c.dspark_noise_token_id).index_copy(1, torch.zeros(1, dtype=torch.long), golden[:, None])]
        x = x.reshape(a * size, 1, -1).expand(-1, c.hc_mult, -1).contiguous()
        pre = torch.zeros(a * size, c.hc_mult)
        pre[:, 0] = 1
        turn = arch.angles(n[:, None] + torch.arange(size), self.freq)
        before = arch.angles((n[:, None] - torch.arange(rows.shape[1], 0, -1)).clamp(min=0), self.freq)
        seen = F.pad(rows >= 0, (0, size), value=True)[:, None, None, :]
        written = None
        for block in self.blocks:
            attn = block.attn
            x, h, pre, post, comb = arch.look(x, written, pre, block.attn_norm, block.hc_attn.weights())
            _, q, own = attn.project(h.view(a, size, -1), turn)
            past = arch.rotate(arch.rms(attn.wkv(context), attn.kv_norm, c.rms_norm_eps)[rows.clamp(min=0)], before)
            keys = torch.cat((arch.quick(past), own), 1)
            s = torch.einsum("aqhd,akd->aqhk", q, keys).float().masked_fill(~seen, float("-inf"))
            sink = attn.sink.view(1, 1, -1, 1).expand(a, size, -1, 1)
            p = arch.quick(torch.softmax(torch.cat((s, sink), -1), -1)[..., :-1])
            o = attn.output(torch.einsum("aqhk,akd->aqhd", p, keys), turn).flatten(0, 1)
            x, h, pre, post, comb = arch.look(x, (o, post, comb), pre, block.ffn_norm, block.hc_ffn.weights())
            written = block.ffn(h, None), post, comb
        x = arch.Fused.step(x, written, pre, self.norm, c.rms_norm_eps)[0]
        hidden = (x * pre.unsqueeze(-1)).sum(1)
        base = model.logits(arch.rms(hidden, self.norm, c.rms_norm_eps)).view(a, size, -1)
        return self.sequence(hidden.view(a, size, -1), base, golden, following)

    def sequence(self, hidden, base, golden, following):
        """The sequential part: each proposal corrected by the one before it, and how sure it is."""
        corrected, sure, tokens, last = [], [], [], golden
        for k in range(base.shape[1]):
            w = self.markov_embed[last]
            logits = base[:, k] + w @ self.markov_head.T
            corrected.append(logits)
            sure.append((torch.cat((hidden[:, k], w), -1) @ self.confidence.T).squeeze(-1))
            tokens.append(logits.argmax(-1))
            last = tokens[-1] if following is None else following[:, k]
        sure = torch.stack(sure, 1)
        return SimpleNamespace(base=base, corrected=torch.stack(corrected, 1), sure=sure, confidence=sure.sigmoid(), tokens=torch.stack(tokens, 1))
