// A relay: what is broken, its forwards, next relays and sessions. As in page.js, names and addresses are only ever
// set as text.
"use strict";

// What showRelay was called with before, for rates.
let before = null;

// The bytes a second since the last answer, of the entry with the same name.
function speed(entry, list, key, seconds) {
  const former = before && before.relay[list].find((other) => other.name === entry.name);
  if (!former || seconds <= 0 || entry[key] < former[key]) return "";
  return rate((entry[key] - former[key]) / seconds);
}

function brokenItem(broken) {
  const [subject, cause] = [broken.subject && ` ${broken.subject}`, broken.cause.replaceAll("_", " ")];
  // A relay of an earlier version has no message.
  const message = broken.message || `${broken.condition.replaceAll("_", " ")}${subject}: ${cause}, ${broken.affected} affected`;
  const item = element("li");
  item.append(...prose(message), element("small", `for ${time(broken.seconds)}`));
  return item;
}

function showBroken(relay) {
  show("broken-section", relay.broken.length > 0);
  byId("broken").replaceChildren(...relay.broken.map(brokenItem));
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

// The relay in a line.
function relayInWords(relay) {
  const words = [`version ${relay.version}`, `up ${time(relay.uptime)}`, `${many(relay.sessions, "session")} of at most ${relay.max_sessions}`];
  if (relay.draining) words.unshift("draining");
  return words.join(" · ");
}

function showRelay(data) {
  const { relay } = data;
  const seconds = before ? (data.at - before.at) : 0;
  showBroken(relay);
  showForwards(relay, seconds);
  showAddresses(relay);
  showPeers(relay, seconds);
  showSessions(data);
  before = data;
}
