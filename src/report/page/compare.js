// The report of `strata compare`: attentions over seeds, with significance.
"use strict";

// Validation of every learning rate that a search tried; the chosen ones are named.
function showSearch(search) {
  if (!search) return;
  const rates = [...new Set(search.attentions.flatMap(attention => attention.tried.map(one => one.learning_rate)))].sort((a, b) => a - b);
  section("search", "Learning rates", "Each attention has the learning rate that was best on the validation rows after a part of the steps, with one seed. An edge: the lowest or highest that was tried. A dash: not tried, or diverged.", part => {
    part.append(table("Validation by learning rate", [{ title: "attention" }, { title: "chosen" }, ...rates.map(rate => ({ title: `at ${rate}` }))],
      search.attentions.map((attention, i) => [attention.name + (attention.at_edge ? " (an edge)" : ""), { path: ["results", "search", "attentions", i, "learning_rate"], style: { exponent: true } },
        ...rates.map(rate => { const at = attention.tried.findIndex(one => one.learning_rate === rate); return at < 0 ? "–" : { path: ["results", "search", "attentions", i, "tried", at, "valid"], style: { digits: 2 } }; })])));
  });
}

const kFewPairs = 10;  // as many have a sentence each
const pairColumns = [{ title: "pair" }, { title: "difference" }, { title: "95% from" }, { title: "95% to" }, { title: "t" }, { title: "p" }, { title: "p, Holm" }];

function showPairs(part, pairs, first) {
  const rows = (caption, chosen) => table(caption, pairColumns, chosen.map(i => [`${pairs[i].to} − ${pairs[i].from}`,
    ...[["difference", 2], ["low", 2], ["high", 2], ["t", 2], ["p", 5], ["p_holm", 5]].map(([key, digits]) => ({ path: ["results", "pairs", i, key], style: { digits } }))]));
  const all = pairs.map((_, i) => i), withFirst = i => pairs[i].from === first || pairs[i].to === first;
  if (pairs.length <= kFewPairs) return part.append(rows("Every pair", all));
  const others = all.filter(i => !withFirst(i));
  part.append(rows(`Pairs with ${first}`, all.filter(withFirst)), folded(`The other ${others.length} pairs`, () => rows("The other pairs", others)));
}

// Language models by place: means over seeds once the comparison is finished, and single runs before that.
function showPlaces(results, names) {
  const attentions = results ? list(["results", "attentions"]) : [];
  const averaged = attentions.some(attention => (attention.parts ?? []).length > 0);
  const sources = averaged ? attentions.map((attention, i) => ({ label: attention.name, colour: i, dash: Math.floor(i / 6), base: ["results", "attentions", i, "parts"] }))
    : page.runs.map((run, i) => ({ label: run.name, colour: names.indexOf(run.attention), base: ["runs", i, "result", "test", "parts"] }));
  const longest = sources.reduce((parts, one) => (list(one.base).length > parts.length ? list(one.base) : parts), []);
  if (longest.length === 0) return;
  section("parts", "By place", "Language models by how many tokens they have read before, in powers of two; of the task recall, by how far back the answer stands." + (averaged ? " Means over seeds." : ""), part => {
    const lossCounts = results?.lower_is_better ?? true;
    part.append(table(lossCounts ? "Test loss by place, nats" : "Test accuracy by place, %", [{ title: averaged ? "attention" : "run" }, ...longest.map(one => ({ title: written(one.name) }))],
      sources.map(one => [one.label, ...longest.map((_, j) => ({ path: [...one.base, j, lossCounts ? "loss" : "accuracy"], style: lossCounts ? { digits: 3 } : { digits: 1, scale: 100 } }))])));
    for (const [key, y] of [["loss", "loss, nats"], ["accuracy", "accuracy"]])
      lineChart(part, { title: `Test ${key} by place`, x: "place", y, names: longest.map(one => written(one.name)), series: sources.map(one => ({ ...one, points: list(one.base).map((_, j) => ({ x: j, path: [...one.base, j, key] })) })) });
  });
}

function showCompare() {
  const results = page.results;
  if (results) {
    const attentions = list(["results", "attentions"]), pairs = list(["results", "pairs"]);
    const path = (...rest) => ["results", ...rest];
    section("summary", "Summary", "", part => {
      part.append(el("ul", { class: "verdicts" }, list(["verdicts"]).map(verdict => el("li", {}, verdict + "."))));
      part.append(table(`${results.task}: ${results.measure}`, [{ title: "attention" }, { title: results.measure }, { title: "± deviation" }, { title: "validation", help: "the same measure on the validation split, mean over seeds" }, { title: "parameters" },
        { title: "score products", help: "over those of flat attention" }, { title: "step time", help: "over that of the first attention" }],
        attentions.map((attention, i) => [attention.name, { path: path("attentions", i, "mean"), style: { digits: 2 } }, { path: path("attentions", i, "standard_deviation"), style: { digits: 2 } }, { path: path("attentions", i, "valid_mean"), style: { digits: 2 } },
          { path: path("attentions", i, "parameters"), style: whole }, { path: path("attentions", i, "score_ratio") }, { path: path("attentions", i, "time_ratio"), style: { digits: 2 } }])));
    });
    section("significance", "Significance", "Student's paired t-test over seeds, two-sided, and the 95% confidence interval of the difference. Holm's correction makes p valid for all pairs together; sentences above go by it.", part => {
      showPairs(part, pairs, attentions[0]?.name);
    });
    showSearch(results.search);
    section("seeds", "Seed by seed", "", part => {
      const seeds = Math.max(0, ...attentions.map((_, i) => list(path("attentions", i, "scores")).length));
      barChart(part, { title: results.measure, labels: attentions.map(attention => attention.name), y: results.measure,
        series: Array.from({ length: seeds }, (_, seed) => ({ label: `seed ${(results.first_seed ?? 1) + seed}`, paths: attentions.map((_, i) => path("attentions", i, "scores", seed)) })) });
    });
    section("cost", "Score against cost", "", part => {
      lineChart(part, { title: `${results.measure} against score products`, note: "mean over seeds", x: "score products over flat attention's", y: results.measure,
        series: attentions.map((attention, i) => ({ label: attention.name, scatter: true, points: [{ x: attention.score_ratio, path: path("attentions", i, "mean") }] })) });
    });
  }
  const names = [...new Set(page.runs.map(run => run.attention))];
  showCurves(page.runs.map((run, i) => ({ label: run.name, group: run.attention, base: ["runs", i, "metrics"], colour: names.indexOf(run.attention), dash: page.runs.slice(0, i).filter(other => other.attention === run.attention).length })));
  showPlaces(results, names);
  section("runs", "Runs", "", part => {
    const cell = (i, key, style) => ({ path: ["runs", i, "result", ...key], style });
    part.append(table("Every run", [{ title: "run" }, { title: "test accuracy, %" }, { title: "test loss" }, { title: "validation accuracy, %" }, { title: "steps" }, { title: "best step" }, { title: "training, s" }, { title: "a step, ms" }],
      page.runs.map((run, i) => [run.name, cell(i, ["test", "accuracy"], percent), cell(i, ["test", "loss"]), cell(i, ["valid", "accuracy"], percent), cell(i, ["steps"], whole), cell(i, ["best_step"], whole), cell(i, ["train_seconds"], { digits: 1 }), cell(i, ["step_milliseconds"], { digits: 1 })])));
  });
  showOptions(["options"]);
}
