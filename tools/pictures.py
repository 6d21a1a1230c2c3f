#!/usr/bin/env python3
"""pictures.py square FILE.svg | pictures.py report FOLDER FILE.png: makes the pictures of the README.

square: which pairs of tokens share a score, in flat, HKT, HSA and Strata attention. The scores are computed here by the
    definitions of docs/MATH.md (1.1, 1.2, 2.2 and 3.1), for 16 tokens with seeded random vectors.
report: a picture of the HTML report in FOLDER, such as build/demo after `make demo`, by headless Chromium (needs
    chromium-driver and python3-selenium).
"""

import random
import shutil
import sys
from pathlib import Path

TOKENS, CHANNELS, BRANCHING = 16, 12, 4
LEVEL_WEIGHTS = (0.2, 0.3, 0.5)  # a_l, one convex weight per level
CELL, GAP_X, GAP_Y, LEFT, TOP = 14, 156, 118, 150, 108
SIDE = TOKENS * CELL


def dot(x, y):
    return sum(a * b for a, b in zip(x, y))


def mean(rows):
    return [sum(column) / len(rows) for column in zip(*rows)]


def random_tokens(rng):
    """q and k of 16 tokens; neighbours are alike, as in a text or an image."""
    rows = [[rng.gauss(0, 1) for _ in range(CHANNELS)]]
    for _ in range(TOKENS - 1):
        rows.append([0.75 * x + 0.66 * rng.gauss(0, 1) for x in rows[-1]])
    return rows, [[x + 0.5 * rng.gauss(0, 1) for x in row] for row in rows]


def flat_scores(q, k):
    return [[dot(a, b) for b in k] for a in q]


def coarser(rows):
    """Level l from level l - 1: a causal filter of stride 2 with three equal taps."""
    zero = [0.0] * CHANNELS
    return [mean([rows[2 * m - tap] if 2 * m >= tap else zero for tap in range(3)]) for m in range((len(rows) + 1) // 2)]


def hkt_scores(q, k):
    """S_ij = sum_l a_l <q^(l)_{i >> l}, k^(l)_{j >> l}>, and how many products there are over all levels."""
    scores, products = [[0.0] * TOKENS for _ in range(TOKENS)], []
    for level, weight in enumerate(LEVEL_WEIGHTS):
        products.append(len(q) * len(k))
        for i in range(TOKENS):
            for j in range(TOKENS):
                scores[i][j] += weight * dot(q[i >> level], k[j >> level])
        q, k = coarser(q), coarser(k)
    return scores, products


def level_blocks(level):
    """(queries, keys) that share the score of a level."""
    rows = [range(at, at + (1 << level)) for at in range(0, TOKENS, 1 << level)]
    return [(queries, keys) for queries in rows for keys in rows]


def hsa_blocks():
    """(queries, keys) of every pair of siblings in a balanced tree, and of every token with itself."""

    def family(begin, end):
        if end - begin == 1:
            yield range(begin, end), range(begin, end)
            return
        step = (end - begin) // BRANCHING
        children = [range(at, at + step) for at in range(begin, end, step)]
        for child in children:
            yield from ((child, sibling) for sibling in children if sibling != child)
            yield from family(child.start, child.stop)

    return list(family(0, TOKENS))


def hsa_scores(q, k):
    """<q_c, k_b> of the means over the blocks: one score for all pairs of a block."""
    scores = [[0.0] * TOKENS for _ in range(TOKENS)]
    for queries, keys in hsa_blocks():
        shared = dot(mean([q[i] for i in queries]), mean([k[j] for j in keys]))
        for i in queries:
            for j in keys:
                scores[i][j] = shared
    return scores


def strata_scores(hkt):
    """The same of HKT's features; the product of two means is the mean of the products."""
    scores = [[0.0] * TOKENS for _ in range(TOKENS)]
    for queries, keys in hsa_blocks():
        shared = sum(hkt[i][j] for i in queries for j in keys) / (len(queries) * len(keys))
        for i in queries:
            for j in keys:
                scores[i][j] = shared
    return scores


def colour(rank):
    """From pale (0) to dark blue (1)."""
    pale, dark = (237, 242, 250), (20, 62, 130)
    return "#" + "".join(f"{round(a + (b - a) * rank):02x}" for a, b in zip(pale, dark))


def text(x, y, words, size=14, style=""):
    return f'<text x="{x}" y="{y}" font-size="{size}" {style}>{words}</text>'


def mosaic(x, y, scores):
    """One square per pair; the darker, the higher its score stands among all scores of the matrix."""
    order = sorted({value for row in scores for value in row})
    ranks = {value: place / (len(order) - 1) for place, value in enumerate(order)}
    return [
        f'<rect x="{x + j * CELL}" y="{y + i * CELL}" width="{CELL}" height="{CELL}" fill="{colour(ranks[value])}"/>'
        for i, row in enumerate(scores) for j, value in enumerate(row)
    ]


def outlines(x, y, blocks, style):
    return [
        f'<rect x="{x + keys.start * CELL}" y="{y + queries.start * CELL}" width="{len(keys) * CELL}" '
        f'height="{len(queries) * CELL}" fill="none" {style}/>'
        for queries, keys in blocks
    ]


def square():
    q, k = random_tokens(random.Random(5))
    hkt, products = hkt_scores(q, k)
    blocks = hsa_blocks()
    within = sum(1 for queries, keys in blocks if len(queries) == 1)
    right, below = LEFT + SIDE + GAP_X, TOP + SIDE + GAP_Y
    corners = [
        (LEFT, TOP, "Flat attention", "every pair has a score of its own", f"{TOKENS * TOKENS} scores"),
        (right, TOP, "HKT", "a pair mixes one score per scale",
         f"{sum(products)} scores: {' + '.join(map(str, products))}"),
        (LEFT, below, "HSA", "pairs between two siblings share a score",
         f"{len(blocks)} scores: {within} within families, {len(blocks) - within} between"),
        (right, below, "Strata attention", "both at once: siblings share a mix of scales",
         f"{len(blocks)} scores, each a mix of {len(LEVEL_WEIGHTS)} scales"),
    ]
    width, height = right + SIDE + 70, below + SIDE + 64
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
             'font-family="Helvetica, Arial, sans-serif" fill="#1c2430">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    bold = 'font-weight="bold" text-anchor="middle"'
    parts += [text(LEFT + SIDE / 2, 30, "one scale", 14, bold), text(right + SIDE / 2, 30, "several scales, one softmax", 14, bold)]
    for y, lines in ((TOP + SIDE / 2, ("every", "pair")), (below + SIDE / 2, ("blocks", "of a tree"))):
        parts += [text(58, y + 18 * n, line, 14, bold) for n, line in enumerate(lines)]
    for x, y, name, what, count in corners:
        parts.append(text(x, y - 30, name, 17, 'font-weight="bold"'))
        parts.append(text(x, y - 11, what, 13, 'fill="#4a5565"'))
        parts.append(text(x, y + SIDE + 20, count, 13, 'fill="#4a5565"'))
    parts += mosaic(LEFT, TOP, flat_scores(q, k)) + mosaic(right, TOP, hkt) + mosaic(LEFT, below, hsa_scores(q, k))
    for level, line in ((1, 0.6), (2, 1.6)):
        parts += outlines(right, TOP, level_blocks(level), f'stroke="white" stroke-width="{line}"')
    parts += mosaic(right, below, strata_scores(hkt))
    for x in (LEFT, right):
        parts += outlines(x, below, blocks, 'stroke="white"')
    parts.append(text(LEFT, height - 12, "16 tokens: rows are queries, columns are keys; the darker, the higher the score", 12, 'fill="#4a5565"'))
    return "\n".join(parts + ["</svg>", ""])


def report(folder, file):
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"):
        options.add_argument(flag)
    browser = webdriver.Chrome(service=Service(shutil.which("chromedriver")), options=options)
    try:
        browser.set_window_size(1000, 1310)  # down to the first chart
        browser.get((Path(folder) / "report.html").resolve().as_uri())
        browser.execute_async_script("setTimeout(arguments[0], 1500)")  # charts are drawn with an animation
        browser.save_screenshot(file)
    finally:
        browser.quit()


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "square":
        Path(sys.argv[2]).write_text(square())
    elif len(sys.argv) == 4 and sys.argv[1] == "report":
        report(sys.argv[2], sys.argv[3])
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
