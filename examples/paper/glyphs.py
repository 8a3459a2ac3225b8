"""Pairs of a "photo" and a "sketch" of the same glyph, from the fonts that matplotlib ships.

A stand-in for Sketchy (Sangkloy et al. 2016) that needs no download. A class is a character. Both
images of a pair show it in one typeface, at one size and turned alike. The photo is filled and
textured, unevenly lit, and lies on a busy background; the sketch is a wobbly outline in ink.
"""

import functools
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.font_manager import FontProperties
from matplotlib.path import Path as Outline
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D
from readers.sketchy import Pairs

SIZE = 32
# Alike ones (O and 0, c and C, P and rho) are left out but for one.
CHARACTERS = (
    "A2SΔ&ЖgMΨ?R5εЮhTЯ§3K"  # 20
    "БλQe8ΩЙ#ЭZ€fξWЦ7GπЂaΣыkN¶4ΘdЉβ"  # 50
    "HΦ%JψЧmE£6YηЛ@UθtШF¥qσLΞИbζXγПB9μюΓrDωЊCδVŒ*øæ+ŁŊ"  # 99  # noqa: RUF001
    "ΛЪ$Þħ¿{=ж÷яÐ±ъ∂¤«щÑÅÇŠŦ№‰†"  # 125
)
STYLES = {
    "DejaVuSans": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSansMono": ("", "-Bold", "-Oblique", "-BoldOblique"),
    "DejaVuSerif": ("", "-Bold", "-Italic", "-BoldItalic"),
    "STIXGeneral": ("", "Bol", "Italic", "BolIta"),
}
FONTS = tuple(f"{family}{style}.ttf" for family, styles in STYLES.items() for style in styles)


@functools.cache
def glyph(character, font):
    """The outline of a character, centred at 0, its longer side of length 1."""
    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / font
    path = TextPath((0, 0), character, size=100, prop=FontProperties(fname=file))
    box = path.get_extents()
    centre = (box.p0 + box.p1) / 2
    scale = Affine2D().translate(*-centre).scale(1 / max(box.width, box.height))
    return path.transformed(scale)


class Canvas:
    """Coverage in [0, 1] of what is drawn."""

    def __init__(self, size):
        self.renderer = RendererAgg(size, size, 72)

    def draw(self, path, transform, fill=True, width=0.0):
        self.renderer.clear()
        context = self.renderer.new_gc()
        context.set_antialiased(True)
        context.set_linewidth(width)
        context.set_foreground((0.0, 0.0, 0.0))
        self.renderer.draw_path(context, path, transform, (0.0, 0.0, 0.0) if fill else None)
        return np.asarray(self.renderer.buffer_rgba())[..., 3] / 255.0


@functools.cache
def _interpolation(cells, size):
    """Linear interpolation from `cells` points to `size` pixels, a matrix."""
    columns = [
        np.interp(np.linspace(0, cells - 1, size), np.arange(cells), e) for e in np.eye(cells)
    ]
    return np.stack(columns, 1)


def smooth_noise(rng, cells, size, channels):
    """Noise (size, size, channels) that varies over size / cells pixels."""
    weights = _interpolation(cells, size)
    noise = rng.normal(size=(cells, cells, channels))
    return np.einsum("ia,jb,abc->ijc", weights, weights, noise)


def draw_photo(rng, canvas, path, transform, size):
    """The glyph filled with a texture on a background with clutter, lit from one side."""
    rows, columns = np.mgrid[:size, :size] / (size - 1) - 0.5
    back, front = rng.uniform(0.1, 0.9, (2, 3))
    while np.abs(front - back).mean() < 0.25:
        front = rng.uniform(0.1, 0.9, 3)
    image = back + 0.10 * smooth_noise(rng, 4, size, 3) + 0.06 * smooth_noise(rng, 11, size, 3)
    for _ in range(rng.integers(1, 4)):  # bars across the background
        line = Outline(rng.uniform(-0.2, 1.2, (2, 2)) * size)
        cover = canvas.draw(line, Affine2D(), fill=False, width=rng.uniform(0.03, 0.12) * size)
        image += (0.8 * cover)[..., None] * (rng.uniform(0.1, 0.9, 3) - image)
    angle, waves, phase = rng.uniform(0, np.pi), rng.uniform(2, 8), rng.uniform(0, 2 * np.pi)
    stripes = np.sin(2 * np.pi * waves * (rows * np.sin(angle) + columns * np.cos(angle)) + phase)
    texture = front + 0.08 * stripes[..., None] + 0.05 * smooth_noise(rng, 9, size, 3)
    cover = canvas.draw(path, transform)[..., None]
    image = image + cover * (texture - image)
    angle = rng.uniform(0, 2 * np.pi)
    light = 1.0 + rng.uniform(0.2, 0.9) * (rows * np.sin(angle) + columns * np.cos(angle))
    image = image * light[..., None] + rng.normal(scale=0.03, size=image.shape)
    return (255 * np.clip(image, 0, 1)).astype(np.uint8)


def draw_sketch(rng, canvas, path, transform, size):
    """The glyph's outlines in ink, each point displaced by smooth noise."""
    wobble = rng.uniform(0.015, 0.035) * size
    image = np.ones((size, size))
    for outline in path.transformed(transform).to_polygons():
        steps = np.hypot(*np.diff(outline, axis=0).T)
        length = np.concatenate([[0.0], np.cumsum(steps)])
        points = max(8, int(length[-1]))
        at = np.linspace(0, length[-1] * rng.uniform(0.92, 1.0), points)  # some stay open
        line = np.stack([np.interp(at, length, outline[:, k]) for k in (0, 1)], 1)
        knots = max(3, int(length[-1] / (0.2 * size)))
        shift = _interpolation(knots, points) @ rng.normal(size=(knots, 2))
        line = Outline(line + wobble * shift)
        ink = canvas.draw(line, Affine2D(), fill=False, width=rng.uniform(0.025, 0.05) * size)
        image *= 1.0 - rng.uniform(0.7, 1.0) * ink
    return (255 * image).astype(np.uint8)[..., None]


def glyph_pairs(num_classes=20, pairs=100, seed=0, size=SIZE):
    """Draws `pairs` pairs of each of the first `num_classes` characters, sorted by class.

    Returns `Pairs`: photos (n, size, size, 3) and sketches (n, size, size, 1), uint8, and labels.
    """
    if not 2 <= num_classes <= len(CHARACTERS):
        raise ValueError(
            f"`num_classes` must be in 2..{len(CHARACTERS)}. Received: num_classes={num_classes}"
        )
    canvas = Canvas(size)
    photos, sketches = [], []
    for label, character in enumerate(CHARACTERS[:num_classes]):
        rng = np.random.default_rng([seed, label])
        for _ in range(pairs):
            path = glyph(character, FONTS[rng.integers(len(FONTS))])
            pose = Affine2D().scale(*(size * rng.uniform(0.7, 0.85, 2)))
            angle = rng.uniform(-15, 15)
            for draw, images in ((draw_photo, photos), (draw_sketch, sketches)):
                centre = size * (0.5 + rng.uniform(-0.04, 0.04, 2))
                turn = Affine2D().rotate_deg(angle + rng.normal(scale=3.0)).translate(*centre)
                images.append(draw(rng, canvas, path, pose + turn, size))
    labels = np.repeat(np.arange(num_classes), pairs).astype(np.int32)
    return Pairs(np.stack(photos), np.stack(sketches), labels)
