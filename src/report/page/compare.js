// The report of `strata compare`: attentions over seeds, with significance.
"use strict";

function showCompare() {
  const results = page.results;
  if (results) {
    const attentions = list(["results", "attentions"]), pairs = list(["results", "pairs"]);
    const path = (...rest) => ["results", ...rest];
    section("summary", "Summary", list(["verdicts"]).map(verdict => verdict + ".").join(" "), part => {
      part.append(table(`${results.task}: ${results.measure}`, [{ title: "attention" }, { title: results.measure }, { title: "± deviation" }, { title: "validation", help: "the same measure on the validation split, mean over seeds" }, { title: "parameters" },
        { title: "score products", help: "over those of flat attention" }, { title: "step time", help: "over that of the first attention" }],
        attentions.map((attention, i) => [attention.name, { path: path("attentions", i, "mean"), style: { digits: 2 } }, { path: path("attentions", i, "standard_deviation"), style: { digits: 2 } }, { path: path("attentions", i, "valid_mean"), style: { digits: 2 } },
          { path: path("attentions", i, "parameters"), style: whole }, { path: path("attentions", i, "score_ratio") }, { path: path("attentions", i, "time_ratio"), style: { digits: 2 } }])));
    });
    section("significance", "Significance", "Student's paired t-test over seeds, two-sided, and the 95% confidence interval of the difference. Holm's correction makes p valid for all pairs together; sentences above go by it.", part => {
      part.append(table("Every pair", [{ title: "pair" }, { title: "difference" }, { title: "95% from" }, { title: "95% to" }, { title: "t" }, { title: "p" }, { title: "p, Holm" }],
        pairs.map((pair, i) => [`${pair.to} − ${pair.from}`, ...[["difference", 2], ["low", 2], ["high", 2], ["t", 2], ["p", 4], ["p_holm", 4]].map(([key, digits]) => ({ path: path("pairs", i, key), style: { digits } }))])));
    });
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
  showCurves(page.runs.map((run, i) => ({ label: run.name, base: ["runs", i, "metrics"], colour: names.indexOf(run.attention), dash: page.runs.slice(0, i).filter(other => other.attention === run.attention).length })));
  const partsOf = i => list(["runs", i, "result", "test", "parts"]);
  if (page.runs.some((_, i) => partsOf(i).length > 0)) {
    section("parts", "By place", "Language models by how many tokens they have read before, in powers of two; of the task recall, by how far back the answer stands.", part => {
      for (const [key, y] of [["loss", "loss, nats"], ["accuracy", "accuracy"]])
        lineChart(part, { title: `Test ${key} by place`, x: "place, as a power of two", y, series: page.runs.map((run, i) => ({ label: run.name, colour: names.indexOf(run.attention),
          points: partsOf(i).map((_, j) => ({ x: j, path: ["runs", i, "result", "test", "parts", j, key] })) })) });
    });
  }
  section("runs", "Runs", "", part => {
    const cell = (i, key, style) => ({ path: ["runs", i, "result", ...key], style });
    part.append(table("Every run", [{ title: "run" }, { title: "test accuracy, %" }, { title: "test loss" }, { title: "validation accuracy, %" }, { title: "steps" }, { title: "best step" }, { title: "training, s" }, { title: "a step, ms" }],
      page.runs.map((run, i) => [run.name, cell(i, ["test", "accuracy"], percent), cell(i, ["test", "loss"]), cell(i, ["valid", "accuracy"], percent), cell(i, ["steps"], whole), cell(i, ["best_step"], whole), cell(i, ["train_seconds"], { digits: 1 }), cell(i, ["step_milliseconds"], { digits: 1 })])));
  });
  showOptions(["options"]);
}
