// Colours, problems, and the report that this page shows.
"use strict";

const themes = ["as the system", "light", "dark"], dark = matchMedia("(prefers-color-scheme: dark)"), printing = matchMedia("print");
let theme = 0;

function applyTheme() {
  const isDark = !printing.matches && (theme === 2 || (theme === 0 && dark.matches));
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
  document.getElementById("theme").textContent = `Colours: ${themes[theme]}`;
  redrawCharts();
}

document.getElementById("theme").addEventListener("click", () => { theme = (theme + 1) % themes.length; applyTheme(); });
dark.addEventListener("change", applyTheme);
printing.addEventListener("change", applyTheme);
applyTheme();

if ((page.problems ?? []).length > 0) {
  document.getElementById("content").append(el("section", { "aria-label": "Problems" }, page.problems.map(problem)));
}
try {
  ({ inspect: showInspect, inject: showInject, bench: showBench, eval: showEval, train: showTrain, compare: showCompare })[page.kind]();
} catch (error) {
  document.getElementById("content").append(problem(`The rest of this report cannot be shown because its data is damaged: ${error.message}`));
}
