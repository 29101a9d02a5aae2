"use strict";
// Draws a live flight as the server tells it, and sends what is pressed. All words are put in as text.

const $ = id => document.getElementById(id);
const FLIGHT_MS = 100, PICTURE_MS = 50, PATH_MAX = 1500;
const WAYPOINTS = [[1.5, -1, 2], [2.5, 1, 1.3], [10.5, 1, 1.3], [11.5, 3, 1.6], [11.5, 0, 1.6]];
// The wall as it stands: east, southern and northern end, height; the door's middle, width and height.
const WALL = { east: 8.2, south: -6.25, north: 8.75, height: 4, door: 1.75, width: 1.4, top: 2.2 };
const colour = name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

let facts = null, flight = null, path = [], number = 0;
let turn = 0.6, rise = 0.5, isMoved = {};

const press = async order => {
  try {
    await ask("/press", { method: "POST", body: JSON.stringify(order) });
    $("pressed").textContent = "";
  } catch (error) {
    $("pressed").textContent = "not done: " + error.message;
  }
};

// Sharp on every screen: as many dots as the canvas has on it.
const sheet = (id, height) => {
  const canvas = $(id), width = canvas.clientWidth || canvas.width;
  const dots = devicePixelRatio || 1, wanted = [Math.round(width * dots), Math.round(height(width) * dots)];
  if (canvas.width !== wanted[0] || canvas.height !== wanted[1]) [canvas.width, canvas.height] = wanted;
  const paper = canvas.getContext("2d");
  paper.setTransform(dots, 0, 0, dots, 0, 0);
  paper.clearRect(0, 0, width, height(width));
  paper.font = "12px system-ui, sans-serif";
  return [paper, width, height(width)];
};

const drawHorizon = () => {
  const [paper, width, height] = sheet("horizon", width => width * 0.75);
  const degree = height / 60, roll = flight.roll, pitch = flight.pitch * 180 / Math.PI;
  paper.save();
  paper.translate(width / 2, height / 2);
  paper.rotate(-roll);
  paper.translate(0, pitch * degree);
  paper.fillStyle = "#3f7fbf";
  paper.fillRect(-width, -3 * height, 2 * width, 3 * height);
  paper.fillStyle = "#8a6a3a";
  paper.fillRect(-width, 0, 2 * width, 3 * height);
  paper.strokeStyle = paper.fillStyle = "#fff";
  paper.beginPath();
  paper.moveTo(-width, 0);
  paper.lineTo(width, 0);
  for (const step of [-20, -10, 10, 20]) {
    paper.moveTo(-30, -step * degree);
    paper.lineTo(30, -step * degree);
    paper.fillText(Math.abs(step), 34, 4 - step * degree);
  }
  paper.stroke();
  paper.restore();
  paper.strokeStyle = "#ffd23f";
  paper.lineWidth = 3;
  paper.beginPath();
  paper.moveTo(width / 2 - 50, height / 2);
  paper.lineTo(width / 2 - 18, height / 2);
  paper.lineTo(width / 2, height / 2 + 10);
  paper.lineTo(width / 2 + 18, height / 2);
  paper.lineTo(width / 2 + 50, height / 2);
  paper.stroke();
  const degrees = value => (value * 180 / Math.PI).toFixed(1) + "°";
  const heading = (90 - flight.heading * 180 / Math.PI + 360) % 360;
  const speed = Math.hypot(...flight.velocity);
  const lines = [`roll ${degrees(roll)}`, `nose ${pitch.toFixed(1)}°`, `heading ${heading.toFixed(0)}°`];
  const others = [`height ${flight.place[2].toFixed(1)} m`, `${speed.toFixed(1)} m/s`, `${flight.volts.toFixed(1)} V`];
  paper.fillStyle = "#fff";
  lines.forEach((line, index) => paper.fillText(line, 6, 14 + 15 * index));
  paper.textAlign = "right";
  others.forEach((line, index) => paper.fillText(line, width - 6, 14 + 15 * index));
  paper.textAlign = "left";
};

const drawSpace = () => {
  const [paper, width, height] = sheet("space", width => Math.max(260, Math.min(width * 0.55, 420)));
  const projected = ([x, y, z]) => {
    const [east, north] = [x - 6, y - 1];
    const across = east * Math.cos(turn) + north * Math.sin(turn), away = north * Math.cos(turn) - east * Math.sin(turn);
    return [across, -(away * Math.sin(rise) + (z - 1) * Math.cos(rise))];
  };
  const scale = Math.min(width / 18, height / 11);
  const place = point => {
    const [x, y] = projected(point);
    return [width / 2 + x * scale, height / 2 + y * scale];
  };
  const line = (points, ink, thick = 1) => {
    paper.strokeStyle = ink;
    paper.lineWidth = thick;
    paper.beginPath();
    points.forEach((point, index) => (index ? paper.lineTo(...place(point)) : paper.moveTo(...place(point))));
    paper.stroke();
  };
  const dot = (point, ink, size) => {
    paper.strokeStyle = ink;
    paper.beginPath();
    paper.arc(...place(point), size, 0, 7);
    paper.stroke();
  };
  for (let east = -1; east <= 13; east++) line([[east, -3, 0], [east, 5, 0]], colour("line"));
  for (let north = -3; north <= 5; north++) line([[-1, north, 0], [13, north, 0]], colour("line"));
  const { east, door, width: wide, top } = WALL, [south, north] = [Math.max(WALL.south, -3), Math.min(WALL.north, 5)];
  const frame = [[east, south, 0], [east, south, 2.8], [east, north, 2.8], [east, north, 0], [east, door + wide / 2, 0],
    [east, door + wide / 2, top], [east, door - wide / 2, top], [east, door - wide / 2, 0], [east, south, 0]];
  paper.fillStyle = colour("soft");
  paper.globalAlpha = 0.16;
  paper.beginPath();
  frame.forEach((point, index) => (index ? paper.lineTo(...place(point)) : paper.moveTo(...place(point))));
  paper.fill();
  paper.globalAlpha = 1;
  line(frame, colour("soft"));
  for (const point of WAYPOINTS) {
    line([[point[0], point[1], 0], point], colour("line"));
    dot(point, colour("soft"), 5);
  }
  line(path, colour("mark"), 1.5);
  if (flight.target) dot(flight.target, colour("good"), 4);
  const [x, y, z] = flight.place;
  line([[x, y, 0], [x, y, z]], colour("soft"));
  // Arms of the craft, by its attitude: heading, pitch and roll, small angles.
  const [ch, sh] = [Math.cos(flight.heading), Math.sin(flight.heading)];
  const arm = (ahead, left) => [x + ahead * ch - left * sh, y + ahead * sh + left * ch,
    z + ahead * Math.sin(flight.pitch) + left * Math.sin(flight.roll)];
  const ink = flight.alarms.length ? colour("bad") : colour("text");
  for (const side of [1, -1]) line([arm(0.35, 0.35 * side), arm(-0.35, -0.35 * side)], ink, 3);
  for (const [ahead, left] of [[1, 1], [1, -1], [-1, 1], [-1, -1]]) dot(arm(0.35 * ahead, 0.35 * left), ink, 0.2 * scale);
};

const drawLoops = () => {
  const [paper, width, height] = sheet("loops", () => 132);
  const left = 74, right = width - 8, span = 40000, at = us => left + (us / span) * (right - left);
  paper.fillStyle = colour("soft");
  const shown = flight.loops.filter(loop => loop.last);
  if (!shown.length) {
    paper.fillText(flight.loops.length ? "jobs in a guest are counted there: see below" : "no jobs", left, 40);
  }
  shown.forEach((loop, index) => {
    const top = 8 + 34 * index;
    paper.fillStyle = colour("text");
    paper.fillText(loop.name, 4, top + 16);
    for (const [release, begin, end, met] of loop.last) {
      paper.fillStyle = colour("line");
      paper.fillRect(at(release), top + 20, 1, 6);
      paper.fillStyle = met ? colour("good") : colour("bad");
      paper.fillRect(at(Math.max(begin, 0)), top, Math.max(1.5, at(end) - at(Math.max(begin, 0))), 20);
    }
  });
  paper.fillStyle = colour("soft");
  for (let ms = 0; ms <= 40; ms += 10) paper.fillText(ms + " ms", Math.min(at(ms * 1000), right - 34), height - 8);
  const table = document.createElement("table");
  const row = (cells, name) => {
    const line = table.insertRow();
    for (const cell of cells) line.append(Object.assign(document.createElement(name), { textContent: cell }));
    line.firstChild.className = "text";
  };
  row(["loop", "jobs", "deadlines missed"], "th");
  for (const loop of flight.loops) row([`${loop.name}, ${1e6 / loop.period_us} Hz`, loop.jobs, loop.missed], "td");
  $("deadlines").replaceChildren(table);
};

// Frames of the remote control, which are no more than 20 ms apart.
const showRemote = () => {
  const remote = flight.remote;
  $("network").hidden = $("kill-control").hidden = !remote;
  if (!remote) return;
  const ms = us => (us / 1000).toFixed(1) + " ms";
  const silent = remote.silent_ms > 500 ? `, none for ${(remote.silent_ms / 1000).toFixed(1)} s` : "";
  $("remote").textContent = `${remote.received} frames received, ${remote.lost} lost${silent}; age ${ms(remote.age_us)}`
    + ` (oldest lately ${ms(remote.age_us_max)}). The control process of the craft's interface ${remote.control}.`;
  $("remote").className = silent ? "bad" : "";
};

const show = () => {
  const alarms = flight.alarms.length ? "; " + flight.alarms.join(", ") : "";
  const by = flight.is_by_door ? "; finds its place by the door" : "";
  $("state").textContent = `flight ${flight.flight}, ${flight.at.toFixed(1)} s, laps ${flight.laps}`
    + (flight.monitor ? ", " + flight.monitor : "");
  $("phase").textContent = flight.ended ? flight.ended + "; the next flight begins" : flight.phase + alarms + by;
  $("phase").className = flight.alarms.length || /crashed/.test(flight.ended || "") ? "bad" : "";
  for (const [id, value] of [["load", flight.level], ["gusts", flight.gusts]])
    if (!isMoved[id] || Date.now() - isMoved[id] > 3000) $(id).value = value;
  $("load-name").textContent = facts.levels.slice(0, flight.level + 1).slice(flight.level ? 1 : 0).join(" ");
  $("gusts-name").textContent = flight.gusts.toFixed(1) + " m/s";
  $("events").replaceChildren(...flight.events.map(event => Object.assign(document.createElement("li"),
    { textContent: (event.at ? event.at.toFixed(1) + " s: " : "") + event.text })));
  drawHorizon();
  drawSpace();
  drawLoops();
  showRemote();
};

const start = async () => {
  facts = await (await ask("/facts.json")).json();
  $("variant").textContent = facts.variant;
  $("controller").textContent = facts.controller;
  $("load").max = facts.levels.length - 1;
  $("gusts").max = facts.gusts_max;
  look();
};

const follow = async () => {
  try {
    if (!facts) await start();
    const told = await (await ask("/flight.json")).json();
    if (told.place) {
      if (told.flight !== number) [path, number] = [[], told.flight];
      flight = told;
      if (told.at > 0) path.push(told.place);
      if (path.length > PATH_MAX) path.shift();
      show();
    }
  } catch (error) {
    $("state").textContent = "no answer: " + error.message;
  }
  setTimeout(follow, FLIGHT_MS);
};

let lastPicture = null;
const look = async () => {
  try {
    const bytes = await (await ask("/picture")).arrayBuffer();
    const count = bytes.byteLength > 4 ? new DataView(bytes).getUint32(0, true) : null;
    if (count !== null && count !== lastPicture) {
      lastPicture = count;
      const grey = new Uint8Array(bytes, 4), canvas = $("picture");
      const image = new ImageData(canvas.width, canvas.height);
      for (let index = 0; index < grey.length; index++) {
        image.data.fill(grey[index], 4 * index, 4 * index + 3);
        image.data[4 * index + 3] = 255;
      }
      canvas.getContext("2d").putImageData(image, 0, 0);
      canvas.dataset.count = count;
    }
  } catch (error) {
    // The line above tells it.
  }
  setTimeout(look, PICTURE_MS);
};

for (const button of document.querySelectorAll("button"))
  button.addEventListener("click", () => press(JSON.parse(button.dataset.press)));
for (const id of ["load", "gusts"])
  $(id).addEventListener("input", () => {
    isMoved[id] = Date.now();
    press({ [id]: Number($(id).value) });
  });
$("space").addEventListener("pointermove", event => {
  if (!event.buttons) return;
  turn += event.movementX / 200;
  rise = Math.min(1.5, Math.max(0.05, rise + event.movementY / 200));
});

follow();
