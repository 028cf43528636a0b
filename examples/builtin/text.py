"""The tokenizer, the chat template, and conversations as token ids."""

import random

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

import tasks

BEGIN, END, PAD = "<|begin|>", "<|end|>", "<|pad|>"
SYSTEM, USER, ASSISTANT, THINK, THOUGHT, IMAGE, NOISE = "<|system|>", "<|user|>", "<|assistant|>", "<think>", "</think>", "<|image|>", "<|noise|>"
VOCABULARY = 1024

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'assistant' %}<|assistant|>{% elif m['role'] == 'system' %}<|system|>{% else %}<|user|>{% endif %}"
    "{% if m['content'] is not string %}{% for part in m['content'] %}"
    "{% if part['type'] == 'text' %}{{ part['text'] }}{% else %}<|image|>{% endif %}{% endfor %}"
    # What it thought before is not said again.
    "{% elif m['role'] == 'assistant' %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}"
    "{% if m['role'] == 'assistant' %}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT = {
    "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BEGIN, "eos_token": END, "pad_token": PAD, "add_bos_token": False,
    "clean_up_tokenization_spaces": False, "model_max_length": 131072, "chat_template": TEMPLATE,
}


def corpus(seed):
    """Texts like those of the tasks, every word often and in both forms, with a space before it and without."""
    rng = random.Random(seed)
    weights = {name: weight for name, (_, weight) in tasks.SHORT.items()}
    for _ in range(4000):
        for turn in tasks.single(rng, weights).turns:
            for part in (turn.text, turn.think, turn.answer):
                yield part
    for word in tasks.WORDS:
        for _ in range(60):
            yield f"{word}"
            yield f" {word}"


def train(seed):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    last = [SYSTEM, USER, ASSISTANT, THINK, THOUGHT, IMAGE, NOISE]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(last), special_tokens=[BEGIN, END, PAD], show_progress=False, min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tok.train_from_iterator(corpus(seed), trainer)
    # A reasoning section is shown to readers, so its ends are text.
    for token in last:
        add = tok.add_tokens if token in (THINK, THOUGHT) else tok.add_special_tokens
        add([AddedToken(token, normalized=False)])
    return tok


class Speaker:
    """Turns talks into ids."""

    def __init__(self, tok, span):
        self.tok, self.span = tok, span
        self.id = {t: tok.token_to_id(t) for t in (BEGIN, END, PAD, SYSTEM, USER, ASSISTANT, THINK, THOUGHT, IMAGE, NOISE)}
        self.known = {}

    def plain(self, text):
        if len(text) > 60:
            return self.tok.encode(text, add_special_tokens=False).ids
        if text not in self.known:
            if len(self.known) > 200000:
                self.known.clear()
            self.known[text] = self.tok.encode(text, add_special_tokens=False).ids
        return self.known[text]

    def prompt(self, talk, upto=0):
        """Ids up to where the model answers turn `upto`; earlier turns without their reasoning."""
        i, ids = self.id, [self.id[BEGIN]]
        if talk.system:
            ids += [i[SYSTEM], *self.plain(talk.system)]
        for n, turn in enumerate(talk.turns[: upto + 1]):
            ids += [i[USER], *([i[IMAGE]] * self.span if turn.image is not None else []), *self.plain(turn.text), i[ASSISTANT]]
            if n < upto:
                ids += [*self.plain(turn.answer), i[END]]
        return ids

    def answer(self, turn):
        i = self.id
        return [i[THINK], *self.plain(turn.think), i[THOUGHT], *self.plain(turn.answer), i[END]]

    def whole(self, talk):
        """Ids of the whole talk, which of them the model is to say, and the length of the prompt before that."""
        ids = self.prompt(talk, talk.earlier)
        first, said = len(ids), [False] * len(ids)
        for n, turn in enumerate(talk.turns[talk.earlier :]):
            if n:
                more = [self.id[USER], *self.plain(turn.text), self.id[ASSISTANT]]
                ids, said = ids + more, said + [False] * len(more)
            more = self.answer(turn)
            ids, said = ids + more, said + [True] * len(more)
        return ids, said, first

    def answer_text(self, ids):
        """The text behind the reasoning section, trimmed."""
        if self.id[THOUGHT] in ids:
            ids = ids[ids.index(self.id[THOUGHT]) + 1 :]
        return self.tok.decode([i for i in ids if i != self.id[END]]).strip()
