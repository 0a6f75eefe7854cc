"use strict";
// The first screen as a picture of 1200 x 630 pixels, drawn from what the page shows; nothing leaves the machine.
detscope.drawPicture = () => {
  const [width, height, edge] = [1200, 630, 48];
  const canvas = detscope.make("canvas", { width, height });
  const pen = canvas.getContext("2d");
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(`--${name}`).trim();
  const text = (selector) => (document.querySelector(selector) || { textContent: "" }).textContent.trim();
  const face = (size, weight = 400) => { pen.font = `${weight} ${size}px system-ui, "Liberation Sans", sans-serif`; };
  const cut = (words, room) => {
    if (pen.measureText(words).width <= room) return words;
    while (words && pen.measureText(`${words}…`).width > room) words = words.slice(0, -1);
    return `${words.trimEnd()}…`;
  };
  const wrap = (words, room, most) => {
    const lines = [""];
    for (const word of words.split(/\s+/)) {
      const longer = `${lines.at(-1)} ${word}`.trim();
      if (pen.measureText(longer).width <= room || !lines.at(-1)) lines[lines.length - 1] = longer;
      else lines.push(word);
    }
    if (lines.length > most) lines.splice(most - 1, Infinity, cut(lines.slice(most - 1).join(" "), room));
    return lines;
  };
  pen.fillStyle = colour("paper");
  pen.fillRect(0, 0, width, height);
  pen.textBaseline = "alphabetic";
  const write = (words, x, y, tone = "ink") => { pen.fillStyle = colour(tone); pen.fillText(words, x, y); };

  face(26, 650);
  const title = cut(text("h1"), 560);
  write(title, edge, 66);
  const after = edge + pen.measureText(title).width + 20;
  face(19);
  write(cut(text("header p"), width - edge - after), after, 66, "soft");
  face(36, 650);
  let y = 124;
  for (const line of wrap(text("section:has(.cards) h2"), width - 2 * edge, 2)) { write(line, edge, y); y += 44; }

  const cards = [...document.querySelectorAll(".card")].slice(0, 4);
  const room = (width - 2 * edge) / Math.max(1, cards.length);
  cards.forEach((card, index) => {
    const x = edge + index * room;
    const part = (name) => (card.querySelector(`.${name}`) || { textContent: "" }).textContent;
    const tone = ["good", "warn", "bad"].find((one) => card.classList.contains(one));
    pen.fillStyle = colour(tone || "accent");
    pen.fillRect(x, y, 4, 108);
    face(17);
    write(cut(part("label"), room - 32), x + 16, y + 18, "soft");
    face(31, 650);
    write(cut(part("value"), room - 32), x + 16, y + 56, tone || "ink");
    face(15);
    wrap(part("detail"), room - 32, 2).forEach((line, row) => write(line, x + 16, y + 82 + 20 * row, "soft"));
  });
  y += cards.length ? 150 : 20;

  const bars = document.querySelector(".bars-chart");
  const tracks = bars ? [...bars.querySelectorAll(".track")].slice(0, 2) : [];
  const names = bars ? [...bars.querySelectorAll(".name")] : [];
  face(17);
  const margin = Math.max(0, ...tracks.map((_, row) => pen.measureText(names[row].textContent).width));
  const [start, wide] = [edge + (margin && margin + 14), width - 2 * edge - (margin && margin + 14)];
  const tall = tracks.length > 1 ? 36 : 56;
  tracks.forEach((track, row) => {
    face(17);
    write(names[row].textContent, edge, y + tall / 2 + 6, "soft");
    for (const bar of track.querySelectorAll("i")) {
      const [left, share] = [parseFloat(bar.style.left), parseFloat(bar.style.width)].map((value) => (wide * value) / 100);
      pen.fillStyle = bar.style.backgroundColor;
      pen.fillRect(start + left, y, share - 1.5, tall);
      face(18, 600);
      pen.fillStyle = bar.classList.contains("on-dark") ? "#fff" : "#10151b";
      if (pen.measureText(bar.textContent).width < share - 14) pen.fillText(bar.textContent, start + left + 8, y + tall / 2 + 7);
    }
    y += tall + 6;
  });
  if (tracks.length) {
    face(16);
    write(bars.closest("figure").querySelector("figcaption").textContent, edge, y + 20, "soft");
    y += 60;
  }
  for (const finding of [...document.querySelectorAll(".findings summary")].slice(0, Math.floor((height - 50 - y) / 32))) {
    face(20);
    write(cut(`→ ${finding.textContent.replace(/\s+/g, " ")}`, width - 2 * edge), edge, y);
    y += 32;
  }
  face(17, 600);
  write("detscope", width - edge - pen.measureText("detscope").width, height - 28, "soft");
  return canvas;
};
(() => {
  const button = document.getElementById("save");
  button.hidden = false;
  button.addEventListener("click", () => detscope.drawPicture().toBlob((blob) => {
    const link = detscope.make("a", { href: URL.createObjectURL(blob), download: `${document.querySelector("h1").textContent.trim().replace(/[^\w.-]+/g, "_")}.png` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }));
})();
