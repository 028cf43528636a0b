"""Small images of coloured shapes on grey: what the model sees is then zero but for the shapes."""

import base64
import io

import numpy as np
from PIL import Image, ImageDraw

SIDE, CELLS = 84, 3
COLOURS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220), "yellow": (235, 200, 30), "black": (20, 20, 20)}
SHAPES = ("circle", "square", "triangle")
MOST = 4


def shape(draw, kind, x, y, r, colour):
    if kind == "circle":
        draw.ellipse((x - r, y - r, x + r, y + r), fill=colour)
    elif kind == "square":
        draw.rectangle((x - r, y - r, x + r, y + r), fill=colour)
    else:
        draw.polygon(((x, y - r), (x - r, y + r), (x + r, y + r)), fill=colour)


def picture(rng, kind, colour, count):
    """uint8 [84, 84, 3]: `count` shapes in different cells, each a little moved and sized."""
    image = Image.new("RGB", (SIDE, SIDE), (128, 128, 128))
    draw, cell = ImageDraw.Draw(image), SIDE // CELLS
    for at in rng.sample(range(CELLS * CELLS), count):
        r = rng.randint(8, 11)
        x, y = (cell * (i + 0.5) + rng.randint(-2, 2) for i in (at % CELLS, at // CELLS))
        shape(draw, kind, x, y, r, COLOURS[colour])
    return np.asarray(image)


def data_url(pixels):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def pixels_of(url):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1]))).convert("RGB"))
