"use strict";
// Draws what the server says, once a second. All of it is put in as text: names are anybody's to choose.

const $ = id => document.getElementById(id);
const INTERVAL_MS = 1000, HISTORY = 300, SPAN_MIN = 60;

const element = (name, text, attributes = {}) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};
const svg = (name, attributes = {}, text) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
};

const time = ns => {
  if (ns === null || ns === undefined) return "";
  const [value, unit] = ns < 1e3 ? [ns, "ns"] : ns < 1e6 ? [ns / 1e3, "µs"] : ns < 1e9 ? [ns / 1e6, "ms"] : [ns / 1e9, "s"];
  // Not broken between value and unit.
  return (unit === "ns" ? value : value.toPrecision(3)) + "\u00a0" + unit;
};
const number = value => {
  if (value === null || value === undefined) return "";
  if (value < 10000) return String(Math.round(value));
  for (const [size, unit] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (value >= size) return (value / size).toPrecision(3) + unit;
  return String(value);
};

const table = (columns, rows, kind) => {
  const made = element("table", undefined, { class: kind || "lines" });
  const head = made.appendChild(element("thead")).appendChild(element("tr"));
  for (const [title, , isText] of columns) head.append(element("th", title, isText ? { class: "text" } : {}));
  const body = made.appendChild(element("tbody"));
  for (const row of rows) {
    const line = body.appendChild(element("tr", undefined, { class: row.class || "" }));
    for (const [title, cell, isText] of columns) {
      const value = cell(row);
      const at = element("td", undefined, { class: (isText ? "text" : "") + (value === "" ? " empty" : "") });
      if (!isText) at.dataset.label = title;
      at.append(value);
      line.append(at);
    }
  }
  return made;
};

const key = row => "#" + new URLSearchParams({ kind: row.key.kind, place: row.key.place, number: row.key.number });
const name = row => {
  if (!["port", "udp-port", "raw-port"].includes(row.key.kind)) return row.name;
  return element("a", row.name, { href: key(row) });
};
const COLUMNS = [
  ["kind", row => row.key.kind, true],
  ["name", name, true],
  ["PID", row => row.process === null ? "" : String(row.process)],
  ["msg/s", row => number(row.per_second)],
  ["B/s", row => number(row.bytes_per_second)],
  ["age", row => time(row.age_ns)],
  ["p50", row => time(row.recent.p50_ns)],
  ["p99", row => time(row.recent.p99_ns)],
  ["max", row => time(row.recent.max_ns)],
  ["lost", row => number(row.lost)],
  ["full", row => number(row.full)],
  ["refused", row => number(row.refused)],
  ["state", row => row.state || (row.valid === false ? "value not valid" : ""), true],
];

let overview = null;

const drawOverview = () => {
  const look = overview;
  const wanted = $("filter").value.toLowerCase();
  const rows = look.rows.filter(row => (row.key.kind + " " + row.name + " " + row.process).toLowerCase().includes(wanted));
  for (const row of rows)
    row.class = (row.grows || row.valid === false ? "bad " : "") + (row.key.kind === "node" ? "node" : "");
  $("rows").replaceChildren(rows.length ? table(COLUMNS, rows) : element("p", "nothing to see, or none for this user"));
  if (look.rows_left_out) $("rows").append(element("p", look.rows_left_out + " more lines are left out"));
  $("state").textContent = look.rows.length + " lines" + (look.silent.length ? ", no answer: " + look.silent.join(", ") : "");
  drawLinks(look);
  drawTasks(look);
  $("partitions-section").hidden = !look.partitions.length;
  $("partitions").replaceChildren(table([
    ["name", one => one.name, true], ["CPUs", one => one.cpus], ["form", one => one.form || "is being made", true],
    ["processes", one => one.processes.join(", ") || "none"]], look.partitions));
  $("lab-section").hidden = look.lab === null;
  if (look.lab) {
    const lines = look.lab.error ? [look.lab.error] : look.lab.sentences || ["the run has no verdict"];
    $("lab").replaceChildren(element("p", look.lab.label || "", { class: "soft" }), ...lines.map(line => element("p", line)));
  }
};

// Nodes stand on the left, those whom only their peers tell of on the right; a line for each pair, however many ports.
const drawLinks = look => {
  const nodes = look.rows.filter(row => row.key.kind === "node");
  $("drawing-section").hidden = !nodes.length;
  const width = Math.min(Math.max($("drawing").clientWidth, 280), 760), box = Math.min(width * 0.4, 280), right = width - box - 1;
  const places = new Map(nodes.map((row, index) => [row.key.place, { x: 1, y: 4 + 46 * index, name: row.name }]));
  const others = new Map();
  for (const link of look.links)
    if (!link.from && !others.has(link.from_name))
      others.set(link.from_name, { x: right, y: 4 + 46 * others.size, name: link.from_name });
  const height = 4 + 46 * Math.max(nodes.length, others.size, 1);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "nodes and who talks to whom" });
  picture.style.maxWidth = width + "px";
  const pairs = new Map();
  for (const link of look.links) {
    const from = link.from ? places.get(link.from) : others.get(link.from_name), to = places.get(link.to);
    if (!from || !to) continue;
    const id = (link.from || link.from_name) + " " + link.to;
    const pair = pairs.get(id) || { from, to, lost: 0, ports: [] };
    pair.lost += link.lost;
    pair.ports.push(`${link.from_name}:${link.from_port} → ${link.to_port}, ${link.received} received, ${link.lost} lost`);
    pairs.set(id, pair);
  }
  for (const { from, to, lost, ports } of pairs.values()) {
    const [y1, y2, end] = [from.y + 17, to.y + 17, box + 1], gap = right - end;
    const [x1, bend] = from.x === to.x ? [end, end + Math.min(gap, 24 + Math.abs(y2 - y1) / 2)] : [right, end + gap / 2];
    const line = svg("path", { d: `M${x1} ${y1} C${bend} ${y1} ${bend} ${y2} ${end + 7} ${y2}`, class: lost ? "link bad" : "link" });
    line.append(svg("title", {}, ports.join("\n")));
    picture.append(line, svg("path", { d: `M${end} ${y2}l9 -4v8z`, class: lost ? "arrow bad" : "arrow" }));
  }
  for (const { x, y, name } of [...places.values(), ...others.values()]) {
    picture.append(svg("rect", { x, y, width: box, height: 34, rx: 5, class: "box" }));
    const fits = Math.floor((box - 16) / 7);
    const label = svg("text", { x: x + 8, y: y + 22, class: "name" }, name.length > fits ? name.slice(0, fits - 1) + "…" : name);
    label.append(svg("title", {}, name));
    picture.append(label);
  }
  $("drawing").replaceChildren(picture);
};

const drawTasks = look => {
  $("tasks-section").hidden = !look.tasks.length;
  const jobs = task => {
    const made = element("div", undefined, { class: "jobs" });
    const longest = Math.max(task.deadline_ns, ...task.jobs.map(job => job.response_ns));
    for (const job of task.jobs) {
      const bar = element("i", undefined, { title: time(job.response_ns) + " of " + time(task.deadline_ns), class: job.met ? "" : "missed" });
      bar.style.height = Math.max(6, 100 * job.response_ns / longest) + "%";
      made.append(bar);
    }
    return made;
  };
  $("tasks").replaceChildren(table([
    ["task", task => task.task + " of " + task.run, true], ["deadline", task => time(task.deadline_ns)],
    ["missed", task => number(task.missed)], ["state", task => task.state, true], ["last jobs", jobs, true]], look.tasks));
};

// A plot with the values under the pointer.
class Plot {
  constructor(title, series, format) {
    Object.assign(this, { series, format, values: [], at: null });
    this.box = element("div", undefined, { class: "plot" });
    this.legend = element("p");
    this.picture = svg("svg", { viewBox: "0 0 420 150" });
    this.box.append(element("h3", title), this.legend, this.picture);
    this.picture.addEventListener("pointermove", event => {
      const box = this.picture.getBoundingClientRect();
      this.at = (event.clientX - box.left) / box.width * 420;
      this.draw();
    });
    this.picture.addEventListener("pointerleave", () => { this.at = null; this.draw(); });
  }
  add(values) {
    this.values.push(values);
    if (this.values.length > HISTORY) this.values.shift();
    this.draw();
  }
  // Seconds from the left edge to now: as many as there are values, within bounds.
  get span() { return Math.min(Math.max(this.values.length - 1, SPAN_MIN), HISTORY - 1); }
  draw() {
    const all = this.values.flat().filter(value => value !== null && value !== undefined);
    const top = Math.max(...all, 0) * 1.1 || 1;
    const x = index => 420 - (this.values.length - 1 - index) * 420 / this.span, y = value => 130 - 120 * value / top;
    this.picture.replaceChildren(svg("line", { x1: 0, x2: 420, y1: 130, y2: 130, class: "axis" }), svg("text", { x: 2, y: 12 }, all.length ? this.format(top) : "nothing measured yet"),
      svg("text", { x: 2, y: 146 }, `${this.span} s ago`), svg("text", { x: 418, y: 146, "text-anchor": "end" }, "now"));
    this.series.forEach((_, place) => {
      let path = "", pen = false;
      this.values.forEach((values, index) => {
        const value = values[place];
        if (value === null || value === undefined) { pen = false; return; }
        path += (pen ? "L" : "M") + x(index).toFixed(1) + " " + y(value).toFixed(1);
        pen = true;
      });
      this.picture.append(svg("path", { d: path, class: "s" + place }));
    });
    let index = this.values.length - 1, when = "";
    if (this.at !== null) {
      index = Math.min(Math.max(Math.round(this.values.length - 1 - (420 - this.at) * this.span / 420), 0), this.values.length - 1);
      this.picture.append(svg("line", { x1: x(index), x2: x(index), y1: 0, y2: 130, class: "cursor" }));
      when = ` ${this.values.length - 1 - index} s ago`;
    }
    this.legend.replaceChildren(...this.series.map((title, place) => {
      const value = (this.values[index] || [])[place];
      return element("span", `${title} ${value === null || value === undefined ? "–" : this.format(value)}  `, { class: `s${place}t` });
    }), element("span", when, { class: "soft" }));
  }
}

let shown = null;

const showPort = hash => {
  if (shown && shown.hash === hash) return shown;
  const plots = [
    new Plot("Latency, arrival to read", ["p50", "p99", "max"], time), new Plot("Rate", ["messages/s", "kB/s"], number),
    new Plot("Lost, full, refused", ["lost", "full", "refused"], number), new Plot("Age", ["age"], time)];
  $("plots").replaceChildren(...plots.map(plot => plot.box));
  shown = { hash, plots };
  return shown;
};

const drawPort = (hash, port) => {
  const { plots } = showPort(hash), { row } = port;
  $("port-name").textContent = `${row.key.kind} ${row.name}, process ${row.process}`;
  $("port-state").textContent = [row.valid === false ? "its value is not valid" : "", port.said.value || ""].filter(Boolean).join(": ");
  plots[0].add([row.recent.p50_ns, row.recent.p99_ns, row.recent.max_ns]);
  plots[1].add([row.per_second, row.bytes_per_second === null ? null : row.bytes_per_second / 1000]);
  plots[2].add([row.lost, row.full, row.refused]);
  plots[3].add([row.age_ns]);
  $("peers").replaceChildren(table([
    ["peer", peer => peer.name + " port " + peer.port, true], ["received", peer => String(peer.received)],
    ["lost", peer => String(peer.lost)], ["twice", peer => String(peer.duplicates)], ["restarts", peer => String(peer.restarts)]], port.peers));
  const said = Object.entries(port.said).filter(([key]) => key !== "peers" && key !== "latency");
  const lines = table([["figure", ([key]) => key, true], ["value", ([, value]) => value === null ? "–" : typeof value === "object" ? JSON.stringify(value) : String(value), true]], said, "said");
  [...lines.tBodies[0].rows].forEach((line, index) => line.lastChild.setAttribute("data-figure", said[index][0]));
  $("said").replaceChildren(lines);
};

// As `taut status --fleet` says it.
const presence = ({ presence, report }) => {
  if (presence === "alive") return report ? report.state : "no report yet";
  return presence === "silent" && report ? "silent, was " + report.state : presence;
};
const fleetNotes = fleet => [
  fleet.connections ? "" : "not connected to any router or peer of Zenoh",
  ...[["malformed", "reports could not be read"], ["crowded_out", "gateways found no room in the table"],
    ["unannounced", "reports came from gateways that are not there"]].map(([count, words]) => fleet[count] ? fleet[count] + " " + words : ""),
].filter(Boolean);
const FLEET = [
  ["cell", cell => cell.prefix, true],
  ["gateway", cell => cell.gateway, true],
  ["state", presence, true],
  ["age", cell => time(cell.age_ms * 1e6)],
  ...["nodes", "ports", "sent", "received", "lost", "full", "refused", "tasks", "missed", "dropped"].map(
    figure => [figure, cell => cell.report ? number(cell.report.totals[figure]) : ""]),
];
// A line of its own: a verdict without its limit, subject and time would say too much.
const verdictOf = ({ prefix, gateway, report }) => {
  const verdict = report && report.verdict;
  if (!verdict) return "";
  const cell = prefix + " by " + gateway + ": ";
  if (verdict.error !== undefined) return cell + "no verdict of the lab: " + verdict.error;
  const at = new Date(verdict.started_unix_s * 1000);
  const measured = !verdict.started_unix_s || isNaN(at) ? "at an unknown time" : at.toISOString().slice(0, 16).replace("T", " ") + " UTC";
  return cell + `verdict of ${verdict.label}: ${verdict.class} (${time(verdict.deadline_ns)}) ${verdict.words} (${verdict.subject})`
    + (verdict.max_ns === null ? "" : `; ${verdict.state}, worst wake-up ${time(verdict.max_ns)}`)
    + (verdict.outcome === "held" ? `, ${verdict.strength} evidence` : "")
    + `; LinuxCNC grade: ${verdict.linuxcnc_grade}; ${measured}, Linux ${verdict.kernel}`
    + (verdict.kernel === verdict.kernel_now ? "" : `, but ${verdict.kernel_now} runs now`);
};
const drawFleet = fleet => {
  $("fleet-section").hidden = fleet === null;
  if (fleet === null) return;
  if (fleet.error) return $("fleet").replaceChildren(element("p", fleet.error));
  for (const cell of fleet.cells) cell.class = cell.presence === "alive" ? "" : "bad";
  $("fleet").replaceChildren(...fleetNotes(fleet).map(note => element("p", note)),
    fleet.cells.length ? table(FLEET, fleet.cells) : element("p", "no gateway of this fleet is connected"),
    ...fleet.cells.map(verdictOf).filter(Boolean).map(line => element("p", line, { class: "verdict" })));
};

const fetched = async path => (await ask(path)).json();

const update = async () => {
  const hash = location.hash, isPort = hash.length > 1;
  $("port").hidden = !isPort;
  $("overview").hidden = isPort;
  if (isPort) showPort(hash);
  try {
    if (isPort) {
      const port = await fetched("/port.json?" + hash.slice(1));
      if (location.hash === hash) drawPort(hash, port);
      $("state").textContent = "latencies are measured while this page is open";
    } else {
      overview = await fetched("/look.json");
      drawOverview();
      drawFleet(await fetched("/fleet.json"));
    }
    document.body.dataset.drawn = "yes";
  } catch (error) {
    $("state").textContent = "no answer: " + error.message;
  }
};

const again = async () => { await update(); setTimeout(again, INTERVAL_MS); };
addEventListener("hashchange", update);
$("filter").addEventListener("input", () => overview && drawOverview());
again();
