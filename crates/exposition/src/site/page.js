// What the pages of Taut have in common: units, tables, and asking for data again and again. Names and addresses
// come from configurations, processes, other machines and clients: they are only ever set as text, never as HTML.
"use strict";

const byId = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

// The nodes of a sentence in which commands stand between backticks.
const prose = (text) => text.split("`").map((part, at) => at % 2 ? element("code", part) : part);

const known = (value) => value !== null && value !== undefined;

const units = (value, base, names) => {
  let at = 0;
  while (value >= base && at < names.length - 1) { value /= base; at += 1; }
  return `${value < 10 && at > 0 ? value.toFixed(1) : Math.round(value)} ${names[at]}`;
};
const bytes = (value) => units(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const rate = (perSecond) => units(perSecond * 8, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]);
const many = (count, what) => `${count} ${what}${count === 1 ? "" : "s"}`;

function time(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

function show(id, visible) { byId(id).hidden = !visible; }

// The page's name, also in the tabs of the browser.
function entitle(title) {
  document.title = title;
  byId("title").textContent = title;
}

// What the page is about in a line; isLost if what is below it is old.
function summarize(text, isLost) {
  const summary = byId("summary");
  if (summary.textContent !== text) summary.textContent = text;
  document.body.classList.toggle("lost", isLost);
}

// Columns are [title, is a number]; rows are lists of a text, [text, class] or [text, class, a further line].
// On a narrow screen the style sheet makes a block of each row, in which the title stands before each cell.
function fill(id, columns, rows, empty) {
  const part = (name, role) => {
    const made = element(name);
    // Blocks are no table to a screen reader.
    made.setAttribute("role", role);
    return made;
  };
  const head = part("thead", "rowgroup");
  const titles = head.appendChild(part("tr", "row"));
  for (const [title, isNumber] of columns) {
    const cell = titles.appendChild(part("th", "columnheader"));
    cell.scope = "col";
    cell.textContent = title;
    if (isNumber) cell.className = "number";
  }
  const body = part("tbody", "rowgroup");
  for (const row of rows) {
    const line = body.appendChild(part("tr", "row"));
    row.forEach((content, at) => {
      const [text, className, more] = Array.isArray(content) ? content : [content, ""];
      const cell = line.appendChild(part("td", "cell"));
      cell.dataset.title = columns[at][0];
      // Only sentences may have commands.
      cell.append(...className.includes("words") ? prose(text) : [text]);
      if (more) cell.appendChild(element("small")).append(...prose(more));
      cell.className = `${columns[at][1] ? "number" : ""} ${className}`.trim();
    });
  }
  if (rows.length === 0) {
    const cell = body.appendChild(part("tr", "row")).appendChild(part("td", "cell"));
    cell.textContent = empty;
    cell.className = "empty";
    cell.colSpan = columns.length;
  }
  const table = byId(id);
  table.setAttribute("role", "table");
  table.replaceChildren(head, body);
  markCut();
}

// Fades the side of each table that goes on beyond the screen.
function markCut() {
  for (const wide of document.querySelectorAll(".wide")) {
    wide.classList.toggle("more-left", wide.scrollLeft > 1);
    wide.classList.toggle("more-right", wide.scrollLeft + wide.clientWidth < wide.scrollWidth - 1);
  }
}
document.addEventListener("scroll", markCut, true);
window.addEventListener("resize", markCut);

const pause = (milliseconds) => new Promise((resume) => { setTimeout(resume, milliseconds); });
const shown = () => new Promise((resume) => {
  if (document.hidden) document.addEventListener("visibilitychange", resume, { once: true });
  else resume();
});

// Passes the data at this place to take, again and again, and what fails to lost. A page that is not shown asks for nothing.
async function follow(url, every, take, lost) {
  for (;;) {
    await shown();
    try {
      const answer = await fetch(url, { cache: "no-store" });
      if (!answer.ok) throw new Error(await answer.text());
      take(await answer.json());
    } catch (error) {
      lost(error.message);
    }
    await pause(every);
  }
}
