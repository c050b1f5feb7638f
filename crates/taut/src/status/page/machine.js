// This machine, as /machine.json says it every two seconds: its connections by what limits them, and its jobs.
// As in page.js, names and addresses are only ever set as text.
"use strict";

// Factor.trouble: 3 does not work, 2 is slow for a reason that can be mended.
const TROUBLE = ["", "", "warn", "bad"];
const TAP_STATES = { on: "good", draining: "warn", off: "warn", unfit: "bad" };

const perSecond = (value) => value >= 1 ? rate(value) : "";

function machineInWords({ connections, jobs }) {
  const words = [many(connections.open, "connection"), `${connections.busy} active`];
  if (connections.slow.count > 0) words.push(`${connections.slow.count} slow for a reason that can be mended`);
  if (connections.broken.count > 0) words.push(`${connections.broken.count} not working`);
  words.push(many(jobs.length, "job"));
  return words.join(" · ");
}

function showNext({ next }) {
  show("next", true);
  byId("next").replaceChildren("Next: ", element("code", next.command), " – ", ...prose(next.what));
}

function showFactors(limits) {
  fill("factors",
    [["what limits them"], ["connections", true], ["sent", true], ["received", true], ["a connection"]],
    limits.factors.map((f) => [
      [f.factor, TROUBLE[f.trouble]], String(f.count), perSecond(f.rates.sent), perSecond(f.rates.received), [f.words, "words"],
    ]), "no connection");
}

function owner(connection) {
  if (!connection.process) return "unknown";
  const container = connection.container ? ` in ${connection.container}` : "";
  return `${connection.process} (${connection.pid})${container}`;
}

function showTop(limits) {
  for (const id of ["top-title", "top-section"]) show(id, limits.top.length > 0);
  fill("top",
    [["process"], ["peer"], ["sent", true], ["received", true], ["what limits it"]],
    limits.top.map((c) => [
      owner(c), c.peer, c.rates ? perSecond(c.rates.sent) : "", c.rates ? perSecond(c.rates.received) : "",
      [c.evidence ? `${c.words}: ${c.evidence}` : c.words, `words ${TROUBLE[c.trouble]}`, c.remedy],
    ]), "none");
}

function showJobs(jobs) {
  // A job that is not asked how it is says only its pid.
  const state = (job) => job.state === `pid ${job.pid}` ? "runs" : job.state;
  fill("jobs", [["job"], ["pid", true], ["state"]],
    jobs.map((job) => [job.name, known(job.pid) ? String(job.pid) : "", [state(job), job.well ? "words" : "words bad"]]),
    "None of Taut's runs here.");
}

function showTheRelay(data) {
  show("relay-section", known(data));
  if (!data) return;
  byId("relay-title").textContent = data.relay.name ? `Relay ${data.relay.name}` : "Relay";
  byId("relay-note").textContent = relayInWords(data.relay);
  showRelay(data);
}

function showTaps(taps) {
  show("taps-section", known(taps));
  fill("taps",
    [["tap"], ["state"], ["flows", true], ["not yet acknowledged by the guest", true], ["retransmitted", true], ["flows that lost data", true], ["why"]],
    (taps ?? []).map((t) => [
      t.tap, [t.state, TAP_STATES[t.state] ?? ""], String(t.flows), bytes(t.exposure), many(t.retransmitted, "segment"),
      [String(t.lost), t.lost > 0 ? "bad" : ""], [t.why ?? "", "words"],
    ]), "no tap");
}

function showTune(changes) {
  show("tune-section", known(changes));
  fill("tune", [["process"], ["peer"], ["the last change"]],
    (changes ?? []).map((c) => [c.process ?? "unknown", c.peer, [c.what, "words"]]), "No open connection has been changed.");
}

function showGuest(text) {
  show("guest-section", known(text));
  byId("guest").textContent = text ?? "";
}

function showUnseen({ unseen }) {
  show("unseen", known(unseen));
  byId("unseen").textContent = unseen ?? "";
}

follow("machine.json", 2000, (data) => {
  entitle(`Taut on ${data.host}`);
  summarize(machineInWords(data.status), false);
  showNext(data.status);
  showUnseen(data.status.connections);
  showFactors(data.limits);
  showTop(data.limits);
  showJobs(data.status.jobs);
  showTheRelay(data.relay);
  showTaps(data.taps);
  showTune(data.tune);
  showGuest(data.guest);
}, (why) => summarize(`taut status --serve does not answer: ${why}`, true));
