// The course of training: of one run (`strata train`), and of all runs of a comparison.
"use strict";

// Points of the lines of one kind: {x: step, path}. base: the path of the metrics.
function course(base, kind, key) {
  return list(base).flatMap((line, i) => (line.kind === kind ? [{ x: line.step, path: [...base, i, key] }] : []));
}

const kFewRuns = 12;  // that a chart can show together

// runs: {label, group, base, colour, dash}. Of many runs those of the first group and of one other are drawn.
function showCurves(runs) {
  section("curves", "The course of training", "", part => {
    const groups = [...new Set(runs.map(run => run.group))];
    if (runs.length <= kFewRuns || groups.length <= 2) return drawCurves(part, runs);
    const [first, ...others] = groups;
    const renew = renewable(part, (area, group) => drawCurves(area, runs.filter(run => run.group === first || run.group === group)
      .map(run => ({ ...run, colour: run.group === first ? 0 : 1 }))));
    part.querySelector("h2").after(el("div", { class: "controls" }, choice(`Beside ${first}`, others, i => renew(others[i]))));
    renew(others[0]);
  });
}

function drawCurves(part, runs) {
  const curve = (kind, key) => runs.map(run => ({ label: run.label, colour: run.colour, dash: run.dash, points: course(run.base, kind, key) })).filter(one => one.points.length > 0);
  const grid = el("div", { class: "charts" });
  part.append(grid);
  const draw = (title, kind, key, y, scale) => {
    const series = curve(kind, key);
    if (series.length > 0) lineChart(grid, { title, x: "step", y, series, scale });
  };
  draw("Validation accuracy", "valid", "accuracy", "%", 100);
  draw("Validation loss", "valid", "loss", "nats");
  draw("Training loss", "train", "loss", "nats");
  draw("Training accuracy", "train", "accuracy", "%", 100);
  draw("Tokens per second", "train", "tokens_per_second", "tokens/s");
  if (runs.length === 1) draw("Learning rate", "train", "learning_rate", "rate");
  if (grid.childElementCount === 0) part.append(problem("No metrics were found."));
}

// Level weights and Mardia's statistics of one run, over the course of training.
function showTracking() {
  const base = ["metrics"];
  const lines = kind => page.metrics.map((line, i) => ({ line, i })).filter(({ line }) => line.kind === kind);
  const weights = lines("weights"), tests = lines("gaussianity");
  const headsOf = list => list[0].line.layers.flatMap((layer, l) => layer.map((_, h) => ({ l, h, name: `layer ${l}, head ${h}` })));
  const picked = (part, list, draw) => {
    const heads = headsOf(list), renew = renewable(part, draw);
    part.querySelector("h2").after(el("div", { class: "controls" }, choice("Head", heads.map(head => head.name), i => renew(heads[i]))));
    renew(heads[0]);
  };
  const levels = (list, head) => list[0].line.layers[head.l][head.h].map((_, level) => level);
  if (weights.length > 0) {
    section("weights-over-training", "Level weights over training", "", part => picked(part, weights, (area, head) =>
      lineChart(area, { title: "Convex weights", note: head.name, x: "epoch", y: "weight", series: levels(weights, head).map(level => ({ label: `level ${level}`, dash: level,
        points: weights.map(({ line, i }) => ({ x: line.epoch, path: [...base, i, "layers", head.l, head.h, level] })) })) })));
  }
  if (tests.length > 0) {
    const text = "Mardia's statistics of the scores on rows of the validation split, medians over rows, after every epoch. The p-values are nominal: rows of one sequence depend on each other.";
    section("gaussianity-over-training", "Gaussianity over training", text, part => {
      picked(part, tests, (area, head) => gaussianityCurves(area, tests, head, levels(tests, head)));
      gaussianityMap(part, tests, headsOf(tests));
    });
  }
}

// tests: the lines {line, i} of metrics.jsonl; head: {l, h, name}.
function gaussianityCurves(area, tests, head, levels) {
  const grid = el("div", { class: "charts" });
  area.append(grid);
  const draw = (title, y, keys, more = {}) => {
    const series = levels.flatMap(level => keys.map((key, dash) => ({
      label: `level ${level}${keys.length > 1 ? ", " + key.replaceAll("_", " ") : ""}`, colour: level, dash, points: tests.map(({ line, i }) => ({ x: line.epoch, path: ["metrics", i, "layers", head.l, head.h, level, key] })) })))
      .filter(one => one.points.some(point => typeof at(point.path) === "number"));
    if (series.length > 0) lineChart(grid, { title, note: head.name, x: "epoch", y, series, ...more });
  };
  draw("Kurtosis, and the expected one of Gaussian rows", "b2", ["kurtosis", "expected_kurtosis"]);
  draw("Kurtosis over the expected one", "b2 / expected", ["kurtosis_ratio"]);
  draw("Kurtosis in standard deviations from the expected one", "z", ["kurtosis_z"]);
  draw("Skewness", "b1", ["skewness"]);
  draw("Nominal p-value of the kurtosis", "p", ["kurtosis_p"], { log: true, style: tiny });
  draw("Nominal p-value of the skewness", "p", ["skewness_p"], { log: true, style: tiny });
}

// All heads and levels at one epoch, the last one first.
function gaussianityMap(part, tests, heads) {
  const levels = Math.max(...heads.map(head => list(["metrics", tests[0].i, "layers", head.l, head.h]).length));
  const controls = el("div", { class: "controls" });
  part.append(controls);
  const renew = renewable(part, (area, chosen) => heatMap(area, { title: "Kurtosis over the expected one, all heads and levels", note: `after epoch ${tests[chosen].line.epoch}`, square: false,
    axes: ["", "level"], centre: 1, numbers: true, grid: { rows: heads.map(head => head.name), columns: Array.from({ length: levels }, (_, level) => String(level)),
      cell: (i, level) => ["metrics", tests[chosen].i, "layers", heads[i].l, heads[i].h, level, "kurtosis_ratio"] } }));
  const epochs = choice("Epoch", tests.map(({ line }) => String(line.epoch)), renew);
  epochs.querySelector("select").selectedIndex = tests.length - 1;
  controls.append(epochs);
  renew(tests.length - 1);
}

function showOptions(path) {
  const options = at(path);
  if (!options || typeof options !== "object") return;
  const row = (path, name, value) => [name, typeof value === "number" ? { path, style: { digits: Number.isInteger(value) ? 0 : Math.min(12, String(value).length) } } : JSON.stringify(value)];
  const isGroup = value => value !== null && typeof value === "object" && !Array.isArray(value);  // the options of the data
  section("options", "Options", "", part => part.append(table("All options", [{ title: "option" }, { title: "value" }], Object.entries(options).flatMap(([name, value]) =>
    isGroup(value) ? Object.entries(value).map(([key, one]) => row([...path, name, key], key, one)) : [row([...path, name], name, value)]))));
}

function showTrain() {
  if (page.result) {
    section("result", "Result", "The best model by the validation split, tested once.", part => {
      const entry = (title, path, style) => [title, { path: ["result", ...path], style }];
      part.append(facts(`${page.result.task}, ${page.result.attention} attention`, [
        entry("test accuracy, %", ["test", "accuracy"], percent), entry("test loss, nats", ["test", "loss"]), entry("test rows", ["test", "rows"], whole),
        entry("validation accuracy, %", ["valid", "accuracy"], percent), entry("seed", ["seed"], whole), entry("steps", ["steps"], whole), entry("best step", ["best_step"], whole),
        entry("parameters", ["parameters"], whole), entry("score products over flat attention's", ["score_ratio"]),
        entry("training time, s", ["train_seconds"], { digits: 1 }), entry("a step, ms", ["step_milliseconds"], { digits: 1 })]));
    });
    showAnswers(["result", "test"]);
    showParts(["result", "test"]);
  }
  showCurves([{ label: "this run", base: ["metrics"] }]);
  if (list(["metrics"]).length > 0) showTracking();
  showOptions(["options"]);
}
