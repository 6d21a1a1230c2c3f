// The report of `strata bench --json`: the figures, and how near each kernel comes to what the machine can do.
"use strict";

function showBench() {
  const data = page.bench, path = (...rest) => ["bench", ...rest];
  const kernels = Object.keys(at(path("roofline", "kernels")) ?? {});
  if (kernels.length > 0) {
    section("roofline", "Roofline", "The roof is the rate of a large matrix product by PyTorch's library, and below the ridge that of a copy; both were measured in the same run. FLOPs and bytes are the least that the mathematics asks for: "
      + "a kernel that computes scores twice stands lower, and one that is faster than the library's product stands above the roof.", part => {
      const flops = data.roofline.flops_per_second, bytes = data.roofline.bytes_per_second;
      part.append(facts("Ceilings", [["matrix product, TFLOP/s", { path: path("roofline", "flops_per_second"), style: { digits: 2, scale: 1e-12 } }],
        ["copy, GB/s", { path: path("roofline", "bytes_per_second"), style: { digits: 1, scale: 1e-9 } }]]));
      roofline(part, kernels.map(name => ({ label: name, ...data.roofline.kernels[name] })), flops, bytes);
      const number = (name, key, style) => ({ path: path("roofline", "kernels", name, key), style });
      part.append(table("Kernels", [{ title: "figure" }, { title: "ms" }, { title: "floor, ms" }, { title: "share, %", help: "floor over time" }, { title: "GFLOP" }, { title: "MB" }],
        kernels.map(name => [label(name), number(name, "milliseconds", { digits: 3 }), number(name, "floor_milliseconds", { digits: 3 }), number(name, "share", { digits: 1, scale: 100 }),
          number(name, "flops", { digits: 1, scale: 1e-9 }), number(name, "bytes", { digits: 1, scale: 1e-6 })])));
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

// Rate against FLOPs per byte, both logarithmic, under the roof.
function roofline(parent, kernels, flops, bytes) {
  const intensity = kernel => kernel.flops / kernel.bytes, rate = kernel => kernel.flops / (1e9 * kernel.milliseconds);
  const all = kernels.map(intensity), ridge = flops / bytes;
  const ends = [Math.min(...all, ridge) / 2, ridge, Math.max(...all, ridge) * 2];
  const groups = new Map();  // by the first two words of a figure's name
  for (const kernel of kernels) {
    const group = kernel.label.split("_").slice(0, 2).join(" ");
    groups.set(group, [...(groups.get(group) ?? []), kernel]);
  }
  const dots = [...groups].map(([name, members], index) => ({ label: name, data: members.map(one => ({ x: intensity(one), y: rate(one), name: one.label })), colour: index + 1 }));
  figure(parent, {
    title: "Rate of every kernel under the roof", note: "logarithmic axes", square: false,
    make: () => ({
      type: "line",
      data: { datasets: [
        { label: "roof", data: ends.map(x => ({ x, y: Math.min(flops, x * bytes) / 1e12 })), borderColor: seriesColour(0), backgroundColor: seriesColour(0), borderWidth: 2, borderDash: [], pointRadius: 0, showLine: true },
        ...dots.map(one => ({ label: one.label, data: one.data, borderColor: seriesColour(one.colour), backgroundColor: seriesColour(one.colour), borderDash: [], pointRadius: 4, pointHitRadius: 8, showLine: false }))] },
      options: {
        interaction: { mode: "nearest", intersect: true },
        scales: { x: axis("FLOPs per byte", { type: "logarithmic" }), y: axis("TFLOP/s", { type: "logarithmic" }) },
        plugins: { tooltip: { callbacks: { title: () => "", label: item => `${item.raw.name ?? "roof"}: ${format(item.parsed.y, { digits: 2 })} TFLOP/s` } } } },
    }),
  });
}
