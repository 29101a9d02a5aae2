"use strict";
// Makes the plots of a page answer: values under the pointer, series and percentiles on and off, data to keep. All that
// it shows lies in the page. Names are put in as text, never as markup.

const rounded = (value, digits) => String(Number(value.toPrecision(digits)));
const scaled = (value, steps) => {
  const [size, unit] = steps.find(([size]) => Math.abs(value) >= size * 0.9995) || steps[steps.length - 1];
  return rounded(value / size, 3) + " " + unit;
};
const FORMATS = {
  ns: value => value === 0 ? "0" : scaled(value, [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]),
  "bit/s": value => scaled(value, [[1e9, "Gbit/s"], [1e6, "Mbit/s"], [1e3, "kbit/s"], [1, "bit/s"]]),
  share: value => value >= 0.01 || value === 0 ? rounded(100 * value, 4) + " %"
    : "1 in " + Math.round(1 / value).toLocaleString("en"),
  "": value => rounded(value, 4),
};
const text = (value, unit) => (FORMATS[unit] || (value => rounded(value, 4) + " " + unit))(value);

const made = (name, content, attributes = {}) => {
  const element = document.createElement(name);
  if (content !== undefined) element.textContent = content;
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  return element;
};

// Of a list that rises, the place of the last value that is not above the one wanted; -1 if all are.
const lastNotAbove = (points, wanted) => {
  let [from, to] = [0, points.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if (points[middle][0] <= wanted) from = middle + 1; else to = middle;
  }
  return from - 1;
};

// What the pointer at a place of an area shows: a heading, a line for each series, and where the cursor goes.
const KINDS = {
  // Lines through points: the nearest point of each.
  line(area, plot, shown, at) {
    const across = point => area.x(point[0]);
    const near = series => series.points.reduce((best, point) =>
      best === null || Math.abs(across(point) - at[0]) < Math.abs(across(best) - at[0]) ? point : best, null);
    const found = shown.map(series => [series, near(series)]).filter(([, point]) => point);
    if (!found.length) return null;
    const x = found.map(([, point]) => across(point)).reduce((best, one) =>
      Math.abs(one - at[0]) < Math.abs(best - at[0]) ? one : best);
    const lines = found.map(([series]) => [series, series.points.reduce((best, point) =>
      Math.abs(across(point) - x) < Math.abs(across(best) - x) ? point : best)])
      .filter(([, point]) => Math.abs(across(point) - x) < 12);
    return { x, head: text(lines[0][1][0], plot.columns[0].unit),
      lines: lines.map(([series, point]) => [series, text(point[1], plot.columns[1].unit)]) };
  },
  // Steps: the value that holds at the pointer.
  step(area, plot, shown, at) {
    const value = area.value(at[0]);
    const lines = shown.map(series => {
      const point = series.points[lastNotAbove(series.points, value)];
      return [series, point ? text(point[1], plot.columns[1].unit) : "–"];
    });
    return { x: at[0], head: text(value, plot.columns[0].unit), lines };
  },
  // Stretches in a row: the one at the pointer.
  spans(area, plot, shown, at) {
    const value = area.value(at[0]);
    const lines = shown.map(series => {
      const place = series.points.findIndex(([from, to]) => from <= value && value < to);
      if (place < 0) return [series, "–"];
      const [from, to] = series.points[place], unit = plot.columns[0].unit;
      const what = series.names ? series.names[place] + " " : "";
      return [series, `${what}${text(to - from, unit)}, from ${text(from, unit)} to ${text(to, unit)}`];
    });
    return { x: at[0], head: text(value, plot.columns[0].unit), lines };
  },
  // Cells of a grid.
  grid(area, plot, shown, at) {
    const cell = (place, from, to, count) => Math.min(Math.floor((place - from) / (to - from) * count), count - 1);
    const column = cell(at[0], area.left, area.right, plot.across.length);
    const row = cell(at[1], area.bottom, area.top, plot.up.length);
    const lines = shown.map(series => {
      const point = series.points.find(point => point[0] === column && point[1] === row);
      return [series, point ? text(point[2], plot.columns[2].unit) : "–"];
    });
    const [across, up] = plot.columns;
    return { head: `${across.label} ${plot.across[column]}, ${up.label} ${plot.up[row]}`, lines };
  },
  // Points in space: the nearest on the paper.
  space(area, plot, shown, at) {
    const [a, b, c, d, e, f, g, h] = area.map;
    const away = ([east, north, up]) =>
      Math.hypot(a * east + b * north + c * up + d - at[0], e * east + f * north + g * up + h - at[1]);
    const near = shown.map(series => [series, series.points.reduce((best, point) =>
      best === null || away(point) < away(best) ? point : best, null)])
      .filter(([, point]) => point && away(point) < 30);
    const place = point => plot.columns.map(({ label }, index) => `${label} ${rounded(point[index], 3)} m`).join(", ");
    return near.length ? { head: "", lines: near.map(([series, point]) => [series, place(point)]) } : null;
  },
};

const withScale = area => {
  const [from, to] = area.span || [0, 1];
  const place = value => area.logarithmic ? Math.log10(value) : value;
  area.x = value => area.left + (place(value) - from) / (to - from) * (area.right - area.left);
  area.value = x => {
    const value = from + (x - area.left) / (area.right - area.left) * (to - from);
    return area.logarithmic ? 10 ** value : value;
  };
  return area;
};

const live = figure => {
  const plot = JSON.parse(figure.dataset.plot);
  const off = new Set(plot.groups.filter(group => !group.on).map(group => group.name)), out = new Set();
  const tip = figure.appendChild(made("div", undefined, { class: "tip", hidden: "" }));
  const isShown = index => !out.has(plot.series[index].line) && !off.has(plot.series[index].group);
  const draw = () => {
    for (const element of figure.querySelectorAll("svg.plot [data-group]"))
      element.classList.toggle("off", off.has(element.dataset.group));
    for (const element of figure.querySelectorAll("svg.plot [data-line]"))
      element.classList.toggle("out", out.has(Number(element.dataset.line)));
  };

  for (const svg of figure.querySelectorAll("svg[data-areas]")) {
    const areas = JSON.parse(svg.dataset.areas).map(withScale), box = svg.viewBox.baseVal;
    const cursor = document.createElementNS(svg.namespaceURI, "line");
    cursor.setAttribute("class", "cursor off");
    svg.append(cursor);
    let last = [box.width / 2, areas.length ? (areas[0].top + areas[0].bottom) / 2 : 0];
    const hide = () => { tip.hidden = true; cursor.classList.add("off"); };
    const show = at => {
      last = at;
      const area = areas.find(area =>
        at[0] >= area.left - 4 && at[0] <= area.right + 4 && at[1] >= area.top && at[1] <= area.bottom);
      const shown = area && area.series.filter(isShown).map(index => plot.series[index]);
      const said = shown && shown.length ? KINDS[area.kind](area, plot, shown, at) : null;
      if (!said) return hide();
      cursor.classList.toggle("off", said.x === undefined);
      for (const [key, value] of Object.entries({ x1: said.x, x2: said.x, y1: area.top, y2: area.bottom }))
        if (value !== undefined) cursor.setAttribute(key, value);
      const lines = said.lines.map(([series, value]) => {
        const line = made("div"), name = series.group ? `${series.name} ${series.group}` : series.name;
        line.append(made("i", "", { style: `background:var(--s${series.line % 8})` }), made("span", name), made("b", value));
        return line;
      });
      tip.replaceChildren(...said.head ? [made("p", said.head)] : [], ...lines);
      tip.hidden = false;
      const outer = figure.getBoundingClientRect(), inner = svg.getBoundingClientRect();
      const x = inner.left - outer.left + (said.x === undefined ? at[0] : said.x) / box.width * inner.width;
      const y = inner.top - outer.top + at[1] / box.height * inner.height;
      const beside = x + 14 + tip.offsetWidth <= outer.width ? x + 14 : x - 14 - tip.offsetWidth;
      tip.style.left = Math.max(0, Math.min(beside, outer.width - tip.offsetWidth)) + "px";
      tip.style.top = Math.max(0, y - tip.offsetHeight - 8) + "px";
    };
    const place = event => {
      const inner = svg.getBoundingClientRect();
      return [(event.clientX - inner.left) / inner.width * box.width, (event.clientY - inner.top) / inner.height * box.height];
    };
    svg.addEventListener("pointermove", event => show(place(event)));
    svg.addEventListener("pointerdown", event => show(place(event)));
    svg.addEventListener("pointerleave", hide);
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!step) return;
      event.preventDefault();
      show([Math.min(Math.max(last[0] + step * box.width / 100, 0), box.width), last[1]]);
    });
    svg.setAttribute("tabindex", "0");
  }

  const switches = made("p", undefined, { class: "switches" });
  const button = (title, isOn, flip) => {
    const one = made("button", title, { type: "button", "aria-pressed": isOn });
    one.addEventListener("click", () => { one.setAttribute("aria-pressed", flip()); draw(); });
    return one;
  };
  const flip = (set, one) => { if (!set.delete(one)) set.add(one); return !set.has(one); };
  switches.append(...plot.groups.map(({ name, on }) => button(name, on, () => flip(off, name))));
  for (const entry of figure.querySelectorAll(".legend li[data-line]")) {
    const one = button("", true, () => flip(out, Number(entry.dataset.line)));
    one.append(...entry.childNodes);
    entry.append(one);
  }
  const rows = () => plot.series.flatMap(series => series.points.map((point, place) => {
    const words = series.names ? [series.names[place]] : [];
    const cells = plot.across ? [plot.across[point[0]], plot.up[point[1]], point[2]] : point;
    return [series.name, series.group || "", ...cells, ...words];
  }));
  const quoted = cell => typeof cell === "number" ? String(cell) : '"' + String(cell).replaceAll('"', '""') + '"';
  const heading = ["series", "part", ...plot.columns.map(({ label, unit }) => unit ? `${label} [${unit}]` : label)];
  const csv = () => [heading, ...rows()].map(row => row.map(quoted).join(",")).join("\r\n") + "\r\n";
  const kept = (title, type, content) => {
    const file = plot.caption.replace(/[^A-Za-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60).toLowerCase();
    const link = made("a", title, { download: `${file}.${title.toLowerCase()}`, href: "#" });
    link.addEventListener("click", () => {
      link.href = URL.createObjectURL(new Blob([content()], { type }));
      setTimeout(() => URL.revokeObjectURL(link.href), 60000);
    });
    return link;
  };
  const links = made("span", "Data: ", { class: "data" });
  const { groups, ...data } = plot;
  links.append(kept("CSV", "text/csv", csv), " ", kept("JSON", "application/json", () => JSON.stringify(data)));
  switches.append(links);
  figure.append(switches);
};

for (const figure of document.querySelectorAll("figure[data-plot]")) live(figure);
document.documentElement.dataset.live = "yes";
