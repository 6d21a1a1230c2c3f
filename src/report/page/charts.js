// Charts by Chart.js: lines, bars and heat maps, each with a legend of buttons and its numbers as a table.
"use strict";

let charts = [];  // every figure, redrawn when the colours change

function colour(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }
function seriesColour(index) { const all = colour("--series").split(" "); return all[index % all.length]; }
const dashes = [[], [6, 3], [2, 2], [8, 3, 2, 3]];

function axis(title, extra = {}) {
  return { title: { display: !!title, text: title, color: colour("--soft") }, ticks: { color: colour("--soft") },
           grid: { color: colour("--line"), lineWidth: 0.5 }, ...extra };
}

// The figure around a canvas. make() returns Chart.js's configuration in the current colours.
function figure(parent, { title, note, make, square = false, numbers = null }) {
  const canvas = el("canvas", { role: "img", "aria-label": title + (note ? ". " + note : ""), tabindex: 0 });
  const frame = el("figure", {}, el("figcaption", {}, title, note ? el("small", {}, note) : null),
    el("div", { class: square ? "canvas square" : "canvas" }, canvas));
  parent.append(frame);
  const state = { frame, canvas, chart: null, hidden: new Set(), legend: el("ul", { class: "legend", "aria-label": "Series of " + title }) };
  state.draw = () => {
    if (state.chart) state.chart.destroy();
    const config = make();
    config.options = { animation: false, responsive: true, maintainAspectRatio: false, ...config.options,
                       plugins: { legend: { display: false }, ...config.options.plugins } };
    state.chart = new Chart(canvas, config);
    state.hidden.forEach(index => state.chart.setDatasetVisibility(index, false));
    state.chart.update();
    drawLegend(state);
  };
  state.draw();
  charts.push(state);
  if (numbers) frame.append(folded("Numbers", numbers));
  return state;
}

// A series as the chart draws it: a line with its dashes, a dot for points without a line, a square for bars.
function sample(dataset) {
  const line = dataset.showLine ?? false, bars = dataset.showLine === undefined, ink = dataset.borderColor;
  return svg("svg", { class: "swatch", viewBox: "0 0 28 10", "aria-hidden": "true" },
    line ? svg("path", { d: "M0 5H28", stroke: ink, "stroke-width": 2.5, "stroke-dasharray": dataset.borderDash.join(" ") })
      : bars ? svg("path", { d: "M9 0h10v10H9z", fill: ink }) : svg("circle", { cx: 14, cy: 5, r: 3.5, fill: ink }));
}

// One button per series, which shows or hides it; a single series has no button.
function drawLegend(state) {
  const datasets = state.chart.data.datasets;
  if (datasets.length < 2) return;
  state.legend.replaceChildren(...datasets.map((dataset, index) => {
    const button = el("button", { type: "button", "aria-pressed": String(!state.hidden.has(index)), onclick: () => {
      const hide = !state.hidden.has(index);
      if (hide) state.hidden.add(index); else state.hidden.delete(index);
      state.chart.setDatasetVisibility(index, !hide);
      state.chart.update();
      button.setAttribute("aria-pressed", String(!hide));
    } }, sample(dataset), dataset.label);
    return el("li", {}, button);
  }));
  if (!state.legend.isConnected) state.canvas.parentElement.after(state.legend);
}

// series: {label, points: [{x, path}], colour, dash, scatter}, where path is the path of y in the data. names: of x = 0, 1, ..
function lineChart(parent, { title, note, x, y, series, log = false, scale = 1, xStep, names = null, style = {} }) {
  const value = point => { const v = at(point.path); return typeof v === "number" ? v * scale : null; };
  return figure(parent, {
    title, note,
    make: () => ({
      type: "line",
      data: { datasets: series.map((one, index) => ({
        label: one.label, data: one.points.map(point => ({ x: point.x, y: value(point) })).filter(point => point.y !== null && !(log && point.y <= 0)),
        borderColor: seriesColour(one.colour ?? index), backgroundColor: seriesColour(one.colour ?? index), borderWidth: 2,
        borderDash: dashes[(one.dash ?? 0) % dashes.length], pointRadius: one.points.length > 40 ? 0 : 2.5, pointHitRadius: 8,
        showLine: !one.scatter })) },
      options: {
        interaction: { mode: "nearest", intersect: false },
        scales: { x: axis(x, { type: "linear", ticks: { color: colour("--soft"), stepSize: names ? 1 : xStep, ...(names && { callback: place => names[place] ?? "" }) } }), y: axis(y, { type: log ? "logarithmic" : "linear", ...(style.exponent && { ticks: { color: colour("--soft"), maxTicksLimit: 8, callback: tick => format(tick, style) } }) }) },
        plugins: { tooltip: { callbacks: { title: items => `${x} ${names?.[items[0].parsed.x] ?? items[0].parsed.x}`, label: item => `${item.dataset.label}: ${format(item.parsed.y, style)}` } } } },
    }),
    numbers: () => table(title, [{ title: "series" }, { title: x }, { title: y }],
      series.flatMap(one => one.points.map(point => [label(one.label), label(names?.[point.x] ?? point.x), { path: point.path, style: { digits: 5, scale, ...style } }]))),
  });
}

// series: {label, paths: one per label}
function barChart(parent, { title, note, labels, y, series, stacked = false, scale = 1, max }) {
  return figure(parent, {
    title, note,
    make: () => ({
      type: "bar",
      data: { labels, datasets: series.map((one, index) => ({ label: one.label, data: one.paths.map(path => { const v = at(path); return typeof v === "number" ? v * scale : null; }),
        backgroundColor: seriesColour(index), borderColor: seriesColour(index) })) },
      options: { scales: { x: axis("", { stacked, ticks: { color: colour("--soft"), autoSkip: labels.length > 30 } }), y: axis(y, { stacked, max }) },
        plugins: { tooltip: { callbacks: { label: item => `${item.dataset.label}: ${format(item.raw)}` } } } },
    }),
    numbers: () => table(title, [{ title: "" }, ...series.map(one => ({ title: one.label }))],
      labels.map((name, i) => [label(name), ...series.map(one => ({ path: one.paths[i], style: { scale } }))])),
  });
}

function redrawCharts() { charts.forEach(state => state.draw()); }

// A part of a section that is redrawn when the selection changes.
function renewable(parent, draw) {
  const area = el("div");
  parent.append(area);
  const renew = (...chosen) => {
    charts = charts.filter(state => { if (area.contains(state.canvas)) state.chart.destroy(); return !area.contains(state.canvas); });
    area.replaceChildren();
    try {
      draw(area, ...chosen);
    } catch (error) {
      area.append(problem(`This part cannot be shown because its data is damaged: ${error.message}`));
    }
  };
  return renew;
}
