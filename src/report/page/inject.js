// The report of `strata inject`: what HSA in place of softmax costs and saves.
"use strict";

function showInject() {
  const data = page.inject, path = (...rest) => ["inject", ...rest];
  const accuracy = data.causal ? { digits: 4 } : percent;
  const measure = data.causal ? "nats per token" : "accuracy, %";
  const plan = list(["inject", "plan"]);
  const planned = plan.map(layer => `layer ${layer.layer} on ${layer.trees.length > 1 ? `the closest of ${layer.trees.length} trees` : layer.trees[0]}`).join(", ");
  if (data.before && data.after) {
    section("summary", "Before and after", `HSA in place of softmax: ${planned || "nowhere"}. Nothing is trained. ${data.test.head === "linear"
      ? "Accuracy is that of a linear head, fitted on features of the original model." : ""}`, part => {
      const point = (name, key) => [name, { path: path(key, "score"), style: accuracy }, { path: path(key, "agreement"), style: percent }, { path: path(key, "attention_share"), style: percent },
        { path: path(key, "injected_share"), style: percent }, { path: path(key, "flops"), style: whole }];
      part.append(table("On the test rows", [{ title: "" }, { title: measure }, { title: "answers as before, %" }, { title: "attention, %", help: "of all layers, over flat attention's" },
        { title: "of injected layers, %", help: "their attention over flat attention's" }, { title: "FLOPs of attention a text" }], [point("before", "before"), point("after", "after")]));
      part.append(facts("Data", [["test rows", { path: path("test", "rows"), style: whole }], ["tokens, mean", { path: path("test", "tokens"), style: { digits: 1 } }],
        ["cut at the model's length", { path: path("test", "cut"), style: whole }], ["unlabelled texts for the gaps", { path: path("gaps", "texts"), style: whole }]]));
    });
  }
  if (data.curve) {
    section("curve", "Score against attention", "One layer after the other: in the paper's order (late and alternate ones first), and as the KL gap on unlabelled texts chooses them at the same cost.", part => {
      const series = [["late", "late, alternate"], ["auto", "by the KL gap"]].map(([key, name]) => ({ label: name,
        points: (data.curve[key] ?? []).map((one, i) => ({ x: 100 * one.attention_share, path: path("curve", key, i, "score") })) }));
      lineChart(part, { title: `${data.causal ? "Nats per token" : "Accuracy"} against attention`, note: "of all layers, over flat attention's", x: "attention, %", y: measure, scale: data.causal ? 1 : 100, series });
      part.append(table("Every point", [{ title: "order" }, { title: "layers" }, { title: measure }, { title: "answers as before, %" }, { title: "attention, %" }],
        ["late", "auto"].flatMap(key => (data.curve[key] ?? []).map((one, i) => [key, label(one.layers.join(", ") || "none"), { path: path("curve", key, i, "score"), style: accuracy },
          { path: path("curve", key, i, "agreement"), style: percent }, { path: path("curve", key, i, "attention_share"), style: percent }]))));
    });
  }
  section("gaps", "How far from softmax", "KL(HSA || softmax) in nats per token on unlabelled texts, per layer and tree; no labels are needed to know it. Of two trees of the same cost the one with the smaller gap is closer.", part => {
    const trees = data.gaps.trees, layers = data.gaps.nats_per_token;
    const kinds = [...new Set(trees.map(tree => tree.split(" ")[0]))];
    const grid = el("div", { class: "charts" });
    part.append(grid);
    layers.forEach((_, layer) => lineChart(grid, { title: `Layer ${layer}`, note: plan.some(one => one.layer === layer) ? "injected" : "softmax", x: "cost, % of flat attention", y: "KL gap", series: kinds.map(kind => ({ label: kind,
      points: trees.flatMap((tree, r) => (tree.startsWith(kind + " ") ? [{ x: 100 * data.gaps.costs[r], path: path("gaps", "nats_per_token", layer, r) }] : [])).sort((a, b) => a.x - b.x) })) }));
    part.append(table("Gaps", [{ title: "tree" }, { title: "cost, %" }, ...layers.map((_, layer) => ({ title: `layer ${layer}` }))],
      trees.map((tree, r) => [tree, { path: path("gaps", "costs", r), style: percent }, ...layers.map((_, layer) => ({ path: path("gaps", "nats_per_token", layer, r) }))])));
  });
  if (data.time) {
    section("time", "Time by length", "Medians, flat attention and HSA side by side on this machine. The operator alone has q, k and v in and the output out; a layer has its projections and feed-forward part as well.", part => {
      const of = (what, key) => data.time.flatMap((row, i) => (row[what] ? [{ x: row.tokens, path: path("time", i, what, key) }] : []));
      const grid = el("div", { class: "charts" });
      part.append(grid);
      for (const [what, title] of [["operator", "The operator"], ["layer", "A whole layer"], ["model", "The whole model"]]) {
        if (of(what, "flat_ms").length > 0) lineChart(grid, { title, x: "tokens", y: "ms", log: true, series: [{ label: "flat", points: of(what, "flat_ms") }, { label: "HSA", points: of(what, "hsa_ms") }] });
      }
      part.append(table("Flat over HSA, and the memory of a pass", [{ title: "tokens" }, { title: "tree" }, { title: "operator" }, { title: "layer" }, { title: "model" }, { title: "flat, bytes" }, { title: "HSA, bytes" }],
        data.time.map((row, i) => [label(row.tokens), row.tree, ...["operator", "layer", "model"].map(what => ({ path: path("time", i, what, "ratio"), style: { digits: 2 } })),
          { path: path("time", i, "model", "flat_bytes"), style: whole }, { path: path("time", i, "model", "hsa_bytes"), style: whole }])));
    });
  }
  if (data.example) {
    section("example", "The tree over a text", `${data.example.recipe}: lines under the text are the families, the root lowest; * stands for a special token.`, part => drawText(part, data.example, null, true));
  }
}
