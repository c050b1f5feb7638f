// The page shows what /status.json says, every two seconds. Names and addresses come from configurations,
// other relays and clients: they are only ever set as text, never as HTML.
"use strict";

const EVERY = 2000;

let before = null;

const byId = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

const units = (value, base, names) => {
  let at = 0;
  while (value >= base && at < names.length - 1) { value /= base; at += 1; }
  return `${value < 10 && at > 0 ? value.toFixed(1) : Math.round(value)} ${names[at]}`;
};
const bytes = (value) => units(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]);
const rate = (perSecond) => units(perSecond * 8, 1000, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]);

function time(seconds) {
  if (seconds < 60) return `${Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} days`;
}

// The bytes a second since the last answer, of the entry with the same name.
function speed(entry, list, key, seconds) {
  const former = before && before.data.relay[list].find((other) => other.name === entry.name);
  if (!former || seconds <= 0 || entry[key] < former[key]) return "";
  return rate((entry[key] - former[key]) / seconds);
}

// Columns are [title, is a number]; rows are lists of a text, or [text, class].
function fill(id, columns, rows, empty) {
  const table = byId(id);
  const head = element("thead").appendChild(element("tr")).parentNode;
  for (const [title, isNumber] of columns) {
    const cell = element("th", title, isNumber ? "number" : "");
    cell.scope = "col";
    head.firstChild.append(cell);
  }
  const body = element("tbody");
  for (const row of rows) {
    const line = body.appendChild(element("tr"));
    row.forEach((cell, at) => {
      const [text, className] = Array.isArray(cell) ? cell : [cell, ""];
      line.append(element("td", text, `${columns[at][1] ? "number" : ""} ${className}`.trim()));
    });
  }
  if (rows.length === 0) {
    const cell = element("td", empty, "empty");
    cell.colSpan = columns.length;
    body.appendChild(element("tr")).append(cell);
  }
  table.replaceChildren(head, body);
}

function show(id, visible) { byId(id).hidden = !visible; }

function showBroken(relay) {
  show("broken-section", relay.broken.length > 0);
  byId("broken").replaceChildren(...relay.broken.map((b) => element("li",
    `${b.condition.replaceAll("_", " ")} ${b.subject}: ${b.cause.replaceAll("_", " ")}, for ${time(b.seconds)}, ${b.affected} affected`)));
}

function showForwards(relay, seconds) {
  fill("forwards",
    [["forward"], ["sessions", true], ["to upstream now", true], ["to clients now", true], ["to upstream", true], ["to clients", true], ["listens on"], ["leads to"]],
    relay.forwards.map((f) => [
      f.drained ? [`${f.name} (drained)`, "warn"] : f.name, String(f.sessions),
      speed(f, "forwards", "to_upstream", seconds), speed(f, "forwards", "to_client", seconds),
      bytes(f.to_upstream), bytes(f.to_client), f.listen.join(", "), f.to ?? "",
    ]), "none");
}

function showAddresses(relay) {
  const classes = { up: "good", drained: "warn" };
  const rows = relay.forwards.flatMap((f) => f.addresses.map((a) => [
    f.name, a.address, [a.state.replaceAll("_", " "), classes[a.state] ?? "bad"], String(a.sessions),
    a.state === "down" ? `${a.cause.replaceAll("_", " ")}, for ${time(a.seconds)}` : "",
  ]));
  show("addresses-section", rows.length > 0);
  fill("addresses", [["forward"], ["address"], ["state"], ["sessions", true], ["why"]], rows, "none");
}

function showPeers(relay, seconds) {
  show("peers-section", relay.peers.length > 0);
  const broken = new Set(relay.broken.filter((b) => b.condition === "peer").map((b) => b.subject));
  fill("peers",
    [["relay"], ["state"], ["ready", true], ["sessions", true], ["sent now", true], ["received now", true], ["sent", true], ["received", true], ["found rate", true]],
    relay.peers.map((p) => [
      p.name,
      p.drained ? ["drained", "warn"] : broken.has(p.name) ? ["broken", "bad"] : p.ready > 0 ? ["ready", "good"] : "no connection ready",
      String(p.ready), String(p.sessions),
      speed(p, "peers", "sent", seconds), speed(p, "peers", "received", seconds), bytes(p.sent), bytes(p.received),
      p.rate ? rate(p.rate) : "",
    ]), "none");
}

function showSessions(data) {
  const more = data.relay.sessions - data.sessions.length;
  byId("sessions-note").textContent = more > 0 ? `${data.sessions.length} of ${data.relay.sessions}.` : "";
  fill("sessions",
    [["session"], ["forward"], ["state"], ["to upstream", true], ["to client", true], ["age", true], ["next"]],
    data.sessions.map((s) => [
      s.id, s.forward, s.state.replaceAll("_", " "), bytes(s.to_upstream), bytes(s.to_client), time(s.age),
      s.peer ?? s.upstream ?? "",
    ]), "no open session");
}

function refresh(data) {
  const { relay } = data;
  const seconds = before ? (data.at - before.data.at) : 0;
  const summary = [`version ${relay.version}`, `up ${time(relay.uptime)}`, `${relay.sessions} of ${relay.max_sessions} sessions`];
  if (relay.draining) summary.unshift("draining");
  byId("summary").textContent = summary.join(" · ");
  byId("summary").className = "";
  showBroken(relay);
  showForwards(relay, seconds);
  showAddresses(relay);
  showPeers(relay, seconds);
  showSessions(data);
  before = { data };
}

async function look() {
  try {
    const answer = await fetch("status.json", { cache: "no-store" });
    if (!answer.ok) throw new Error(await answer.text());
    refresh(await answer.json());
  } catch (error) {
    byId("summary").textContent = `The relay does not answer: ${error.message}`;
    byId("summary").className = "lost";
  }
  setTimeout(look, EVERY);
}

look();
