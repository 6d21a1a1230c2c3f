// The report of `strata inspect`: the theory on the layers and heads of one model.
"use strict";

// Every head that was inspected, {layer, head, path, name}.
function inspectedHeads() {
  return list(["inspect", "layers"]).flatMap((_, l) => list(["inspect", "layers", l, "heads"]).map((head, h) => ({
    layer: l, head: h, path: ["inspect", "layers", l, "heads", h], name: `layer ${l}, head ${h}`, problem: head.problem })))
    .filter(head => !head.problem);
}

const place = head => [label(head.layer), label(head.head)];
const placeColumns = [{ title: "layer" }, { title: "head" }];

function levelsOf(head) { return list([...head.path, "weights"]).map((_, level) => level); }

// The path of the largest number over heads and levels: the result of a check.
function worst(heads, paths) {
  let best = null;
  for (const head of heads) {
    for (const path of paths(head)) {
      const value = at(path);
      if (typeof value === "number" && (best === null || value > at(best))) best = path;
    }
  }
  return best;
}

function showInspect() {
  const heads = inspectedHeads(), split = page.inspect.split;
  // Results of before there was a form are of HKT or of HSA on trees.
  const form = page.inspect.form ?? (page.inspect.attention === "hsa" ? "tree" : "levels");
  section("about", "What was inspected", "", part => {
    part.append(facts("The model and the rows it read", [
      ["model", page.inspect.model], ["task", page.inspect.task], ["attention", page.inspect.attention],
      [`rows of the ${split ?? ""} split`, { path: ["inspect", "samples"], style: whole }],
      ["tokens of a row, mean", { path: ["inspect", "mean_tokens"], style: { digits: 1 } }]]));
  });
  if (heads.length > 0) {
    (form === "tree" ? showTree : form === "stream" ? showStream : showHkt)(heads);
  }
  if (list(["inspect", "examples"]).length > 0 && heads.length > 0) showExamples(heads);
  if (list(["metrics"]).length > 0) showTracking();
}

function showHkt(heads) {
  const multi = levelsOf(heads[0]).length > 1;
  const perHead = (parent, draw) => {
    const controls = el("div", { class: "controls" });
    parent.append(controls);
    const renew = renewable(parent, draw);
    controls.append(choice("Head", heads.map(head => head.name), i => renew(heads[i])));
    renew(heads[0]);
  };
  section("checks", "What the theory says must hold", "Residuals of identities, the largest over heads, levels and rows; a bound is kept when its ratio is at most one.", part => {
    const levels = (head, key) => levelsOf(head).map(l => [...head.path, "symmetry", l, key]);
    const steps = head => list([...head.path, "decay"]).map((_, i) => [...head.path, "decay", i, "worst"]);
    const rows = [
      ["symmetric and antisymmetric parts are orthogonal", worst(heads, head => levels(head, "orthogonality")), tiny],
      ["the split commutes with up-sampling", worst(heads, head => levels(head, "upsampling")), tiny],
      ["the split commutes with projections", worst(heads, head => levels(head, "projection")), tiny],
      ["the split commutes with filters (float32)", worst(heads, head => levels(head, "filters")), tiny],
      ["the components sum to the KL divergence", worst(heads, head => [[...head.path, "error", "residual"]]), tiny],
      ["cutting levels stays below its bound (ratio)", worst(heads, steps), { digits: 3 }]];
    part.append(facts("Largest residual, or ratio", rows.map(([text, path, style]) => [text, path ? { path, style } : "–"])));
  });
  if (multi) {
    section("weights", "Level weights", "The convex weights with which the levels are mixed.", part => {
      barChart(part, { title: "Convex weights per head", labels: heads.map(head => head.name), y: "weight", stacked: true, max: 1,
        series: levelsOf(heads[0]).map(l => ({ label: `level ${l}`, paths: heads.map(head => [...head.path, "weights", l]) })) });
    });
  }
  section("psd", "Positive semi-definite?", "A level's kernel is PSD when no eigenvalue of its symmetrised bilinear form is negative; the scores on real inputs are a weaker question.", part => {
    const reason = heads.map(head => at([...head.path, "psd", "problem"])).find(Boolean);
    const scores = { title: "of the scores, %", help: "negative mass of the symmetrised score matrix, median over rows" };
    const ofScores = head => ({ path: [...head.path, "psd", "scores", "negative_mass"], style: percent });
    if (reason) {
      part.append(el("p", {}, `The condition on the bilinear form ${reason}.`), table("Per head", [...placeColumns, { ...scores, title: "negative mass of the scores, %" }], heads.map(head => [...place(head), ofScores(head)])));
    } else {
      part.append(table("Per level", [...placeColumns, { title: "level" }, { title: "holds" }, { title: "smallest eigenvalue" }, { title: "negative, %", help: "share of the eigenvalues" }, { title: "negative mass, %", help: "sum of the negative ones over the sum of all, in size" }, { title: "W_Q beyond W_K, %", help: "share of the queries that no linear map makes from the keys; PSD needs none" }, scores],
        heads.flatMap(head => levelsOf(head).map(l => {
          const path = [...head.path, "psd", "levels", l];
          return [...place(head), label(l), at([...path, "holds"]) ? "yes" : "no", { path: [...path, "smallest"] }, { path: [...path, "negative_count"], style: percent },
            { path: [...path, "negative_mass"], style: percent }, { path: [...path, "beyond_keys"], style: percent }, ofScores(head)];
        }))));
    }
    perHead(part, (area, head) => {
      const spectrum = path => (at(path) ?? []).map((_, i) => ({ x: i, path: [...path, i] }));
      const pair = el("div", { class: "charts" });
      area.append(pair);
      if (!reason) lineChart(pair, { title: "Spectrum of the bilinear form", note: head.name, x: "rank", y: "eigenvalue", series: levelsOf(head).map(l => ({ label: `level ${l}`, dash: l, points: spectrum([...head.path, "psd", "levels", l, "eigenvalues"]) })) });
      lineChart(pair, { title: "Spectrum of the scores of the first row", note: head.name, x: "rank", y: "eigenvalue", series: [{ label: "scores", points: spectrum([...head.path, "psd", "scores", "eigenvalues"]) }] });
    });
  });
  section("direction", "Direction", "The antisymmetric share of the scores: zero when attention runs both ways alike.", part => {
    barChart(part, { title: "Directional share per level", note: "median over rows", labels: heads.map(head => head.name), y: "share",
      series: levelsOf(heads[0]).map(l => ({ label: `level ${l}`, paths: heads.map(head => [...head.path, "symmetry", l, "directional_share"]) })) });
  });
  if (multi) {
    section("error", "Distance from flat attention", "KL divergence from flat attention on the finest scores, and the three components it is the sum of; means over rows, in nats.", part => {
      const terms = [["kl", "KL"], ["resolution", "resolution"], ["filter", "filter"], ["correction", "correction"], ["third", "3rd cumulant"], ["fourth", "4th cumulant"], ["range", "largest range"]];
      part.append(table("Per head", [...placeColumns, ...terms.map(([, title]) => ({ title }))],
        heads.map(head => [...place(head), ...terms.map(([key]) => ({ path: [...head.path, "error", key] }))])));
      barChart(part, { title: "Components of the divergence", labels: heads.map(head => head.name), y: "nats", stacked: true,
        series: ["resolution", "filter", "correction"].map(key => ({ label: key, paths: heads.map(head => [...head.path, "error", key]) })) });
    });
    section("decay", "What cutting levels loses", "KL divergence between the full mixture and its first levels alone, and the bound 2 (1 − w)² c².", part => {
      perHead(part, (area, head) => {
        const steps = at([...head.path, "decay"]) ?? [];
        const curve = key => steps.map((step, i) => ({ x: step.levels, path: [...head.path, "decay", i, key] }));
        lineChart(area, { title: "Divergence by levels kept", note: head.name, x: "levels", y: "nats", log: true, xStep: 1, series: [
          { label: "KL(full ‖ cut)", points: curve("kl") }, { label: "KL(cut ‖ full)", points: curve("reverse_kl"), dash: 1 }, { label: "bound", points: curve("bound"), dash: 2 }] });
      });
    });
  }
  section("gaussianity", "Are the scores Gaussian?", "Mardia's tests of the rows of each level's scores, sequence by sequence; medians. Compare levels by b2 over its expected value: z grows with the number of rows. P-values are nominal, as rows of one sequence depend on each other.", part => {
    const terms = [["tested", "rows tested", whole], ["components", "components", whole], ["skewness", "skewness"], ["kurtosis", "kurtosis b2"], ["expected_kurtosis", "expected b2 of Gaussian rows"], ["kurtosis_ratio", "b2 / expected"], ["ceiling", "upper limit of b2", { digits: 0 }], ["kurtosis_z", "z", { digits: 2 }], ["rejected", "rejected at 5%, %", percent]];
    part.append(table("Per level", [...placeColumns, { title: "level" }, ...terms.map(([, title]) => ({ title })), { title: "left out" }],
      heads.flatMap(head => levelsOf(head).map(l => {
        const path = [...head.path, "gaussianity", "scores", l];
        return [...place(head), label(l), ...terms.map(([key, , style]) => ({ path: [...path, key], style })), at([...path, "problem"]) ?? ""];
      }))));
    perHead(part, (area, head) => {
      const points = l => {
        const path = [...head.path, "gaussianity", "scores", l];
        return list([...path, "quantiles"]).map((_, i) => ({ x: at([...path, "normal_quantiles", i]), path: [...path, "quantiles", i] }));
      };
      const first = levelsOf(head).find(l => points(l).length > 0);
      if (first === undefined) return area.append(problem("No level of this head has enough rows for a QQ plot."));
      const normal = [...head.path, "gaussianity", "scores", first, "normal_quantiles"];
      lineChart(area, { title: "QQ plot of the first component", note: `${head.name}, first row with enough tokens`, x: "normal quantile", y: "quantile",
        series: [{ label: "normal", colour: 5, dash: 1, points: at(normal).map((x, i) => ({ x, path: [...normal, i] })) },
                 ...levelsOf(head).map(l => ({ label: `level ${l}`, points: points(l), scatter: true, colour: l })).filter(one => one.points.length > 0)] });
    });
  });
}

function showTree(heads) {
  const against = page.inspect.attention === "strata" ? "HKT" : "softmax";
  section("hsa", "Attention on its tree", `The KL gap is what the tree costs against ${against} on the same queries and keys, in nats per token; the cost counts score products over flat attention's.`, part => {
    const deepest = Math.max(...heads.map(head => list([...head.path, "mass_by_depth"]).length));
    barChart(part, { title: "Where the attention goes", note: "share at each depth of the tree; the token itself first", labels: heads.map(head => head.name), y: "share", stacked: true, max: 1,
      series: Array.from({ length: deepest }, (_, depth) => ({ label: depth === 0 ? "itself" : `depth ${depth - 1}`, paths: heads.map(head => [...head.path, "mass_by_depth", depth]) })) });
    const columns = [{ title: "tree" }, { title: "hierarchy score" }, { title: "KL gap" }, { title: "cost" }];
    const cells = path => ["hierarchy_score", "kl_gap", "cost"].map(key => ({ path: [...path, key] }));
    part.append(table("The tree in use and balanced ones", [...placeColumns, ...columns], heads.flatMap(head => [
      [...place(head), "in use", ...cells(head.path)],
      ...list([...head.path, "alternatives"]).map((other, i) => [...place(head), other.tree, ...cells([...head.path, "alternatives", i])])])));
    const energy = worst(heads, head => [[...head.path, "energy"]]);
    part.append(facts("Largest residual", [["f(root) is the scores and the entropy of the attention, nats per token", energy ? { path: energy, style: tiny } : "–"]]));
    const bounds = [["cost", "cost"], ["linear_bound", "bound by families, b (b T / (b − 1) + H)"], ["logarithm_bound", "bound by heights, b² T H"]];
    part.append(table("Two ways to count the cost of balanced trees", [{ title: "tree" }, ...bounds.map(([, title]) => ({ title }))],
      list([...heads[0].path, "alternatives"]).map((other, i) => [other.tree, ...bounds.map(([key]) => ({ path: [...heads[0].path, "alternatives", i, key] }))])));
    const controls = el("div", { class: "controls" });
    part.append(controls);
    const renew = renewable(part, (area, head) => {
      const alternatives = at([...head.path, "alternatives"]) ?? [];
      lineChart(area, { title: "KL gap against cost", note: head.name, x: "cost", y: "KL gap", series: [
        { label: "balanced trees", points: alternatives.map((other, i) => ({ x: other.cost, path: [...head.path, "alternatives", i, "kl_gap"] })) },
        { label: "tree in use", scatter: true, points: [{ x: at([...head.path, "cost"]), path: [...head.path, "kl_gap"] }] }] });
    });
    controls.append(choice("Head", heads.map(head => head.name), i => renew(heads[i])));
    renew(heads[0]);
  });
}

// Attention over a hierarchy without a tree: b children per node, n families of each height.
function showStream(heads) {
  section("stream", "What the hierarchy loses", "KL: nats per token from attention on the same scores without a hierarchy, exactly. delta²/8 bounds it by the range of the scores within nodes; the certificate bounds it by how far keys are from the means of their nodes, at the cost of the attention alone. Means over tokens; the cost counts score products over attention without a hierarchy.", part => {
    const terms = [["branching", "b", whole], ["near", "near", whole], ["kl", "KL"], ["range_bound", "delta²/8"], ["certificate", "certificate"], ["cost", "cost"]];
    const cells = path => terms.map(([key, , style]) => ({ path: [...path, key], style }));
    part.append(table("The layer's own b and near", [...placeColumns, ...terms.map(([, title]) => ({ title }))], heads.map(head => [...place(head), ...cells(head.path)])));
    const controls = el("div", { class: "controls" });
    part.append(controls);
    const renew = renewable(part, (area, head) => {
      const path = [...head.path, "alternatives"], all = list(path);
      const nears = [...new Set(all.map(one => one.near))];
      const curves = key => nears.map((near, i) => ({ label: `near ${near}`, dash: i, points: all.map((one, x) => [one, x])
        .filter(([one]) => one.near === near).map(([one, x]) => ({ x: one.branching, path: [...path, x, key] })) }));
      const pair = el("div", { class: "charts" });
      area.append(pair);
      lineChart(pair, { title: "KL against b", note: head.name, x: "b", y: "nats", log: true, series: curves("kl") });
      lineChart(pair, { title: "KL and its bounds against cost", note: head.name, x: "cost", y: "nats", log: true,
        series: [["kl", "KL"], ["range_bound", "delta²/8"], ["certificate", "certificate"]].map(([key, label], i) => ({ label, scatter: true, colour: i, points: all.map((one, x) => ({ x: one.cost, path: [...path, x, key] })) })) });
      area.append(table("Other b and near", terms.map(([, title]) => ({ title })), all.map((_, x) => cells([...path, x]))));
    });
    controls.append(choice("Head", heads.map(head => head.name), i => renew(heads[i])));
    renew(heads[0]);
  });
}
