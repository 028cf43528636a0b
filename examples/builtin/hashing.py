"""Engram addresses: which rows of the memory tables the last tokens point to. Depends on token ids alone."""

import numpy as np
import torch
from tokenizers import Regex, normalizers

import checkpoint


def classes(tokenizer):
    """Class of each token: tokens whose text is the same but for case, accents and space share one."""
    alone = "\ue000"
    norm = normalizers.Sequence([
        normalizers.NFKC(), normalizers.NFD(), normalizers.StripAccents(), normalizers.Lowercase(),
        normalizers.Replace(Regex(r"[ \t\r\n]+"), " "), normalizers.Replace(Regex(r"^ $"), alone),
        normalizers.Strip(), normalizers.Replace(alone, " "),
    ])
    seen, of = {}, []
    for i in range(tokenizer.get_vocab_size()):
        text = tokenizer.decode([i], skip_special_tokens=False)
        key = tokenizer.id_to_token(i) if "\ufffd" in text else (norm.normalize_str(text) or text)
        of.append(seen.setdefault(key, len(seen)))
    return np.array(of, dtype=np.int64), len(seen)


class Hashes:
    def __init__(self, text, of):
        self.of, self.pad = of, of[text["engram_pad_token_id"]]
        self.primes = checkpoint.engram_rows(text)
        bound = max(1, (np.iinfo(np.int64).max // text["engram_compressed_vocab_size"]) // 2)
        n = text["engram_max_ngram_size"]
        self.multipliers = [
            np.random.default_rng(10007 * l).integers(0, bound, size=n, dtype=np.int64) * 2 + 1 for l in text["engram_layer_ids"]
        ]
        self.size = n

    def rows(self, tokens, image=None):
        """tokens [n] of one document: rows [engram layers, n, heads]."""
        tokens = np.asarray(tokens)
        ids = np.full((self.size, len(tokens)), self.pad, dtype=np.int64)
        blocked = np.zeros(len(tokens), dtype=bool)
        image = np.zeros(len(tokens), dtype=bool) if image is None else np.asarray(image)
        for r in range(min(self.size, len(tokens))):
            end = len(tokens) - r
            blocked[:r] = True
            blocked[r:] |= image[:end]
            ids[r, r:] = np.where(blocked[r:], self.pad, self.of[tokens[:end]])
        out = []
        for multiplier, primes in zip(self.multipliers, self.primes):
            h, rows, offset = ids[0] * multiplier[0], [], 0
            for k in range(1, self.size):
                h = h ^ (ids[k] * multiplier[k])
                for p in primes[k - 1]:
                    rows.append(h % p + offset)
                    offset += p
            out.append(np.stack(rows, 1))
        return torch.from_numpy(np.stack(out))
