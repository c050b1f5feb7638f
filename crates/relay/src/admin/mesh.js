// The mesh, as /mesh.json says it every ten seconds: automatic routes, members, and the round-trip times
// between them as a heat map. As in page.js, names and labels are only ever set as text.
"use strict";

const EVERY_MESH = 10000;

// The most members, and relays of the heat map, that are shown.
const SHOWN = 200;

// From this number of relays the heat map's columns have their names upright.
const UPRIGHT = 6;

// The limits of the heat map's colours, in milliseconds.
const LEVELS = [5, 20, 50, 100, 150, 200, 300];

const STATES = { this: ["this relay", ""], up: ["up", "good"], down: ["cannot be reached", "bad"], unknown: ["not measured", "warn"] };

const ms = (value) => value < 10 ? value.toFixed(1) : String(Math.round(value));
const inMs = (value) => known(value) ? `${ms(value)} ms` : "";
const percent = (share) => `${(share * 100).toFixed(share < 0.01 ? 2 : 1)} %`;
const byName = (a, b) => a < b ? -1 : a > b ? 1 : 0;

// Says how much of a list is shown, if not all.
function note(id, shown, all) {
  byId(id).textContent = shown < all ? `${shown} of ${all}.` : "";
}

function headCell(scope, name) {
  const cell = element("th");
  cell.scope = scope;
  cell.title = name;
  cell.append(element("span", name));
  return cell;
}

function heatCell(from, to, path) {
  if (from === to) return element("td", "·", "empty");
  if (!path) {
    const cell = element("td", "–", "empty");
    cell.title = `${from} to ${to}: not measured`;
    return cell;
  }
  const level = LEVELS.filter((limit) => path.rtt_ms >= limit).length;
  const cell = element("td", ms(path.rtt_ms), `level-${level}`);
  // Less is usual.
  if (path.loss >= 0.001) cell.append(element("small", `${percent(path.loss)} lost`));
  cell.title = `${from} to ${to}: ${inMs(path.rtt_ms)}, smoothed ${inMs(path.smoothed_ms)}, ${percent(path.loss)} lost, row ${time(path.age_s)} old`;
  return cell;
}

function showHeat(mesh) {
  const paths = new Map();
  for (const path of mesh.paths) {
    if (!paths.has(path.from)) paths.set(path.from, new Map());
    paths.get(path.from).set(path.to, path);
  }
  const all = mesh.members.map((member) => member.name).sort(byName);
  const names = all.slice(0, SHOWN);
  show("heat-section", paths.size > 0);
  note("heat-note", names.length, all.length);
  const head = element("thead").appendChild(element("tr")).parentNode;
  head.firstChild.append(headCell("col", "from, to"), ...names.map((name) => headCell("col", name)));
  const body = element("tbody");
  for (const from of names) {
    const cells = names.map((to) => heatCell(from, to, paths.get(from)?.get(to)));
    body.appendChild(element("tr")).append(headCell("row", from), ...cells);
  }
  byId("heat").className = names.length >= UPRIGHT ? "upright" : "";
  byId("heat").replaceChildren(head, body);
  markCut();
}

function routeItem(route) {
  const item = element("li");
  const way = (relays) => [...relays, route.to].join(" → ");
  const head = item.appendChild(element("p"));
  head.append(element("strong", route.forward), ` to ${route.to}`);
  const found = route.choice.length > 0;
  if (found) item.append(element("p", `${way(route.choice)}, first byte after ${inMs(route.first_byte_ms)}, for ${time(route.since_s)}`));
  // Without a route it says that there is none.
  const why = item.appendChild(element("p", undefined, found ? "note" : "warn"));
  why.append(...prose(route.why));
  for (const other of route.others) {
    item.append(element("p", `else ${way(other.relays)}, ${inMs(other.first_byte_ms)}`, "note"));
  }
  return item;
}

function showRoutes(mesh) {
  show("routes-section", mesh.routes.length > 0);
  byId("routes").replaceChildren(...mesh.routes.map(routeItem));
}

function showMembers(mesh) {
  show("members-section", true);
  const members = mesh.members.slice(0, SHOWN);
  note("members-note", members.length, mesh.members.length);
  fill("members",
    [["member"], ["state"], ["round trip", true], ["smoothed", true], ["lost", true], ["row", true], ["ready", true], ["sessions", true], ["sent", true], ["received", true], ["site"], ["cloud"]],
    members.map((m) => [
      m.name, STATES[m.state] ?? [m.state, ""], inMs(m.rtt_ms), inMs(m.smoothed_ms), known(m.loss) ? percent(m.loss) : "",
      known(m.row_age_s) ? `${time(m.row_age_s)} old` : "none", String(m.pool_ready), String(m.sessions), bytes(m.sent), bytes(m.received),
      m.site ?? "", m.cloud ?? "",
    ]), "none");
}

function showMesh(mesh) {
  showHeat(mesh);
  showRoutes(mesh);
  showMembers(mesh);
}

follow("mesh.json", EVERY_MESH, (mesh) => {
  if (mesh) showMesh(mesh);
  else for (const id of ["heat-section", "routes-section", "members-section"]) show(id, false);
  show("mesh-lost", false);
}, (why) => {
  byId("mesh-lost").textContent = `The state of the mesh below is old, or missing: ${why}`;
  show("mesh-lost", true);
});
