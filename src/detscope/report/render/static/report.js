"use strict";
// What every page does: folding, addresses, search, sorting, copying, light and dark. Pictures have scripts of
// their own and use what `detscope` offers here. Addresses are #id or #id=state; the search is the event
// `detscope:search` on the document, whose detail is the text.
const detscope = globalThis.detscope = (() => {
  const root = document.documentElement;
  const data = unpacked;
  const make = (tag, given = {}, ...children) => {
    const node = Object.assign(document.createElement(tag), given);
    node.append(...children);
    return node;
  };
  root.classList.add("scripted");
  document.querySelector(".side .tools").hidden = false;

  // ---- what is said when one points at something
  const tip = make("div", { id: "tip", hidden: true });
  document.body.append(tip);
  const hush = () => { tip.hidden = true; };
  const tell = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - width - 6))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 12 : event.clientY + 18}px`;
  };
  // titles work without a script; with one they come at once and on touch
  const takeTitle = (node) => {
    if (node.hasAttribute("title")) {
      node.dataset.told = node.title;
      node.removeAttribute("title");
    }
    return node.dataset.told;
  };
  const point = (event) => {
    const node = event.target.closest && event.target.closest("figure [title], figure [data-told]");
    const text = node && takeTitle(node);
    if (text) tell(text, event);
    else if (!event.target.closest || !event.target.closest("svg.lines, canvas")) hush();
  };
  document.addEventListener("pointermove", point);
  document.addEventListener("pointerdown", point);
  addEventListener("scroll", hush, { passive: true });

  // ---- addresses
  const listeners = new Map();
  const onAddress = (id, follow) => {
    listeners.set(id, follow);
    const [own, state] = readAddress();
    if (own === id) follow(state);
  };
  const readAddress = () => {
    let text = location.hash.slice(1);
    try { text = decodeURIComponent(text); } catch { /* a broken address is taken as it is */ }
    if (document.getElementById(text)) return [text, null];
    const cut = text.indexOf("=");
    return cut < 0 ? [text, null] : [text.slice(0, cut), text.slice(cut + 1)];
  };
  const setAddress = (id, state) => {
    const end = state ? `=${encodeURIComponent(state).replace(/%2F/g, "/")}` : "";
    const address = `#${encodeURIComponent(id)}${end}`;
    try {
      history.replaceState(null, "", address);
    } catch {
      location.hash = address; // some browsers keep the history of files to themselves
    }
  };
  const reveal = (node) => {
    for (let fold = node.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    const table = node.closest("table.long");
    if (table && node !== table) table.classList.add("all");
  };
  const follow = () => {
    const [id, state] = readAddress();
    const node = id && document.getElementById(id);
    if (!node || (state !== null && !listeners.has(id))) return; // an address of another script's
    for (const row of document.querySelectorAll("tr.here")) row.classList.remove("here");
    reveal(node);
    if (node.tagName === "TR") node.classList.add("here");
    node.scrollIntoView({ block: node.tagName === "TR" ? "center" : "start" });
    const listen = listeners.get(id);
    if (listen) listen(state);
  };
  addEventListener("hashchange", follow);

  // ---- where one is
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const here = document.getElementById("here");
  const sections = [...document.querySelectorAll("main > section")];
  const locate = () => {
    const line = innerHeight * 0.3;
    const atEnd = innerHeight + scrollY >= root.scrollHeight - 4;
    const passed = sections.filter((section) => section.getBoundingClientRect().top < line);
    const now = scrollY < 4 ? sections[0] : atEnd ? sections.at(-1) : passed.at(-1) || sections[0];
    for (const [id, link] of links) {
      if (now && id === now.id) {
        link.setAttribute("aria-current", "true");
        here.textContent = link.textContent;
      } else link.removeAttribute("aria-current");
    }
  };
  let waiting = false;
  addEventListener("scroll", () => {
    if (!waiting) requestAnimationFrame(() => { waiting = false; locate(); });
    waiting = true;
  }, { passive: true });
  document.querySelector("nav").addEventListener("click", () => { document.getElementById("menu").checked = false; });

  // ---- copying
  const copy = async (text, button) => {
    const said = button.textContent;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = make("textarea", { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.textContent = "copied";
    setTimeout(() => { button.textContent = said; }, 1200);
  };
  const button = (text, title, press) => {
    const node = make("button", { type: "button", textContent: text, title });
    node.addEventListener("click", (event) => { event.preventDefault(); press(node); });
    return node;
  };
  for (const command of document.querySelectorAll(".command")) {
    const code = command.querySelector("code");
    command.append(button("copy", "Copy this command", (node) => copy(code.textContent, node)));
  }

  // ---- tables
  const bodyRows = (table) => [...table.tBodies[0].rows];
  const number = (table, row, column) => {
    const columns = data.figures[table.closest("details").id];
    return columns && columns[column] ? columns[column][row.dataset.row] : undefined;
  };
  const asMarkdown = (table) => {
    const line = (cells) => `| ${cells.join(" | ")} |`;
    const heads = [...table.tHead.rows[0].cells];
    const clean = (cell) => cell.textContent.trim().replace(/\|/g, "¦").replace(/\s+/g, " ");
    const rule = heads.map((_, index) => (table.classList.contains(`f${index + 1}`) ? "---:" : "---"));
    const rows = bodyRows(table).filter((row) => !row.classList.contains("miss"));
    return [line(heads.map(clean)), line(rule), ...rows.map((row) => line([...row.cells].map(clean)))].join("\n") + "\n";
  };
  const asCsv = (table) => {
    const quote = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
    const rows = bodyRows(table).filter((row) => !row.classList.contains("miss"));
    const figure = (row, cell, index) => {
      const value = number(table, row, index);
      return value === undefined ? cell.textContent.trim() : value === null ? "" : String(value);
    };
    const heads = [...table.tHead.rows[0].cells].map((cell) => quote(cell.textContent.trim()));
    const lines = rows.map((row) => [...row.cells].map((cell, index) => quote(figure(row, cell, index))).join(","));
    return [heads.join(","), ...lines].join("\n") + "\n";
  };
  const sortBy = (table, index, head) => {
    const falling = head.getAttribute("aria-sort") !== "descending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const isFigure = table.classList.contains(`f${index + 1}`);
    const value = (row) => (isFigure ? number(table, row, index) : row.cells[index].textContent.toLowerCase());
    const rows = bodyRows(table).map((row) => [value(row), row]).sort(([x], [y]) => {
      if (isFigure && (x === null || y === null)) return (x === null) - (y === null);
      const order = isFigure ? x - y : x.localeCompare(y);
      return falling ? -order : order;
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  };
  const equip = (block) => {
    const table = block.querySelector("table");
    bodyRows(table).forEach((row, index) => { row.dataset.row = index; });
    [...table.tHead.rows[0].cells].forEach((head, index) => {
      const press = make("button", { type: "button", textContent: head.textContent });
      press.addEventListener("click", () => sortBy(table, index, head));
      head.replaceChildren(press);
    });
    const tools = make("span", { className: "tools" });
    tools.append(
      button("Markdown", "Copy this table as Markdown", (node) => copy(asMarkdown(table), node)),
      button("CSV", "Copy this table as CSV, figures in full", (node) => copy(asCsv(table), node)),
      button("link", "Copy the address of this table", (node) => { setAddress(block.id); copy(location.href, node); }),
    );
    block.querySelector("summary").append(tools);
    if (table.classList.contains("long")) {
      const rest = make("div", { className: "more" });
      rest.append(button(`show all ${table.tBodies[0].rows.length} rows`, "", () => { table.classList.add("all"); rest.remove(); }));
      block.append(rest);
    }
    table.addEventListener("click", (event) => {
      const row = event.target.closest("tbody tr");
      if (!row || String(getSelection())) return;
      for (const other of document.querySelectorAll("tr.here")) other.classList.remove("here");
      row.classList.add("here");
      setAddress(row.id);
    });
  };
  const blocks = [...document.querySelectorAll("details.table")];
  const equipped = new Set();
  const equipOnce = (block) => {
    if (!equipped.has(block)) equip(block);
    equipped.add(block);
  };
  for (const block of blocks) {
    if (block.open) equipOnce(block);
    else block.addEventListener("toggle", () => equipOnce(block), { once: true });
  }

  // ---- search
  const search = document.getElementById("search");
  const matches = document.getElementById("matches");
  const marked = typeof Highlight === "undefined" ? null : new Highlight();
  if (marked) CSS.highlights.set("found", marked);
  const opened = new Set();
  const markText = (row, text) => {
    for (const cell of row.cells) {
      const node = cell.firstChild;
      const at = node && node.nodeType === 3 ? node.data.toLowerCase().indexOf(text) : -1;
      if (at < 0) continue;
      const range = new Range();
      range.setStart(node, at);
      range.setEnd(node, at + text.length);
      marked.add(range);
    }
  };
  const find = () => {
    const text = search.value.trim().toLowerCase();
    if (marked) marked.clear();
    let rows = 0, tables = 0;
    for (const block of blocks) {
      let own = 0;
      for (const row of bodyRows(block.querySelector("table"))) {
        const hit = !text || row.textContent.toLowerCase().includes(text);
        row.classList.toggle("miss", !hit);
        if (!text || !hit) continue;
        own += 1;
        if (marked) markText(row, text);
      }
      block.querySelector("table").classList.toggle("searched", Boolean(text));
      block.hidden = Boolean(text) && !own;
      rows += own;
      tables += own > 0;
      if (own && !block.open) { block.open = true; opened.add(block); }
    }
    if (!text) {
      for (const block of opened) block.open = false;
      opened.clear();
    }
    matches.textContent = text ? `${rows} row${rows === 1 ? "" : "s"} in ${tables} table${tables === 1 ? "" : "s"}` : "";
    document.dispatchEvent(new CustomEvent("detscope:search", { detail: text }));
  };
  let due;
  search.addEventListener("input", () => { clearTimeout(due); due = setTimeout(find, 80); });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Escape") { search.value = ""; find(); search.blur(); }
    if (event.key === "Enter") {
      find();
      const first = document.querySelector("details.table:not([hidden]) tbody tr:not(.miss)");
      if (first) first.scrollIntoView({ block: "center" });
    }
  });
  addEventListener("keydown", (event) => {
    if (event.key !== "/" || /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName)) return;
    event.preventDefault();
    search.focus();
  });

  // ---- light and dark, paper
  const dark = () =>
    root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = dark() ? "light" : "dark";
    document.dispatchEvent(new CustomEvent("detscope:theme"));
  });
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = [...document.querySelectorAll("details:not([open])")];
    for (const fold of folded) fold.open = true;
  });
  addEventListener("afterprint", () => { for (const fold of folded) fold.open = false; });

  // once the scripts of pictures listen, too: they run in one go with this one
  queueMicrotask(() => { follow(); locate(); });
  return { data, make, tell, hush, onAddress, setAddress };
})();
