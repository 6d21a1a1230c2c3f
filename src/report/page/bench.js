// The report of `strata bench --json`: the figures, and how near each kernel comes to what the machine can do.
"use strict";

function showBench() {
  const data = page.bench, path = (...rest) => ["bench", ...rest];
  const kernels = Object.keys(at(path("roofline", "kernels")) ?? {});
  if (kernels.length > 0) {
    section("roofline", "Roofline", "The roof is the rate of a large matrix product by PyTorch's library, and below the ridge that of a copy; both were measured by the last command that wrote to this file. FLOPs and bytes are the least that the mathematics asks for: "
      + "a kernel that computes scores twice stands lower, and one that is faster than the library's product stands above the roof.", part => {
      part.append(facts("Ceilings", [["matrix product, TFLOP/s", { path: path("roofline", "flops_per_second"), style: { digits: 2, scale: 1e-12 } }],
        ["copy, GB/s", { path: path("roofline", "bytes_per_second"), style: { digits: 1, scale: 1e-9 } }]]));
      roofline(part, kernels);
      const number = (name, key, style) => ({ path: path("roofline", "kernels", name, key), style });
      part.append(table("Kernels", [{ title: "figure" }, { title: "ms" }, { title: "floor, ms" }, { title: "share, %", help: "floor over time" }, { title: "TFLOP/s" }, { title: "GFLOP" }, { title: "MB" }],
        kernels.map(name => [label(name), number(name, "milliseconds", { digits: 3 }), number(name, "floor_milliseconds", { digits: 3 }), number(name, "share", { digits: 1, scale: 100 }),
          number(name, "teraflops", { digits: 3 }), number(name, "flops", { digits: 1, scale: 1e-9 }), number(name, "bytes", { digits: 1, scale: 1e-6 })])));
    });
  }
  section("figures", "Figures", "Ratios of medians taken side by side in one run, and what each should be.", part => {
    const names = Object.keys(data).filter(name => typeof data[name] === "number");
    part.append(table("Figures", [{ title: "figure" }, { title: "value" }, { title: "bar" }], names.map(name => [label(name), { path: path(name), style: { digits: 3 } }, label(at(path("bars", name)) ?? "")])));
  });
  if (data.record) {
    section("machine", "Machine", "Of the last command that wrote to this file.", part => {
      const of = (...rest) => written(at(path("record", ...rest)));
      part.append(facts("Machine", [["processor", of("machine", "cpu")], ["device", of("machine", "device")], ["instruction set", of("versions", "instruction_set")], ["PyTorch", of("versions", "torch")],
        ["threads", { path: path("record", "options", "threads"), style: whole }], ["measurements per figure", { path: path("record", "options", "rounds"), style: whole }], ["finished", of("finished")]]));
    });
  }
}

// Rate against FLOPs per byte, both logarithmic, under the roof. Kernels are grouped by the first two words of their names.
function roofline(parent, kernels) {
  const path = name => ["bench", "roofline", "kernels", name];
  const point = (at, name) => ({ x: at.flops_per_byte, y: at.teraflops, name });
  const groups = [...new Set(kernels.map(name => name.split("_").slice(0, 2).join(" ")))];
  const of = group => kernels.filter(name => name.startsWith(group.replace(" ", "_") + "_"));
  const dataset = (label, index, data, line) => ({ label, data, borderColor: seriesColour(index), backgroundColor: seriesColour(index), borderWidth: 2, borderDash: [], pointRadius: line ? 0 : 4,
    pointHitRadius: 8, showLine: line });
  figure(parent, {
    title: "Rate of every kernel under the roof", note: "logarithmic axes",
    make: () => ({
      type: "line",
      data: { datasets: [dataset("roof", 0, list(["bench", "roofline", "roof"]).map(one => point(one)), true),
        ...groups.map((group, index) => dataset(group, index + 1, of(group).map(name => point(at(path(name)), name)), false))] },
      options: {
        interaction: { mode: "nearest", intersect: true },
        scales: { x: axis("FLOPs per byte", { type: "logarithmic" }), y: axis("TFLOP/s", { type: "logarithmic" }) },
        plugins: { tooltip: { callbacks: { title: () => "", label: item => `${item.raw.name ?? "roof"}: ${format(item.parsed.y, { digits: 2 })} TFLOP/s` } } } },
    }),
  });
}
