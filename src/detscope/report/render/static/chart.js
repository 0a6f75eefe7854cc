"use strict";
// Lines and points: values under the pointer, and a legend that hides what one presses.
(() => {
  const svgNode = (tag, given) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(given)) node.setAttribute(name, value);
    return node;
  };
  const place = ([low, high, log], value) =>
    log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  const write = (value) => (typeof value === "number" ? value.toLocaleString("en", { maximumSignificantDigits: 5 }) : value);

  const listen = (panel, chart) => {
    const svg = panel.querySelector("svg.lines");
    if (!svg) return;
    const xs = new Map();
    for (const line of chart.series) xs.set(line.s, line.x || xs.get(line.as));
    const across = (x, at) => place(chart.axes.x, typeof x === "string" ? at : x);
    const shown = () => chart.series.filter((line) => !panel.querySelector(`.legend [data-s="${line.s}"][aria-pressed="false"]`));
    const ruler = svgNode("line", { class: "ruler", y1: 0, y2: "100%", visibility: "hidden" });
    const ring = svgNode("circle", { class: "pointed", r: 6, visibility: "hidden" });
    svg.append(ruler, ring);

    const nearest = (line, share) => {
      let best = -1, gap = Infinity;
      xs.get(line.s).forEach((x, index) => {
        const away = Math.abs(across(x, index) - share);
        if (away < gap && line.y[index] !== null) [best, gap] = [index, away];
      });
      return best;
    };
    // of points the nearest one speaks, of lines all at the nearest place
    const pointAt = (event) => {
      const box = svg.getBoundingClientRect();
      const [x, y] = [event.clientX - box.left, event.clientY - box.top];
      let best = null, gap = 30;
      for (const line of shown()) {
        if (!line.near) continue;
        line.y.forEach((value, index) => {
          if (value === null) return;
          const px = across(xs.get(line.s)[index], index) * box.width;
          const py = (1 - place(line.right ? chart.axes.right : chart.axes.y, value)) * box.height;
          const away = Math.hypot(px - x, py - y);
          if (away < gap) [best, gap] = [{ line, index, px, py }, away];
        });
      }
      return { best, share: x / box.width };
    };
    const texts = (line, index) => {
      if (line.texts) return line.texts[index];
      const [xTitle, yTitle, rightTitle] = chart.titles;
      const unit = line.right ? rightTitle : yTitle;
      return `${line.name}: ${write(line.y[index])} ${unit} at ${xTitle} ${write(xs.get(line.s)[index])}`.trim();
    };
    svg.addEventListener("pointermove", (event) => {
      const { best, share } = pointAt(event);
      ring.setAttribute("visibility", best ? "visible" : "hidden");
      const lines = shown().filter((line) => !line.near);
      ruler.setAttribute("visibility", !best && lines.length ? "visible" : "hidden");
      if (best) {
        ring.setAttribute("cx", best.px);
        ring.setAttribute("cy", best.py);
        detscope.tell(texts(best.line, best.index), event);
        return;
      }
      if (!lines.length || share < 0 || share > 1) { detscope.hush(); return; }
      const at = nearest(lines[0], share);
      const x = xs.get(lines[0].s)[at];
      const where = `${100 * across(x, at)}%`;
      ruler.setAttribute("x1", where);
      ruler.setAttribute("x2", where);
      const said = lines.map((line) => `${line.name}: ${write(line.y[nearest(line, across(x, at))])} ${line.right ? chart.titles[2] : chart.titles[1]}`);
      detscope.tell([`${chart.titles[0]} ${write(x)}`.trim(), ...said.reverse()].join("\n"), event);
    });
    svg.addEventListener("pointerleave", () => {
      ring.setAttribute("visibility", "hidden");
      ruler.setAttribute("visibility", "hidden");
      detscope.hush();
    });
  };

  for (const figure of document.querySelectorAll("figure.chart")) {
    const charts = detscope.data.charts[figure.id];
    [...figure.querySelectorAll(".panel")].forEach((panel, index) => {
      if (Array.isArray(charts)) listen(panel, charts[index]);
      const stacked = panel.querySelector("svg path[data-s]"); // one area hides nothing but those above it
      for (const item of stacked ? [] : panel.querySelectorAll(".legend li")) {
        item.tabIndex = 0;
        item.setAttribute("role", "button");
        item.setAttribute("aria-pressed", "true");
        const press = () => {
          const off = item.getAttribute("aria-pressed") === "true";
          item.setAttribute("aria-pressed", String(!off));
          for (const node of panel.querySelectorAll(`:not(li)[data-s="${item.dataset.s}"]`)) node.classList.toggle("off", off);
        };
        item.addEventListener("click", press);
        item.addEventListener("keydown", (event) => {
          if (event.key === "Enter" || event.key === " ") { event.preventDefault(); press(); }
        });
      }
    });
    const inputs = [...figure.querySelectorAll(".choice:not(.needs-script) input")];
    inputs.forEach((input, index) => input.addEventListener("change", () => detscope.setAddress(figure.id, String(index))));
    if (inputs.length) detscope.onAddress(figure.id, (state) => { if (inputs[state]) inputs[state].checked = true; });
  }
})();
