// What a model answered: scores per class, the confusion matrix, the worst errors; of a language model the parts of its
// evaluation. And the report of `strata eval`.
"use strict";

// base: the path of {classes, confusion, worst, parts}
function showAnswers(base) {
  const classes = list([...base, "classes"]), worst = list([...base, "worst"]);
  if (classes.length > 0) {
    section("classes", "Class by class", "Precision: the share of the rows taken for a class that are of it. Recall: the share of the rows of a class that were taken for it. F1: their harmonic mean.", part => {
      const path = (i, key) => [...base, "classes", i, key];
      part.append(table("Scores per class", [{ title: "class" }, { title: "rows" }, { title: "taken for it" }, { title: "precision, %" }, { title: "recall, %" }, { title: "F1, %" }],
        classes.map((one, i) => [written(one.label), { path: path(i, "rows"), style: whole }, { path: path(i, "predicted"), style: whole },
          ...["precision", "recall", "f1"].map(key => ({ path: path(i, key), style: percent }))])));
      if (at([...base, "confusion"])) {
        heatMap(part, { title: "Confusion matrix", note: "rows of the split, by their class and by what they were taken for", path: [...base, "confusion"],
          name: index => written(classes[index]?.label), axes: ["class", "taken for"], style: whole });
      }
    });
  }
  if (worst.length > 0) {
    section("worst", "The worst errors", "The wrong answers with the largest loss: the rows whose class had the lowest probability.", part => {
      part.append(table("Worst errors", [{ title: "row" }, { title: "class" }, { title: "taken for" }, { title: "its probability, %" }, { title: "loss, nats" }, { title: "text" }],
        worst.map((one, i) => [{ path: [...base, "worst", i, "row"], style: whole }, written(one.label), written(one.predicted), { path: [...base, "worst", i, "probability"], style: percent },
          { path: [...base, "worst", i, "loss"] }, el("span", { class: "wrap" }, written(one.text))])));
    });
  }
}

// Of a language model: places in the context, or distances of the answer.
function showParts(base) {
  const parts = list([...base, "parts"]);
  if (parts.length === 0) return;
  section("parts", "By place", "A language model by how many tokens it has read before; of the task recall, by how far back the answer stands.", part => {
    const path = (i, key) => [...base, "parts", i, key];
    part.append(table("Scores by place", [{ title: "tokens before" }, { title: "targets" }, { title: "loss, nats" }, { title: "accuracy, %" }],
      parts.map((one, i) => [written(one.name), { path: path(i, "targets"), style: whole }, { path: path(i, "loss") }, { path: path(i, "accuracy"), style: percent }])));
    barChart(part, { title: "Loss by place", labels: parts.map(one => written(one.name)), y: "loss, nats", series: [{ label: "loss", paths: parts.map((_, i) => path(i, "loss")) }] });
  });
}

function showEval() {
  section("result", "Result", "", part => {
    const entry = (title, key, style) => [title, { path: ["eval", key], style }];
    const bits = typeof page.eval.bits_per_byte === "number" ? [entry("bits per byte", "bits_per_byte")] : [];
    part.append(facts(`${written(page.eval.task)}, ${page.eval.split === "all" ? "all rows" : written(page.eval.split) + " split"}`, [
      entry("accuracy, %", "accuracy", percent), entry("loss, nats", "loss"), ...bits, entry("rows", "rows", whole), entry("time, s", "seconds", { digits: 1 })]));
  });
  showAnswers(["eval"]);
  showParts(["eval"]);
  showOptions(["eval", "record", "options"]);
}
