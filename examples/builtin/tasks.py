"""The tasks, as conversations made from a random generator: what is asked, how to reason, what is right."""

from dataclasses import dataclass, field

import draw
from facts import ASKS, FACTS, THINGS, UNKNOWN, WRAPS

WORDS = """apple bear bell bird boat bone book bread bridge cake camel candle castle chair cloud corn crab crown desk dog door drum
eagle fern fig fire fish flag fox frog garden glass gold hat hill horse ice iron jar key king lamp leaf lemon lion map milk
moon nest oak owl pear pen plum pond queen rain river rose salt ship star tiger tree water wolf""".split()


@dataclass
class Turn:
    """One question with its reasoning and answer; `image` goes before the text."""

    text: str
    think: str
    answer: str
    image: object = None


@dataclass
class Talk:
    task: str
    turns: list
    system: str = ""
    earlier: int = 0  # turns that are history: said before, their reasoning gone
    known: tuple = field(default=())  # what must not be in training when it is in the evaluation


def add(a, b):
    parts, carry, out = [], 0, ""
    digits = max(len(str(a)), len(str(b)))
    for i in range(digits):
        x, y = a // 10**i % 10, b // 10**i % 10
        total = x + y + carry
        parts.append(f"{x}+{y}{f'+{carry}' if i else ''}={total:02}")
        carry = total // 10
    return " ".join(parts)


def subtract(a, b):
    parts, borrow = [], 0
    for i in range(len(str(a))):
        x, y = a // 10**i % 10, b // 10**i % 10
        lack = x < y + borrow
        parts.append(f"{int(lack)}{x}-{y}{f'-{borrow}' if i else ''}={x + 10 * lack - y - borrow}")
        borrow = int(lack)
    return " ".join(parts)


def multiply(a, b):
    """a of one or two digits times b of one."""
    first = a % 10 * b
    parts = [f"{a % 10}*{b}={first:02}"]
    if a > 9:
        second = a // 10 * b
        parts.append(f"{a // 10}*{b}={second:02}+{first // 10}={second + first // 10:02}")
    return " ".join(parts)


SUMS = ["What is {} + {}?", "{} + {}", "{}+{}", "{} + {} = ?", "Add {} and {}.", "What is {} plus {}?", "Compute {} + {}.", "How much is {} + {}?"]
LESS = ["What is {} - {}?", "{} - {}", "{}-{}", "{} - {} = ?", "What is {} minus {}?", "Compute {} - {}.", "How much is {} - {}?"]
TIMES = ["What is {} x {}?", "{} x {}", "{} * {}", "What is {} times {}?", "Multiply {} by {}.", "How much is {} * {}?"]


def number(rng):
    return rng.randint(0, 10 ** rng.choice((1, 2, 2, 3, 3)) - 1)


def arithmetic(rng):
    kind = rng.random()
    if kind < 0.42:
        a, b = number(rng), number(rng)
        text, think, answer, known = rng.choice(SUMS).format(a, b), add(a, b), a + b, ("+", a, b)
    elif kind < 0.84:
        b, a = sorted((number(rng), number(rng)))
        text, think, answer, known = rng.choice(LESS).format(a, b), subtract(a, b), a - b, ("-", a, b)
    else:
        a, b = rng.randint(0, rng.choice((9, 12, 99))), rng.randint(0, 9)
        shown = rng.choice(TIMES)
        text, think, answer, known = shown.format(a, b), multiply(a, b), a * b, ("*", shown, a, b)
    return Talk("arithmetic", [Turn(text, think, str(answer))], known=known)


def listed(rng, words):
    return (" " if rng.random() < 0.7 else ", ").join(words)


SORTS = ["Sort these words: {}", "Sort: {}", "Put these words in alphabetical order: {}", "Sort the words {}", "Order these words: {}"]
TURNS = ["Reverse these words: {}", "Reverse: {}", "Say these words backwards: {}", "Reverse the order of {}", "Write in reverse order: {}"]
COPIES = ["Copy this line: {}", "Copy: {}", "Repeat after me: {}", "Write this again: {}", "Say exactly this: {}"]


def sort(rng, most=6):
    words = rng.sample(WORDS, rng.randint(2, most))
    done = " ".join(sorted(words))
    return Talk("sort", [Turn(rng.choice(SORTS).format(listed(rng, words)), " " + done, done)])


def reverse(rng, most=6):
    words = rng.sample(WORDS, rng.randint(2, most))
    done = " ".join(reversed(words))
    return Talk("reverse", [Turn(rng.choice(TURNS).format(listed(rng, words)), " " + done, done)])


def copy(rng, most=36):
    size = rng.randint(2, rng.choice((6, 6, 10, 16, most)))
    line = " ".join(rng.choice(WORDS) if rng.random() < 0.9 else str(rng.randint(0, 99)) for _ in range(size))
    return Talk("copy", [Turn(rng.choice(COPIES).format(line), "copy", line)])


FILLERS = ["The {} is near the {}.", "A {} and a {} are here.", "There is no {} in the {}.", "We saw a {} by the {}.", "Every {} has a {}."]
RECALLS = ["What is the key of {}?", "What is the key of {}?", "Tell me the key of {}.", "Which key has {}?", "Give me the key of {}."]


def haystack(rng, lines, keys, asked):
    """`lines` lines of which `keys` name a key; `asked` questions, a turn each."""
    names = rng.sample(WORDS, min(keys, len(WORDS)))
    key = {n: f"{rng.randint(0, 9999):04}" for n in names}
    text = [f"The key is {n}{key[n]}." for n in names]
    while len(text) < lines:
        text.append(rng.choice(FILLERS).format(rng.choice(WORDS), rng.choice(WORDS)))
    rng.shuffle(text)
    turns = []
    for i, n in enumerate(rng.sample(names, min(asked, len(names)))):
        question = rng.choice(RECALLS).format(n)
        lead = "\n".join(text) + "\n" if i == 0 else ""
        turns.append(Turn(lead + question, f" {n}{key[n]} is the key of {n}, so {n}{key[n]}", key[n]))
    return Talk("recall", turns)


def recall(rng):
    """Short: fits beside other documents."""
    keys = rng.randint(1, 4)
    return haystack(rng, keys + rng.randint(0, 1), keys, 1 if keys > 3 else rng.randint(1, 2))


def fact(rng):
    if rng.random() < 0.12:
        text, topic, answer = rng.choice(ASKS).format(rng.choice(THINGS)), "unknown", UNKNOWN
    else:
        topic, questions, answer = rng.choice(FACTS)
        text = rng.choice(questions)
    text = rng.choice(WRAPS).format(text)
    if rng.random() < 0.1:
        text = text.lower()
    return Talk("facts", [Turn(text, topic, answer)])


LOOKS = {
    "all": ["What is in the image?", "Describe the image.", "What do you see?"],
    "count": ["How many shapes are there?", "How many shapes do you see?", "Count the shapes."],
    "colour": ["What colour are the shapes?", "Which colour do you see?", "Name the colour."],
    "shape": ["What shape is it?", "Which shape do you see?", "Name the shape."],
}


def image(rng):
    kind, colour, count = rng.choice(draw.SHAPES), rng.choice(list(draw.COLOURS)), rng.randint(1, draw.MOST)
    what = rng.choice(("all", "all", "count", "colour", "shape"))
    whole = f"{count} {colour} {kind}{'s' if count > 1 else ''}"
    answer = {"all": whole, "count": str(count), "colour": colour, "shape": kind}[what]
    pixels = draw.picture(rng, kind, colour, count)
    return Talk("image", [Turn(rng.choice(LOOKS[what]), whole, answer, pixels)])


SHORT = {"arithmetic": (arithmetic, 0.30), "sort": (sort, 0.13), "reverse": (reverse, 0.12), "copy": (copy, 0.11), "recall": (recall, 0.12), "facts": (fact, 0.08), "image": (image, 0.14)}
LATER = {"reverse": 0.06, "sort": 0.19, "facts": 0.09, "image": 0.17, "copy": 0.10}  # weights once reversing is learnt
SYSTEMS = ["You are a helpful assistant.", "Answer the question.", "You are the built-in model of Millstream."]


def single(rng, weights):
    """A talk of a task drawn by weight, sometimes with a system line."""
    name = rng.choices(list(weights), list(weights.values()))[0]
    talk = SHORT[name][0](rng)
    if rng.random() < 0.06:
        talk.system = rng.choice(SYSTEMS)
    return talk


def short(rng, weights):
    """The same, sometimes behind another one that is history."""
    talk = single(rng, weights)
    if rng.random() < 0.12:
        before = SHORT[rng.choice(list(weights))][0](rng)
        talk.earlier, talk.turns = len(before.turns), before.turns + talk.turns
    return talk


def long(rng, tokens, asked):
    """A haystack of about `tokens` tokens."""
    lines = max(2, int(tokens / 11.6))
    keys = rng.randint(min(lines, 4), max(4, min(lines, 60)))
    return haystack(rng, lines, keys, asked)
