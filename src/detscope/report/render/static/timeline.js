"use strict";
(() => {
  // One row per lane and depth: spans of a row never overlap, so begins and ends are both sorted and the
  // visible ones are found by halving. Spans below a pixel are drawn as runs, so a frame costs at most
  // one rectangle per row and pixel however many spans there are.
  const ROW = 18, TITLE = 17, GAP = 7, AXIS = 20, MEMORY = 92, NARROWEST = 200;
  const FONT = "11px system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', sans-serif";
  const make = (tag, text, parent) => {
    const element = document.createElement(tag);
    element.textContent = text;
    parent.append(element);
    return element;
  };
  const digitsOf = (ms) => (ms >= 1000 ? 0 : ms >= 10 ? 1 : ms >= 0.1 || ms === 0 ? 2 : ms >= 0.01 ? 3 : 4);
  const showMs = (ns) => `${(ns / 1e6).toLocaleString("en-US", { minimumFractionDigits: digitsOf(ns / 1e6), maximumFractionDigits: digitsOf(ns / 1e6) })} ms`;
  const showShare = (share) => `${(100 * share).toFixed(1)} %`;
  const showBytes = (size) => {
    const [unit, word] = [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]].find(([least]) => Math.abs(size) >= least) || [1, "bytes"];
    return `${(size / unit).toFixed(unit === 1 ? 0 : size / unit >= 10 ? 1 : 2)} ${word}`;
  };
  const firstAbove = (sorted, value, low = 0) => {
    let high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] > value) high = middle;
      else low = middle + 1;
    }
    return low;
  };

  // the other side of render/timeline.py: seven bits a byte, columns one behind the other
  const readColumns = (text, count, signed) => {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    let place = 0;
    return signed.map((isSigned) => {
      const column = new Float64Array(count);
      let sum = 0;
      for (let index = 0; index < count; index++) {
        let value = 0, unit = 1, byte;
        do {
          byte = bytes[place++];
          value += (byte & 127) * unit;
          unit *= 128;
        } while (byte & 128);
        if (isSigned) sum += value % 2 ? -(value + 1) / 2 : value / 2;
        column[index] = isSigned ? sum : value;
      }
      return column;
    });
  };
  const readLane = (packed) => {
    const [start, length, name, group, depth] = readColumns(packed.data, packed.n, [true, false, false, false, false]);
    const sizes = [];
    for (const one of depth) sizes[one] = (sizes[one] || 0) + 1;
    const rows = Array.from(sizes, (size = 0) => ({
      start: new Float64Array(size), end: new Float64Array(size), name: new Uint32Array(size), group: new Uint16Array(size), found: [], filled: 0,
    }));
    for (let index = 0; index < packed.n; index++) {
      const row = rows[depth[index]], at = row.filled++;
      row.start[at] = start[index];
      row.end[at] = start[index] + length[index];
      row.name[at] = name[index];
      row.group[at] = group[index];
    }
    return { title: packed.title, left: packed.left, rows };
  };
  const readMemory = (packed) => {
    const [moments, ...levels] = readColumns(packed.data, packed.n, [true, ...packed.names.map(() => true)]);
    const tops = [];
    levels.forEach((level, place) => tops.push(level.map((value, at) => value + (place ? tops[place - 1][at] : 0))));
    return { ...packed, moments, tops };
  };

  class Timeline {
    constructor(root, data) {
      this.root = root;
      this.data = data;
      this.find = (name) => root.querySelector(`.timeline-${name}`);
      this.canvas = root.querySelector("canvas");
      this.context = this.canvas.getContext("2d", { alpha: false });
      this.steps = [];
      this.matches = [];
      this.match = -1;
      this.wanted = "";
      this.pinned = null;
      this.hovered = null;
      this.pointers = new Map();
      for (const name of ["tools", "view"]) this.find(name).hidden = false;
      this.chosen = 0;
      this.listen();
      this.open(0);
      this.restore();
    }

    // ---- the step, and what of it is seen
    open(index) {
      const packed = this.data.steps[index];
      this.chosen = index;
      this.steps[index] ||= { ...packed, lanes: packed.lanes.map(readLane), memory: packed.memory && readMemory(packed.memory) };
      this.step = this.steps[index];
      this.hovered = null;
      this.pin(null);
      this.find("step").value = index;
      const left = this.step.lanes.filter((lane) => lane.left).map((lane) => `${lane.title}: the ${lane.left[0]} shortest (${showMs(lane.left[1])} together) are left out`);
      const without = this.step.noMemory && `Allocated memory is not drawn here: ${this.step.noMemory}`;
      const remark = [this.step.remark && `This step was ${this.step.remark}`, ...left, without].filter(Boolean).join(". ");
      this.find("remark").textContent = remark && `${remark}.`;
      this.find("remark").hidden = !remark;
      this.place();
      this.explain();
      this.search(this.wanted, false);
      this.show(0, this.step.until);
      this.tell();
    }

    place() {
      let y = AXIS;
      for (const lane of this.step.lanes) {
        lane.y = y;
        y += TITLE + lane.rows.length * ROW + GAP;
      }
      this.memoryY = y;
      if (this.step.memory) y += TITLE + MEMORY + GAP;
      this.height = y;
      this.canvas.style.height = `${y}px`;
    }

    explain() {
      const legend = this.find("legend"), used = new Set();
      for (const lane of this.step.lanes) for (const row of lane.rows) for (const group of row.group) used.add(group);
      legend.replaceChildren();
      const words = [...used].sort((a, b) => a - b).map((group) => this.data.groups[group]).filter(([name]) => !name.startsWith("stage "));
      if (this.step.memory) for (const name of this.step.memory.names) words.push([`memory: ${name}`, this.data.categories[name] || "#8A97A6"]);
      for (const [name, colour] of words) {
        const entry = make("span", "", legend);
        const box = document.createElementNS("http://www.w3.org/2000/svg", "svg"), rect = document.createElementNS("http://www.w3.org/2000/svg", "rect");
        for (const [key, value] of [["width", "100%"], ["height", "100%"], ["fill", colour]]) rect.setAttribute(key, value);
        box.setAttribute("aria-hidden", "true");
        box.append(rect);
        entry.append(box, name.replaceAll("_", " "));
      }
      legend.hidden = false;
    }

    show(from, to) {
      const whole = this.step.until, width = Math.min(whole, Math.max(NARROWEST, to - from));
      this.from = Math.max(0, Math.min(whole - width, from));
      this.to = this.from + width;
      Object.assign(this.root.dataset, { from: this.from, to: this.to });
      this.redraw();
      clearTimeout(this.saving);
      this.saving = setTimeout(() => this.save(), 200);
    }

    zoom(factor, at = (this.from + this.to) / 2) {
      this.show(at - (at - this.from) * factor, at + (this.to - at) * factor);
    }

    move(share) {
      const by = share * (this.to - this.from);
      this.show(this.from + by, this.to + by);
    }

    // ---- the address: of the step, what is seen of it, what is searched for
    save() {
      const whole = this.from <= 0 && this.to >= this.step.until;
      if (!this.touched) return;
      const told = new URLSearchParams({ step: this.step.step ?? "all" });
      if (!whole) for (const key of ["from", "to"]) told.set(key, (this[key] / 1e6).toFixed(6).replace(/\.?0+$/, ""));
      if (this.wanted) told.set("find", this.wanted);
      history.replaceState(null, "", `#${told}`);
    }

    restore() {
      const told = new URLSearchParams(location.hash.slice(1));
      if (!told.has("step")) return;
      const index = this.data.steps.findIndex((step) => String(step.step ?? "all") === told.get("step"));
      if (index < 0) return;
      if (told.get("find")) this.wanted = this.find("find").value = told.get("find");
      this.open(index);
      const [from, to] = ["from", "to"].map((key) => Number.parseFloat(told.get(key)) * 1e6);
      if (to > from) this.show(from, to);
      this.touched = true;
      this.root.scrollIntoView({ block: "start" });
    }

    // ---- searching
    search(text, tell = true) {
      this.wanted = text.trim();
      const wanted = this.wanted.toLowerCase();
      const fits = this.data.names.map(([name]) => wanted !== "" && name.toLowerCase().includes(wanted));
      this.matches = [];
      this.match = -1;
      for (const lane of this.step.lanes) {
        for (const row of lane.rows) {
          row.found = [];
          if (wanted) row.name.forEach((name, at) => fits[name] && row.found.push(at) && this.matches.push({ lane, row, at }));
        }
      }
      const exact = (hit) => this.data.names[hit.row.name[hit.at]][0].toLowerCase() === wanted;
      this.matches.sort((a, b) => exact(b) - exact(a) || a.row.start[a.at] - b.row.start[b.at]);
      this.redraw();
      if (tell) {
        this.tell();
        this.touched = true;
        this.save();
      }
    }

    go(by) {
      const count = this.matches.length;
      if (!count) return;
      this.match = (this.match + by + count) % count;
      this.pin(this.matches[this.match]);
      this.focus(this.pinned);
    }

    focus(hit) {
      const [start, end] = [hit.row.start[hit.at], hit.row.end[hit.at]], beside = Math.max((end - start) / 2, NARROWEST / 2);
      this.touched = true;
      this.show(start - beside, end + beside);
    }

    // ---- telling
    tell() {
      const found = this.wanted ? `, ${this.match >= 0 ? `${this.match + 1} of ` : ""}${this.matches.length} found` : "";
      this.find("state").textContent = `${showMs(this.step.wall)}${found}`;
      Object.assign(this.root.dataset, { step: this.step.step ?? "all", found: this.matches.length, ready: "" });
    }

    facts(hit) {
      const { lane, row, at } = hit, length = row.end[at] - row.start[at];
      const [text, kind, known] = this.data.names[row.name[at]], about = known.map(([word, value]) => [this.data.words[word], value]);
      const told = about.find(([word]) => word === "direction")?.[1], group = this.data.groups[row.group[at]][0].replaceAll("_", " ");
      const what = told || (group === kind || group === text || kind === "idle" || kind === "loader" ? "" : group);
      return { text, kind, about: about.filter(([word]) => word !== "direction"), length, what, begin: row.start[at], lane: lane.title };
    }

    // all spans of the same name and kind of work in this lane, those inside one of them counted once
    sum(hit) {
      const name = hit.row.name[hit.at], group = hit.row.group[hit.at], spans = [];
      for (const row of hit.lane.rows) row.name.forEach((one, at) => one === name && row.group[at] === group && spans.push([row.start[at], row.end[at]]));
      let count = 0, total = 0, reached = -Infinity;
      for (const [start, end] of spans.sort((a, b) => a[0] - b[0] || b[1] - a[1])) {
        if (start < reached && end <= reached) continue;
        [count, total, reached] = [count + 1, total + end - start, end];
      }
      return { count, total };
    }

    pin(hit) {
      const box = this.find("pinned");
      this.pinned = hit;
      box.hidden = !hit;
      box.replaceChildren();
      this.redraw();
      if (!hit) return;
      const facts = this.facts(hit), { count, total } = this.sum(hit);
      make("b", facts.text, box);
      const list = make("dl", "", box);
      const lines = [
        ["lane", facts.what ? `${facts.lane}: ${facts.what}` : facts.lane],
        ["begins at", showMs(facts.begin)],
        ["takes", `${showMs(facts.length)}, ${showShare(facts.length / this.step.wall)} of the step`],
        ...(count > 1 ? [["in this step", `${count} spans, ${showMs(total)}, ${showShare(total / this.step.wall)}`]] : []),
        ...facts.about,
      ];
      for (const [word, value] of lines) {
        make("dt", word, list);
        make("dd", value, list);
      }
      Object.assign(box.dataset, { name: facts.text, group: facts.what, ns: facts.length, total: total });
      this.tell();
    }

    hover(event) {
      const tip = this.find("tip"), hit = event && this.hit(event), level = event && !hit && this.level(event);
      if (hit?.at !== this.hovered?.at || hit?.row !== this.hovered?.row) this.redraw();
      this.hovered = hit || null;
      tip.hidden = !hit && !level;
      if (tip.hidden) return;
      tip.replaceChildren();
      if (hit) {
        const facts = this.facts(hit);
        make("b", facts.text, tip);
        tip.append(`${showMs(facts.length)}, ${showShare(facts.length / this.step.wall)} of the step`);
        if (facts.what) tip.append(`, ${facts.what}`);
      } else {
        make("b", `at ${showMs(level.at)}`, tip);
        level.lines.forEach((line) => make("div", line, tip));
      }
      const x = event.offsetX, width = this.canvas.clientWidth;
      tip.style.left = `${Math.max(0, Math.min(x + 12, width - Math.min(360, tip.offsetWidth + 4)))}px`;
      tip.style.top = `${Math.min(event.offsetY + 14, Math.max(0, this.height - tip.offsetHeight))}px`;
    }

    hit({ offsetX, offsetY }) {
      const time = this.from + (offsetX / this.canvas.clientWidth) * (this.to - this.from), near = (2 / this.canvas.clientWidth) * (this.to - this.from);
      for (const lane of this.step.lanes) {
        const row = lane.rows[Math.floor((offsetY - lane.y - TITLE) / ROW)];
        if (offsetY < lane.y + TITLE || !row) continue;
        const at = firstAbove(row.end, time);
        for (const place of [at, at - 1]) {
          if (row.start[place] <= time + (place === at ? 0 : near) && row.end[place] >= time - near) return { lane, row, at: place };
        }
        return row.start[at] - time < near ? { lane, row, at } : null;
      }
      return null;
    }

    level({ offsetX, offsetY }) {
      const memory = this.step.memory;
      if (!memory || offsetY < this.memoryY + TITLE) return null;
      const time = this.from + (offsetX / this.canvas.clientWidth) * (this.to - this.from), at = Math.max(0, firstAbove(memory.moments, time) - 1);
      const own = memory.tops.map((top, place) => top[at] - (place ? memory.tops[place - 1][at] : 0));
      const lines = memory.names.map((name, place) => `${name}: ${showBytes(own[place])}`).filter((_, place) => own[place]);
      return { at: time, lines: [...lines.reverse(), `allocated: ${showBytes(memory.tops.at(-1)[at])}`] };
    }

    // ---- drawing
    redraw() {
      this.frame ||= requestAnimationFrame(() => {
        this.frame = 0;
        this.draw();
      });
    }

    colours() {
      if (this.theme) return this.theme;
      const style = getComputedStyle(this.root), get = (name) => style.getPropertyValue(`--${name}`).trim();
      const light = (colour) => [1, 3, 5].reduce((sum, at, place) => sum + Number.parseInt(colour.slice(at, at + 2), 16) * [0.299, 0.587, 0.114][place], 0) > 120;
      const groups = this.data.groups.map(([, colour]) => colour);
      this.theme = { ink: get("ink"), soft: get("soft"), line: get("line"), paper: get("paper"), accent: get("accent"), groups, letters: groups.map((colour) => (light(colour) ? "#10161d" : "#ffffff")) };
      return this.theme;
    }

    draw() {
      const { canvas, context } = this, ratio = devicePixelRatio || 1, width = canvas.clientWidth;
      if (!width) return;
      if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(this.height * ratio)) {
        canvas.width = Math.round(width * ratio);
        canvas.height = Math.round(this.height * ratio);
      }
      const look = this.colours();
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.fillStyle = look.paper;
      context.fillRect(0, 0, width, this.height);
      context.font = FONT;
      context.textBaseline = "middle";
      this.scale = width / (this.to - this.from);
      this.drawAxis(width, look);
      for (const lane of this.step.lanes) {
        context.fillStyle = look.soft;
        context.fillText(lane.title, 4, lane.y + TITLE / 2);
        lane.rows.forEach((row, depth) => this.drawRow(row, lane.y + TITLE + depth * ROW, width, look));
      }
      this.drawMemory(width, look);
      this.drawArrows(width, look);
      for (const [hit, thick] of [[this.hovered, 1], [this.pinned, 2]]) if (hit) this.outline(hit, thick, width, look);
    }

    drawAxis(width, look) {
      const { context, from, to } = this, rough = (to - from) / Math.max(2, width / 110), size = 10 ** Math.floor(Math.log10(rough));
      const gap = [1, 2, 5, 10].map((one) => one * size).find((one) => one >= rough), digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(gap / 1e6))));
      context.fillStyle = look.line;
      for (let at = Math.ceil(from / gap) * gap; at <= to; at += gap) context.fillRect(Math.round((at - from) * this.scale), 0, 1, this.height);
      context.fillStyle = look.soft;
      for (let at = Math.ceil(from / gap) * gap; at <= to; at += gap) context.fillText(`${(at / 1e6).toFixed(digits)} ms`, (at - from) * this.scale + 3, AXIS / 2);
      const end = (this.step.wall - from) * this.scale;
      if (this.step.wall < this.step.until && end > 0 && end < width) {
        context.fillStyle = look.accent;
        context.fillRect(end, 0, 1, this.height);
        const words = "end of the step on the host", room = context.measureText(words).width + 8;
        context.fillText(words, end + room > width ? end - room : end + 4, AXIS / 2 + 12);
      }
    }

    drawRow(row, y, width, look) {
      const { context, from, to, scale } = this, count = row.start.length, dim = this.wanted !== "", height = ROW - 2;
      let run = -1, runFrom = 0, runTo = 0, colour = -1;
      const flush = () => {
        if (run < 0) return;
        if (run !== colour) context.fillStyle = look.groups[(colour = run)];
        context.fillRect(runFrom, y, runTo - runFrom, height);
        run = -1;
      };
      context.globalAlpha = dim ? 0.28 : 1;
      let at = firstAbove(row.end, from);
      while (at < count && row.start[at] < to) {
        const left = (row.start[at] - from) * scale, right = (row.end[at] - from) * scale, group = row.group[at];
        if (right - left >= 1.5) {
          flush();
          // whole pixels: no smoothing of edges, which costs most of the time of a frame
          const begin = Math.max(Math.round(left), -2), end = Math.min(Math.round(right), width + 2);
          if (group !== colour) context.fillStyle = look.groups[(colour = group)];
          context.fillRect(begin, y, end - begin - (end - begin > 3 ? 1 : 0) || 1, height);
          if (end - begin > 26) {
            this.write(row.name[at], Math.max(begin, 0), end, y, look.letters[group]);
            colour = -1;
          }
          at += 1;
        } else {
          const pixel = Math.floor(left);
          if (group !== run || pixel > runTo) {
            flush();
            [run, runFrom] = [group, pixel];
          }
          runTo = pixel + 1;
          at = firstAbove(row.end, from + runTo / scale, at + 1);
        }
      }
      flush();
      context.globalAlpha = 1;
      if (dim) this.drawFound(row, y, width, look);
    }

    drawFound(row, y, width, look) {
      const { context, from, to, scale } = this;
      let drawn = -1;
      for (const at of row.found) {
        if (row.end[at] < from || row.start[at] > to) continue;
        const left = Math.max(Math.round((row.start[at] - from) * scale), -2), right = Math.min(Math.round((row.end[at] - from) * scale), width + 2);
        if (right < drawn) continue;
        drawn = Math.max(right, left + 2);
        context.fillStyle = look.groups[row.group[at]];
        context.fillRect(left, y, Math.max(2, right - left - 1), ROW - 2);
        context.fillStyle = look.accent;
        context.fillRect(left, y + ROW - 4, Math.max(2, right - left - 1), 2);
        if (right - left > 26) this.write(row.name[at], Math.max(left, 0), right, y, look.letters[row.group[at]]);
      }
    }

    // of a path the last parts that fit, of everything else its begin
    write(name, from, to, y, colour) {
      const room = Math.floor((to - from - 6) / 5.9), [text, kind] = this.data.names[name];
      if (room < 3) return;
      let shown = text;
      if (kind === "module" || kind === "stage") while (shown.length > room && shown.includes(".")) shown = shown.slice(shown.indexOf(".") + 1);
      if (shown.length > room) shown = `${shown.slice(0, room - 1)}…`;
      this.context.fillStyle = colour;
      this.context.fillText(shown, from + 3, y + ROW / 2 - 1);
    }

    outline(hit, thick, width, look) {
      const { context, from, scale } = this, left = Math.max((hit.row.start[hit.at] - from) * scale, -3), right = Math.min((hit.row.end[hit.at] - from) * scale, width + 3);
      if (right < 0 || left > width) return;
      context.strokeStyle = look.ink;
      context.lineWidth = thick;
      context.strokeRect(left, hit.lane.y + TITLE + hit.lane.rows.indexOf(hit.row) * ROW, Math.max(2, right - left), ROW - 2);
    }

    drawArrows(width, look) {
      const { context, from, to, scale } = this;
      [context.strokeStyle, context.fillStyle, context.lineWidth] = [look.ink, look.ink, 1.2];
      for (const [device, done, host, returned] of this.step.arrows) {
        if (returned < from || done > to) continue;
        const [a, b] = [this.step.lanes[device], this.step.lanes[host]], x0 = (done - from) * scale, x1 = (returned - from) * scale;
        const y0 = a.y + TITLE + ROW - 2, y1 = b.y + TITLE - 1;
        context.beginPath();
        context.moveTo(x0, y0);
        context.lineTo(x1, y1);
        context.stroke();
        context.beginPath();
        context.moveTo(x1, y1 + 1);
        context.lineTo(x1 - 4, y1 - 6);
        context.lineTo(x1 + 4, y1 - 6);
        context.fill();
      }
    }

    drawMemory(width, look) {
      const memory = this.step.memory;
      if (!memory) return;
      const { context, from, scale } = this, base = this.memoryY + TITLE + MEMORY, highest = Math.max(memory.peak[1], ...memory.tops.at(-1)) || 1, high = (MEMORY - 16) / highest;
      context.fillStyle = look.soft;
      const since = memory.since ? ", counted from the begin of the recording" : "";
      context.fillText(`Allocated on ${memory.device}${since}; peak of this step ${showBytes(memory.peak[1])}`, 4, this.memoryY + TITLE / 2);
      const first = Math.max(0, firstAbove(memory.moments, from) - 1), last = Math.min(memory.n, firstAbove(memory.moments, this.to) + 1);
      for (let place = memory.names.length - 1; place >= 0; place--) {
        context.fillStyle = this.data.categories[memory.names[place]] || "#8A97A6";
        context.beginPath();
        context.moveTo(Math.max(0, (memory.moments[first] - from) * scale), base);
        for (let at = first; at < last; at++) {
          const x = Math.max(0, (memory.moments[at] - from) * scale), until = at + 1 < memory.n ? memory.moments[at + 1] : this.step.wall;
          const y = base - memory.tops[place][at] * high;
          context.lineTo(x, y);
          context.lineTo(Math.min(width, (until - from) * scale), y);
        }
        context.lineTo(Math.min(width, ((last < memory.n ? memory.moments[last] : this.step.wall) - from) * scale), base);
        context.fill();
      }
      const x = (memory.peak[0] - from) * scale, y = base - memory.peak[1] * high;
      if (x < -20 || x > width + 20) return;
      context.fillStyle = look.ink;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x - 5, y - 8);
      context.lineTo(x + 5, y - 8);
      context.fill();
      context.fillText("peak", Math.min(width - 30, x + 8), y - 5);
    }

    // ---- keyboard, mouse, touch
    listen() {
      const { canvas } = this, keys = {
        w: () => this.zoom(0.75), s: () => this.zoom(1 / 0.75), a: () => this.move(-0.15), d: () => this.move(0.15),
        0: () => this.show(0, this.step.until), n: () => this.go(1), p: () => this.go(-1), f: () => this.pinned && this.focus(this.pinned), Escape: () => this.pin(null),
      };
      Object.assign(keys, { ArrowUp: keys.w, "+": keys.w, "=": keys.w, ArrowDown: keys.s, "-": keys.s, ArrowLeft: keys.a, ArrowRight: keys.d });
      canvas.addEventListener("keydown", (event) => {
        const act = !event.ctrlKey && !event.metaKey && !event.altKey && keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
        if (!act) return;
        event.preventDefault();
        this.touched = true;
        act();
      });
      const press = { in: keys.w, out: keys.s, all: keys[0] };
      for (const button of this.root.querySelectorAll("[data-do]")) {
        button.addEventListener("click", () => {
          this.touched = true;
          press[button.dataset.do]();
        });
      }
      const find = this.find("find");
      find.addEventListener("input", () => this.search(find.value));
      find.addEventListener("keydown", (event) => event.key === "Enter" && (event.preventDefault(), this.go(event.shiftKey ? -1 : 1)));
      this.find("step").addEventListener("change", (event) => {
        this.touched = true;
        this.open(Number(event.target.value));
      });
      canvas.addEventListener("wheel", (event) => {
        if (document.activeElement !== canvas && !event.ctrlKey) return;  // else a page would not scroll past it
        event.preventDefault();
        this.touched = true;
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.move((event.deltaX || event.deltaY) / 900);
        else this.zoom(1.0015 ** event.deltaY, this.timeAt(event.offsetX));
      }, { passive: false });
      canvas.addEventListener("dblclick", (event) => this.hit(event) && this.focus(this.hit(event)));
      canvas.addEventListener("pointerdown", (event) => this.grab(event));
      canvas.addEventListener("pointermove", (event) => this.drag(event));
      for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, (event) => this.release(event));
      canvas.addEventListener("pointerleave", () => this.hover(null));
      const forget = () => {
        this.theme = null;
        this.redraw();
      };
      new MutationObserver(forget).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
      new ResizeObserver(() => this.redraw()).observe(canvas);
      addEventListener("hashchange", () => this.restore());
    }

    timeAt(x) {
      return this.from + (x / this.canvas.clientWidth) * (this.to - this.from);
    }

    grab(event) {
      this.pointers.set(event.pointerId, { x: event.offsetX });
      this.grabbed = { x: event.offsetX, from: this.from, to: this.to, moved: false };
      if (this.pointers.size === 2) {
        const [a, b] = [...this.pointers.values()].map((pointer) => pointer.x);
        this.pinch = { times: [this.timeAt(a), this.timeAt(b)] };
      }
      this.canvas.setPointerCapture(event.pointerId);
    }

    drag(event) {
      if (!this.pointers.has(event.pointerId)) return this.hover(event);
      this.pointers.get(event.pointerId).x = event.offsetX;
      const width = this.canvas.clientWidth;
      if (this.pinch && this.pointers.size === 2) {
        const [a, b] = [...this.pointers.values()].map((pointer) => pointer.x), [first, second] = this.pinch.times;
        if (Math.abs(a - b) < 10) return;
        const scale = (second - first) / (b - a), from = first - a * scale;
        this.grabbed.moved = this.touched = true;
        if (scale > 0) this.show(from, from + width * scale);
        return;
      }
      const by = event.offsetX - this.grabbed.x;
      if (Math.abs(by) > 4) this.grabbed.moved = true;
      if (!this.grabbed.moved) return;
      const time = (by / width) * (this.grabbed.to - this.grabbed.from);
      this.touched = true;
      this.hover(null);
      this.show(this.grabbed.from - time, this.grabbed.to - time);
    }

    release(event) {
      const held = this.pointers.delete(event.pointerId);
      if (this.pointers.size < 2) this.pinch = null;
      if (this.pointers.size) this.grabbed = { ...this.grabbed, x: [...this.pointers.values()][0].x, from: this.from, to: this.to, moved: true };
      else if (held && event.type === "pointerup" && !this.grabbed.moved) this.pin(this.hit(event));
    }
  }

  for (const [id, data] of Object.entries(detscope.data.timelines)) {
    const root = document.getElementById(id);
    let made = null;
    const table = root.parentElement.querySelector("details.table");
    if (table) table.open = false;  // it stands in the place of the picture where no script draws it
    const begin = () => (made ||= new Timeline(root, data));
    // not before one comes near it: the first screen of the page does not wait for it
    const seen = new IntersectionObserver((entries) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      seen.disconnect();
      begin();
    }, { rootMargin: "600px" });
    seen.observe(root);
    addEventListener("beforeprint", () => begin().draw());
    const restore = () => location.hash.includes("step=") && begin();
    addEventListener("hashchange", restore);
    restore();
    document.addEventListener("detscope:search", ({ detail }) => begin().search((begin().find("find").value = String(detail ?? ""))));
  }
})();
