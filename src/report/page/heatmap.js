// A matrix as coloured cells: a bar chart whose bars are one unit high. Zooms by buttons, keys and Ctrl + wheel.
"use strict";

// "#rrggbb" between two colours.
function mix(from, to, share) {
  const part = (text, i) => parseInt(text.slice(1 + 2 * i, 3 + 2 * i), 16);
  return "#" + [0, 1, 2].map(i => Math.round(part(from, i) + (part(to, i) - part(from, i)) * share).toString(16).padStart(2, "0")).join("");
}

// Positive values go from the ground colour to the hot colour, negative values to the cold colour.
function heatColour(value, largest) {
  if (value === null || value === undefined) return colour("--ground");
  return mix(colour("--ground"), colour(value < 0 ? "--cold" : "--hot"), largest > 0 ? Math.min(1, Math.abs(value) / largest) : 0);
}

// The rows and columns of a matrix, and the path of each number. name(index): what a row or column stands for.
function matrixGrid(path, name) {
  const rows = at(path);
  if (!Array.isArray(rows) || !rows.every(Array.isArray)) throw new Error(`${path.join(".")} is not a matrix`);
  const names = rows.map((_, i) => name(i));
  return { rows: names, columns: names, cell: (i, j) => [...path, i, j] };
}

// What is shown is `path` with `name`, a square matrix, or `grid`: names of rows and columns, and cell(i, j), the path of
// a number. axes: what all rows are, and all columns. centre: the value without a colour. numbers: also as a table.
function heatMap(parent, { title, note, path, name, grid, square = true, axes = ["query", "key"], style = {}, centre = 0, numbers = false }) {
  const { rows, columns, cell: place } = grid ?? matrixGrid(path, name);
  const cells = rows.flatMap((_, i) => columns.map((_, j) => ({ x: j, y: [i - 0.5, i + 0.5], value: at(place(i, j)), i, j }))).filter(cell => typeof cell.value === "number");
  const size = { x: columns.length, y: rows.length };
  const extreme = (best, cell) => (best === null || Math.abs(cell.value - centre) > Math.abs(best.value - centre) ? cell : best);
  const peak = cells.reduce(extreme, null), largest = peak ? Math.abs(peak.value - centre) : 0;
  const view = { x: [-0.5, size.x - 0.5], y: [-0.5, size.y - 0.5] };
  const words = cell => `${axes[0]} ${rows[cell.i]}, ${axes[1]} ${columns[cell.j]}: ${format(cell.value, style)}`.trim();
  const ticks = names => ({ color: colour("--soft"), autoSkip: true, maxTicksLimit: 16, callback: value => names[value] ?? "" });
  // Few names are all shown, and no ticks between them, which would make the cells narrower.
  const integers = names => names.length <= 16 && { afterBuildTicks: scale => { scale.ticks = names.map((_, value) => ({ value })).filter(tick => tick.value >= scale.min && tick.value <= scale.max); } };
  const state = figure(parent, {
    title, note, square,
    make: () => ({
      type: "bar",
      data: { datasets: [{ label: title, data: cells, backgroundColor: cells.map(cell => heatColour(cell.value - centre, largest)),
        barPercentage: 1, categoryPercentage: 1, grouped: false, borderWidth: 0, minBarLength: 0 }] },
      options: {
        scales: {
          x: axis(axes[1], { type: "linear", offset: false, min: view.x[0], max: view.x[1], grid: { display: false }, ticks: ticks(columns), ...integers(columns) }),
          y: axis(axes[0], { type: "linear", reverse: true, min: view.y[0], max: view.y[1], grid: { display: false }, ticks: ticks(rows), ...integers(rows) }) },
        interaction: { mode: "point", intersect: true },
        plugins: { tooltip: { callbacks: { title: () => "", label: item => words(item.raw) } } } },
    }),
    numbers: numbers ? () => table(title, [{ title: axes[0] }, ...columns.map(column => ({ title: `${axes[1]} ${column}` }))],
      rows.map((row, i) => [label(row), ...columns.map((_, j) => ({ path: place(i, j), style }))])) : null,
  });
  const reading = el("p", { class: "reading", "aria-live": "polite" });
  function zoom(factor, centre) {
    for (const [axisName, middle] of [["x", centre.x], ["y", centre.y]]) {
      const [low, high] = view[axisName], full = size[axisName], length = Math.min(full, Math.max(4, (high - low) * factor));
      const start = Math.min(full - 0.5 - length, Math.max(-0.5, middle - (middle - low) * length / (high - low)));
      view[axisName] = [start, start + length];
      Object.assign(state.chart.options.scales[axisName], { min: start, max: start + length });
    }
    state.chart.update();
  }
  const middle = () => ({ x: (view.x[0] + view.x[1]) / 2, y: (view.y[0] + view.y[1]) / 2 });
  const reset = () => zoom(Math.max(size.x, size.y), middle());
  state.frame.append(el("div", { class: "controls zoom" },
    el("button", { type: "button", onclick: () => zoom(0.5, middle()) }, "Zoom in"),
    el("button", { type: "button", onclick: () => zoom(2, middle()) }, "Zoom out"),
    el("button", { type: "button", onclick: reset }, "Whole")));
  if (peak) {
    const ends = cells.some(cell => cell.value < centre) ? ["--cold", "--ground", "--hot"] : ["--ground", "--hot"];
    state.frame.append(el("p", { class: "ramp" }, centre === 0 ? "colour, up to the largest in size: " : `colour, from ${centre} up to the farthest from it: `, shown(place(peak.i, peak.j), style),
      el("i", { style: `background: linear-gradient(to right, ${ends.map(end => `var(${end})`).join(", ")})` })));
  }
  state.frame.append(reading);

  let cursor = 0;
  function point(index) {
    cursor = index;
    const active = [{ datasetIndex: 0, index }], bar = state.chart.getDatasetMeta(0).data[index];
    state.chart.setActiveElements(active);
    state.chart.tooltip.setActiveElements(active, bar.getCenterPoint());
    state.chart.update();
    reading.textContent = words(cells[index]);
  }
  const find = (i, j) => cells.findIndex(cell => cell.i === i && cell.j === j);
  state.canvas.addEventListener("keydown", event => {
    const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    const here = cells[cursor];
    if (!here) return;
    if (moves[event.key]) {
      const next = find(here.i + moves[event.key][0], here.j + moves[event.key][1]);
      if (next >= 0) point(next);
    } else if (event.key === "+" || event.key === "=") zoom(0.5, { x: here.j, y: here.i });
    else if (event.key === "-") zoom(2, { x: here.j, y: here.i });
    else if (event.key === "0") reset();
    else return;
    event.preventDefault();
  });
  state.canvas.addEventListener("wheel", event => {
    if (!event.ctrlKey) return;
    event.preventDefault();
    const scales = state.chart.scales;
    zoom(event.deltaY < 0 ? 0.8 : 1.25, { x: scales.x.getValueForPixel(event.offsetX), y: scales.y.getValueForPixel(event.offsetY) });
  }, { passive: false });
  return state;
}
