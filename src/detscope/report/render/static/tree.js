"use strict";
// Icicle and treemap: a click zooms in, a click on what lies above zooms out; #icicle=path;choice is its address.
(() => {
  const ROW = 24, MOST_ROWS = 16, HEAD = 18;
  const dark = (hex) => {
    const [red, green, blue] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
    return 0.299 * red + 0.587 * green + 0.114 * blue < 120;
  };
  const squares = (parts, room) => {
    let { left, top, width, height } = room;
    let rest = parts.filter(([, size]) => size > 0).sort((a, b) => b[1] - a[1]);
    const unit = (width * height) / rest.reduce((sum, [, size]) => sum + size, 0);
    const boxes = [];
    const worst = (row, side) => {
      const whole = row.reduce((sum, [, size]) => sum + size * unit, 0);
      return Math.max(...row.map(([, size]) => Math.max((side ** 2 * size * unit) / whole ** 2, whole ** 2 / (side ** 2 * size * unit))));
    };
    while (rest.length) {
      const side = Math.min(width, height);
      let taken = 1;
      while (taken < rest.length && worst(rest.slice(0, taken + 1), side) <= worst(rest.slice(0, taken), side)) taken += 1;
      const row = rest.slice(0, taken);
      rest = rest.slice(taken);
      const deep = row.reduce((sum, [, size]) => sum + size * unit, 0) / side;
      let at = 0;
      const upright = width >= height;
      for (const [part, size] of row) {
        const length = (size * unit) / deep;
        boxes.push(upright ? { part, left, top: top + at, width: deep, height: length } : { part, left: left + at, top, width: length, height: deep });
        at += length;
      }
      if (upright) { left += deep; width -= deep; } else { top += deep; height -= deep; }
    }
    return boxes;
  };

  for (const figure of document.querySelectorAll("figure.chart")) {
    const place = figure.querySelector(".tree");
    const data = detscope.data.charts[figure.id];
    if (!place || !data) continue;
    // names and figures that the file leaves out: see drawing.py
    const nameOf = (index) => data.ids[index] || (data.ids[index] = `${nameOf(data.parents[index])}.${data.labels[index]}`);
    data.ids.forEach((_, index) => nameOf(index));
    for (const one of data.trees) {
      for (const key of ["total", "own", "share"]) if (one[key] !== undefined) one[key] = one[key].split("|");
      one.own = one.own.map((own, index) => own || one.total[index]);
      one.values = one.own.map((own) => Number(own.replace(/,/g, "")) || 0);
    }
    const withUnit = (text, unit) => (text === "?" ? "cannot tell" : `${text} ${unit}`.trimEnd());
    const below = new Map();
    data.parents.forEach((parent, index) => {
      if (!below.has(parent)) below.set(parent, []);
      below.get(parent).push(index);
    });
    const inputs = [...figure.querySelectorAll(".choice input")];
    const height = place.clientHeight;
    let tree = data.trees[0], top = -1, sums = [], found = "";

    const count = () => {
      sums = [...tree.values];
      const add = (index) => {
        for (const child of below.get(index) || []) sums[index] += add(child);
        return sums[index];
      };
      for (const index of below.get(-1) || []) add(index);
    };
    const said = (index) =>
      `${data.ids[index]}\n` +
      (tree.details
        ? tree.details[index]
        : `total ${withUnit(tree.total[index], tree.unit)} · self ${withUnit(tree.own[index], tree.unit)} · ${withUnit(tree.share[index], "%")} of ${tree.whole}`);
    const above = () => {
      const chain = [];
      for (let index = top; index >= 0 && data.parents[index] >= 0; index = data.parents[index]) chain.unshift(data.parents[index]);
      return chain;
    };
    const icicle = (chain) => {
      const boxes = chain.map((part, depth) => ({ part, left: 0, top: depth * ROW, width: 100, height: ROW, above: true }));
      const roots = top < 0 ? below.get(-1) || [] : [top];
      const whole = roots.reduce((sum, index) => sum + sums[index], 0) || 1;
      const smallest = 100 / Math.max(300, place.clientWidth);
      const lay = (parts, left, depth) => {
        for (const part of parts) {
          const width = (100 * sums[part]) / whole;
          if (width >= smallest && depth < MOST_ROWS + chain.length) {
            boxes.push({ part, left, top: depth * ROW, width, height: ROW });
            lay(below.get(part) || [], left, depth + 1);
          }
          left += width;
        }
      };
      lay(roots, 0, chain.length);
      return boxes;
    };
    const treemap = (chain) => {
      const boxes = chain.map((part, depth) => ({ part, left: 0, top: depth * ROW, width: 100, height: ROW, above: true }));
      const wide = Math.max(300, place.clientWidth), start = chain.length * ROW;
      const lay = (parts, room) => {
        for (const box of squares(parts.map((part) => [part, sums[part]]), room)) {
          if (Math.min(box.width, box.height) < 2) continue;
          boxes.push({ ...box, left: (100 * box.left) / wide, width: (100 * box.width) / wide });
          const inner = { left: box.left + 2, top: box.top + HEAD, width: box.width - 4, height: box.height - HEAD - 2 };
          if (inner.width > 6 && inner.height > 6) lay(below.get(box.part) || [], inner);
        }
      };
      lay(top < 0 ? below.get(-1) || [] : [top], { left: 0, top: start, width: wide, height: height - start });
      return boxes;
    };
    const draw = () => {
      const boxes = (data.shape === "icicle" ? icicle : treemap)(above());
      const shades = tree.shade || data.trees[0].shade;
      place.replaceChildren(...boxes.map((box) => {
        const colour = data.colours[shades[box.part]];
        const node = detscope.make("i", { textContent: box.width > 1.2 ? data.labels[box.part] : "" });
        node.dataset.n = box.part;
        node.dataset.told = said(box.part);
        node.className = (dark(colour) ? "on-dark" : "") + (box.above ? " above" : "") + (isHit(box.part) ? " hit" : "");
        node.style.cssText = `left:${box.left}%;width:${box.width}%;top:${box.top}px;background:${colour}` + (data.shape === "treemap" ? `;height:${box.height}px` : "");
        return node;
      }));
      if (data.shape === "icicle") place.style.height = `${Math.max(ROW, ...boxes.map((box) => box.top + ROW))}px`;
    };
    const isHit = (index) => Boolean(found) && data.ids[index].toLowerCase().includes(found);
    const tellAddress = () => {
      const choice = data.trees.indexOf(tree);
      detscope.setAddress(figure.id, (top < 0 ? "" : data.ids[top]) + (choice ? `;${tree.name}` : ""));
    };
    const zoom = (index) => {
      top = index >= 0 && data.parents[index] < 0 && below.get(-1).length === 1 ? -1 : index;
      draw();
      tellAddress();
    };

    place.addEventListener("click", (event) => {
      const node = event.target.closest("[data-n]");
      if (!node) return;
      detscope.hush();
      const index = Number(node.dataset.n);
      zoom(index === top ? data.parents[index] : index);
    });
    place.tabIndex = 0;
    place.addEventListener("keydown", (event) => {
      const siblings = top < 0 ? [] : below.get(data.parents[top]);
      const largest = (parts) => [...(parts || [])].sort((a, b) => sums[b] - sums[a])[0];
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      let next;
      if (event.key === "ArrowDown" || event.key === "Enter") next = largest(below.get(top < 0 ? below.get(-1)[0] : top));
      else if (event.key === "ArrowUp" || event.key === "Escape") next = top < 0 ? undefined : data.parents[top];
      else if (step) next = siblings[siblings.indexOf(top) + step];
      if (next === undefined) return;
      event.preventDefault();
      zoom(next);
    });
    inputs.forEach((input, index) => input.addEventListener("change", () => {
      tree = data.trees[index];
      count();
      draw();
      tellAddress();
    }));
    document.addEventListener("detscope:search", (event) => {
      found = event.detail;
      place.classList.toggle("searching", Boolean(found) && data.ids.some((_, index) => isHit(index)));
      for (const node of place.children) node.classList.toggle("hit", isHit(Number(node.dataset.n)));
    });
    count();
    detscope.onAddress(figure.id, (state) => {
      const [path, name] = (state || "").split(";");
      tree = data.trees.find((one) => one.name === name) || data.trees[0];
      if (inputs.length) inputs[data.trees.indexOf(tree)].checked = true;
      count();
      top = path ? data.ids.indexOf(path) : -1;
      draw();
    });
  }
})();
