"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const root = document.documentElement;
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;

  const colours = () => {
    const style = getComputedStyle(root);
    const of = (name) => style.getPropertyValue(name).trim();
    return { ink: of("--ink"), soft: of("--soft"), line: of("--line"), paper: of("--paper"), panel: of("--panel") };
  };

  const layoutFor = (given, height) => {
    const c = colours();
    const axis = (own) => ({ gridcolor: c.line, zerolinecolor: c.line, linecolor: c.line, automargin: true, ...own });
    const layout = {
      height, margin: { l: 10, r: 10, t: 30, b: 10 }, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { color: c.ink, size: 13, family: "system-ui, Liberation Sans, sans-serif" },
      legend: { orientation: "h", x: 0, y: 1, yanchor: "bottom", traceorder: "normal" }, hoverlabel: { bgcolor: c.panel, font: { color: c.ink } },
      ...given,
    };
    for (const key of Object.keys(given)) if (/^[xy]axis/.test(key)) layout[key] = axis(given[key]);
    layout.xaxis = layout.xaxis || axis({});
    layout.yaxis = layout.yaxis || axis({});
    return layout;
  };

  const drawn = new Map();
  const draw = (id, traces) => {
    const place = document.getElementById(id);
    const chart = charts[id];
    drawn.set(id, traces || drawn.get(id) || (chart.choices[0] && chart.choices[0].traces) || chart.traces);
    const height = parseInt(place.style.getPropertyValue("--height"), 10);
    return Plotly.react(place, drawn.get(id), layoutFor(chart.layout, height), {
      responsive: true, displaylogo: false, modeBarButtonsToRemove: ["lasso2d", "select2d"],
    });
  };
  const drawAll = () => Object.keys(charts).forEach((id) => draw(id));

  // charts are drawn when they come near the screen, so that the page opens at once
  const waiting = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      waiting.unobserve(entry.target);
      draw(entry.target.id);
    }
  }, { rootMargin: "600px" });
  Object.keys(charts).forEach((id) => waiting.observe(document.getElementById(id)));
  addEventListener("beforeprint", drawAll);

  for (const label of document.querySelectorAll(".choice")) {
    const select = label.querySelector("select");
    const id = select.getAttribute("aria-controls");
    label.hidden = false;
    select.addEventListener("change", () => draw(id, charts[id].choices[select.selectedIndex].traces));
  }

  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    [...drawn.keys()].forEach((id) => draw(id));
  });

  const sortBy = (table, index, head) => {
    const falling = head.getAttribute("aria-sort") !== "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const figure = head.classList.contains("figure");
    const value = (row) => row.cells[index].dataset.v;
    const rows = [...table.tBodies[0].rows].sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (figure && (x === "" || y === "")) return (x === "") - (y === "");
      const order = figure ? Number(x) - Number(y) : x.localeCompare(y);
      return falling ? -order : order;
    });
    table.tBodies[0].append(...rows);
  };

  for (const block of document.querySelectorAll(".searchable")) {
    const table = block.querySelector("table");
    [...table.tHead.rows[0].cells].forEach((head, index) => {
      const press = document.createElement("button");
      press.type = "button";
      press.textContent = head.textContent;
      head.replaceChildren(press);
      press.addEventListener("click", () => sortBy(table, index, head));
    });
    const search = block.querySelector(".search");
    search.hidden = false;
    search.querySelector("input").addEventListener("input", (event) => {
      const wanted = event.target.value.toLowerCase();
      for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
    });
  }
})();
