// Heads on single rows: attention and scores as heat maps, attention and the tree drawn over the text.
"use strict";

const longestText = 600;  // tokens drawn at most

// The label of a row or column of a picture: a token, or a range of tokens.
function namer(example, size, level = 0) {
  const tokens = example.tokens ?? [], block = Math.ceil(Math.ceil(tokens.length / 2 ** level) / size) * 2 ** level;
  const visible = text => (text === " " ? "␣" : text === "\n" ? "⏎" : text);
  return index => (block <= 1 ? `${index} ${visible(tokens[index] ?? "")}` : `${index * block}–${Math.min(tokens.length, (index + 1) * block) - 1}`);
}

// The beginning of a row; of an image with a caption, that of the caption.
function beginning(example) {
  const captioned = page.inspect.task === "captions";
  const tokens = (example.tokens ?? []).filter(token => !captioned || !/^\d+$/.test(token));
  return tokens.slice(0, 24).join(captioned || page.inspect.task === "listops" ? " " : "").slice(0, 40);
}

function showExamples(heads) {
  section("examples", "Heads at work", "Attention of a head on a row, and the scores of each of its levels. Point at a cell, or move with the arrow keys; + and − zoom. Longer rows are shown in blocks: attention summed over keys, everything averaged over queries.", part => {
    const examples = page.inspect.examples, chosen = { example: 0, head: 0, view: 0 };
    const views = ["attention", ...levelsOf(heads[0]).map(l => `scores of level ${l}`)];
    const renew = renewable(part, area => {
      const example = examples[chosen.example], head = heads[chosen.head];
      const base = ["inspect", "examples", chosen.example, "layers", head.layer, head.head];
      const path = chosen.view === 0 ? [...base, "attention"] : [...base, "levels", chosen.view - 1];
      if (!at(path)) return area.append(problem(`There is no picture of ${head.name} on this row.`));
      const name = namer(example, at(path).length, Math.max(0, chosen.view - 1));
      const pair = el("div", { class: "charts" }), text = el("div");
      area.append(pair);
      heatMap(pair, { title: `${views[chosen.view]}, ${head.name}`, note: example.label === undefined ? "" : `label ${example.label}`, path, name });
      pair.append(text);
      text.append(el("p", {}, el("strong", {}, "Over the text. "), example.tree ? "Lines under the text are the families of the tree, the root lowest. " : "",
        "Choose a token to see where its attention goes."));
      drawText(text, example, [...base, "attention"], ["listops", "cifar10", "captions"].includes(page.inspect.task));
    });
    const pick = (key, label, names) => choice(label, names, i => { chosen[key] = i; renew(); });
    const controls = el("div", { class: "controls sticky" },
      pick("example", "Row", examples.map((example, i) => `${i + 1}: ${beginning(example)} …`)),
      pick("head", "Head", heads.map(head => head.name)), views.length > 1 ? pick("view", "Show", views) : null);
    part.querySelector("h2").after(controls);
    renew();
  });
}

// The tokens of a row, nested as in its tree. Selecting a token colours the others by its attention, if there is one.
// spaced: with spaces between tokens.
function drawText(parent, example, attention, spaced) {
  const tokens = example.tokens ?? [];
  const shownTokens = Math.min(tokens.length, longestText);
  const block = example.block ?? 1;
  const spans = [];
  const choose = index => {
    const row = at(attention)?.[Math.floor(index / block)] ?? [];
    const largest = Math.max(...row.filter(value => typeof value === "number"));
    spans.forEach((span, i) => {
      if (i === index) span.setAttribute("aria-current", "true"); else span.removeAttribute("aria-current");
      const value = row[Math.floor(i / block)];
      span.style.background = typeof value === "number" ? heatColour(value * 0.7, largest) : "none";
      span.title = typeof value === "number" ? format(value) : "";
    });
  };
  const token = index => {
    const span = el("span", { class: "token", onclick: attention && (() => choose(index)) }, (tokens[index] ?? "?") + (spaced ? " " : ""));
    spans[index] = span;
    return span;
  };
  const box = el("div", { class: "text", role: "group", "aria-label": "The row's text" });
  if (example.tree) {
    const { child_begin: begin, children } = example.tree;
    if (!Array.isArray(begin) || !begin.every(end => Number.isInteger(end) && end >= 0 && end <= children.length)) throw new Error("the tree's families are not ranges of its children");
    const heights = new Array(begin.length - 1).fill(1);  // children come after their parents
    for (let f = begin.length - 2; f >= 0; --f) {
      for (let c = begin[f]; c < begin[f + 1]; ++c) if (children[c] < 0) heights[f] = Math.max(heights[f], 1 + heights[~children[c]]);
    }
    const step = heights[0] > 6 ? 3 : 4;
    box.style.lineHeight = `${26 + step * Math.min(heights[0], 20)}px`;
    const family = (f, depth) => {
      const span = el("span", { class: "family", style: `border-color: ${seriesColour(depth)}; padding-bottom: ${step * Math.min(heights[f], 20)}px`,
        title: `family at depth ${depth} with ${begin[f + 1] - begin[f]} children` });
      for (let c = begin[f]; c < begin[f + 1]; ++c) {
        if (children[c] >= shownTokens) break;
        span.append(children[c] >= 0 ? token(children[c]) : family(~children[c], depth + 1));
      }
      return span;
    };
    box.append(family(0, 0));
  } else {
    for (let i = 0; i < shownTokens; ++i) box.append(token(i));
  }
  parent.append(box);
  if (tokens.length > shownTokens) parent.append(el("p", {}, `The first ${shownTokens} tokens of ${tokens.length}.`));
}
