// Elements, numbers and tables.
//
// Every number shown comes from the page's data. Its element carries its path there as data-path (with data-scale if it
// is shown as a percentage), so that a reader or a test can find it in the JSON.
"use strict";

const page = JSON.parse(document.getElementById("page").textContent);

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on") && value) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter(child => child !== null && child !== undefined));
  return element;
}

function svg(tag, attributes, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function at(path) {
  return path.reduce((value, key) => (value === null || value === undefined ? undefined : value[key]), page);
}

// The list at a path; an empty one if nothing is there.
function list(path) {
  const value = at(path) ?? [];
  if (!Array.isArray(value)) throw new Error(`${path.join(".")} is not a list`);
  return value;
}

// Text of a file; a dash if there is none.
function written(value) { return typeof value === "string" ? value : format(value); }

// style: {digits, scale, exponent}. Missing and non-finite numbers are shown as a dash.
function format(value, { digits = 4, scale = 1, exponent = false } = {}) {
  if (typeof value !== "number") return value === undefined || value === null ? "–" : String(value);
  const scaled = value * scale;
  if (exponent) return scaled === 0 ? "0" : scaled.toExponential(1);
  return scaled.toFixed(digits);
}

// The number at a path, as an element.
function shown(path, style = {}) {
  const value = at(path);
  const attributes = typeof value === "number" ? { "data-path": JSON.stringify(path), "data-scale": style.scale } : {};
  return el("span", attributes, format(value, style));
}

const percent = { digits: 2, scale: 100 };
const whole = { digits: 0 };
const tiny = { exponent: true };

// columns: {title, help}; rows: arrays of texts, elements, or {path, style}. A click on a title sorts by its column.
function table(caption, columns, rows) {
  const key = cell => (cell && cell.path ? at(cell.path) : cell instanceof Node ? cell.textContent : cell);
  const body = el("tbody");
  const fill = sorted => body.replaceChildren(...sorted.map(row => el("tr", {}, row.map(cell =>
    cell && cell.path ? el("td", { class: "number" }, shown(cell.path, cell.style)) : el("td", {}, cell ?? "–")))));
  const heads = columns.map((column, index) => el("th", { scope: "col", "aria-sort": "none", title: column.help },
    el("button", { type: "button", onclick: () => sort(index) }, column.title)));
  function sort(index) {
    const down = heads[index].getAttribute("aria-sort") === "ascending";
    heads.forEach((head, i) => head.setAttribute("aria-sort", i !== index ? "none" : down ? "descending" : "ascending"));
    const missing = value => value === undefined || value === null;
    const order = (a, b) => {
      const [x, y] = [key(a[index]), key(b[index])];
      if (missing(x) || missing(y)) return missing(x) - missing(y);  // missing values come last in both directions
      const compared = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
      return down ? -compared : compared;
    };
    fill([...rows].sort(order));
  }
  fill(rows);
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), body));
}

// A name or an index that is not a number of the data: a layer, a step, a series.
function label(text) { return el("span", { class: "place" }, String(text)); }

// rows: [name, text or {path, style}]
function facts(caption, rows) {
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", {}, el("caption", {}, caption),
    el("tbody", {}, rows.map(([name, cell]) => el("tr", {}, el("th", { scope: "row" }, name), cell && cell.path
      ? el("td", { class: "number" }, shown(cell.path, cell.style)) : el("td", {}, cell ?? "–"))))));
}

function problem(text) { return el("p", { class: "problem", role: "note" }, text); }

// A part of the page with an entry in the contents. An error inside is shown in its place; the other parts still appear.
function section(id, title, text, build) {
  const part = el("section", { id, "aria-label": title }, el("h2", {}, title), text ? el("p", {}, text) : null);
  document.getElementById("content").append(part);
  document.getElementById("sections").append(el("li", {}, el("a", { href: "#" + id }, title)));
  try {
    build(part);
  } catch (error) {
    part.append(problem(`This part cannot be shown because its data is damaged: ${error.message}`));
  }
}

// What is made when it is opened.
function folded(title, make) {
  const details = el("details", { ontoggle: () => { if (details.childElementCount === 1) details.append(make()); } }, el("summary", {}, title));
  return details;
}

// A labelled choice; calls `changed` with the index of what is chosen.
function choice(label, names, changed) {
  const select = el("select", { onchange: () => changed(select.selectedIndex) }, names.map(name => el("option", {}, name)));
  return el("label", {}, label + " ", select);
}
