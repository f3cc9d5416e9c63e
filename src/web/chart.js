// Charts in SVG: a figure with its table, its CSV and its downloadable picture.

// A standalone picture: the page's style is inlined.
function standAlone(picture) {
  const copy = picture.cloneNode(true);
  const from = [picture, ...picture.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((element, i) => {
    if (element.tagName === "title") return;
    const style = getComputedStyle(element);
    for (const name of [
      "fill",
      "stroke",
      "stroke-width",
      "stroke-dasharray",
      "font-size",
      "font-weight",
      "font-family",
    ])
      to[i].setAttribute(name, style.getPropertyValue(name));
    to[i].removeAttribute("class");
  });
  const box = picture.viewBox.baseVal;
  setAll(copy, { xmlns: "http://www.w3.org/2000/svg", width: box.width, height: box.height });
  copy.prepend(svg("rect", { width: box.width, height: box.height, fill: color("--ground") }));
  return new XMLSerializer().serializeToString(copy);
}

// The table is built when it is opened.
function figure({ name, picture, columns, rows, chosen }) {
  const details = el("details", {}, el("summary", {}, "Table"));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(tableOf(columns, rows, chosen));
  });
  const svgText = () => onPaper(() => standAlone(picture));
  return el(
    "figure",
    {},
    picture,
    el(
      "div",
      { class: "bar" },
      el("span", { class: "spread" }),
      el(
        "button",
        {
          type: "button",
          "data-export": "csv",
          onclick: () => download(`${name}.csv`, "text/csv", csvOf(columns, rows)),
        },
        "CSV",
      ),
      el(
        "button",
        {
          type: "button",
          "data-export": "svg",
          onclick: () => download(`${name}.svg`, "image/svg+xml", svgText()),
        },
        "SVG",
      ),
    ),
    details,
  );
}

// ---- Axes ----

function niceStep(range, parts = 5) {
  const raw = range / parts || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  return power * [1, 2, 5, 10].find((step) => step * power >= raw * 0.999);
}

function ticksOf(axis) {
  const ticks = [];
  if (axis.log) {
    const first = Math.ceil(Math.log(axis.low) / Math.log(axis.log) - 1e-9);
    const last = Math.floor(Math.log(axis.high) / Math.log(axis.log) + 1e-9);
    const every = Math.max(1, Math.ceil((last - first + 1) / (axis.most || 9)));
    for (let k = first; k <= last; k += every) ticks.push(axis.log ** k);
  } else {
    const step = niceStep(axis.high - axis.low, Math.min(5, axis.most || 5));
    for (let k = Math.ceil(axis.low / step); k * step <= axis.high * (1 + 1e-9); k++) ticks.push(k * step);
  }
  return ticks;
}

function scaleOf(axis, from, to) {
  const f = axis.log ? Math.log : (v) => v;
  const low = f(axis.low),
    high = f(axis.high);
  return (value) => from + (to - from) * (high > low ? (f(value) - low) / (high - low) : 0.5);
}

const plain = (value) => (value >= 1e5 ? value.toExponential(0) : String(Number(value.toPrecision(6))));

// ---- Lines, points and columns over two axes ----

const HEIGHT = 320,
  LEFT = 66,
  TOP = 30,
  BOTTOM = 44,
  SLIM = 520;

// As wide as the page allows, so that text keeps its size.
const chartWidth = () => Math.max(300, Math.min(760, byId("main").clientWidth || 760));

function frame(x, y, label, margin = 20) {
  const width = chartWidth(),
    right = width - margin;
  const px = scaleOf(x, LEFT, right),
    py = scaleOf(y, HEIGHT - BOTTOM, TOP);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": label });
  for (const tick of ticksOf(y))
    picture.append(
      svg("path", { class: "grid", d: `M${LEFT} ${py(tick)}H${right}` }),
      svg(
        "text",
        { class: "quiet", x: LEFT - 8, y: py(tick) + 4, "text-anchor": "end" },
        (y.format || plain)(tick),
      ),
    );
  for (const tick of ticksOf({ ...x, most: Math.floor((right - LEFT) / (x.format ? 56 : 40)) }))
    picture.append(
      svg("path", { class: "grid", d: `M${px(tick)} ${HEIGHT - BOTTOM}v5` }),
      svg(
        "text",
        { class: "quiet", x: px(tick), y: HEIGHT - BOTTOM + 18, "text-anchor": "middle" },
        (x.format || plain)(tick),
      ),
    );
  picture.append(
    svg("path", { class: "axis", d: `M${LEFT} ${HEIGHT - BOTTOM}H${right}` }),
    svg("text", { class: "quiet", x: (LEFT + right) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, x.label),
    svg("text", { class: "quiet", x: 0, y: 12 }, y.label),
  );
  return { picture, px, py, right };
}

const nameMost = () => (chartWidth() < SLIM ? 12 : 34);

// Names at the ends of the lines, moved apart where they would overlap.
function labelEnds(picture, ends, right) {
  ends.sort((a, b) => a.y - b.y);
  let free = TOP;
  for (const end of ends) {
    end.at = Math.max(end.y, free);
    free = end.at + 15;
  }
  let limit = HEIGHT - BOTTOM - 8; // above the last number of the axis
  for (const end of [...ends].reverse()) {
    end.at = Math.min(end.at, limit);
    limit = end.at - 15;
    picture.append(
      svg(
        "text",
        { x: right + 10, y: end.at + 4, class: end.strong ? "strong" : null },
        short(end.name, nameMost()),
      ),
    );
    if (end.ink)
      picture.append(
        svg("path", { class: `line ${end.ink}`, d: `M${right + 1} ${end.y}L${right + 7} ${end.at}` }),
      );
  }
}

// series: {name, ink, points: [[x, y, description]], strong, dots}
function linePlot({ x, y, series, ideal, label }) {
  const longest = Math.max(5, ...series.map((one) => Math.min(nameMost(), one.name.length)));
  const { picture, px, py, right } = frame(x, y, label, 24 + 7 * longest);
  const path = (points) =>
    points.map(([a, b], i) => `${i ? "L" : "M"}${px(a).toFixed(1)} ${py(b).toFixed(1)}`).join("");
  if (ideal) picture.append(svg("path", { class: "ideal", d: path(ideal) }));
  const ends = ideal ? [{ name: "ideal", y: py(ideal[ideal.length - 1][1]) }] : [];
  for (const one of series) {
    const last = one.points[one.points.length - 1];
    if (!last) continue;
    if (one.line !== false) {
      picture.append(svg("path", { class: `line ${one.ink}`, d: path(one.points) }));
      ends.push({ name: one.name, y: py(last[1]), ink: one.ink, strong: one.strong });
    }
    if (one.dots)
      one.points.forEach((point) =>
        picture.append(
          described(
            svg("circle", { class: `dot ${one.ink}`, cx: px(point[0]), cy: py(point[1]), r: 3.5 }),
            point[2],
          ),
        ),
      );
  }
  labelEnds(picture, ends, right);
  return picture;
}

// columns: [{from, to, value, text}]
function columnPlot({ x, y, columns, label }) {
  const { picture, px, py } = frame(x, y, label);
  for (const one of columns) {
    const left = px(one.from),
      width = Math.max(1, px(one.to) - left - 2);
    picture.append(
      described(
        svg("rect", { class: "mark", x: left + 1, y: py(one.value), width, height: py(0) - py(one.value) }),
        one.text,
      ),
    );
    if (one.value)
      picture.append(
        svg(
          "text",
          { x: left + 1 + width / 2, y: py(one.value) - 4, "text-anchor": "middle" },
          String(one.value),
        ),
      );
  }
  return picture;
}

// ---- Bars: rows of {name, about, parts: [{value, class, text}], note, strong, act}, and a bound for all ----

function barPlot({ rows, bound, label, letters = 22 }) {
  const width = chartWidth(),
    slim = width < SLIM; // then names are above their bars
  const left = slim ? 0 : 18 + 6 * letters,
    right = slim ? 0 : 190,
    row = slim ? 42 : 26,
    drop = slim ? 18 : 0;
  const total = (one) => one.parts.reduce((sum, part) => sum + Math.max(0, part.value), 0);
  const most = greatest(rows.map(total), bound ? bound.value : 0) || 1;
  const px = (value) => (value / most) * (width - left - right);
  const bottom = rows.length * row + 6;
  const picture = svg("svg", {
    viewBox: `0 0 ${width} ${bottom + (bound ? 20 : 4)}`,
    role: "img",
    "aria-label": label,
  });
  rows.forEach((one, i) => {
    const y = 4 + i * row,
      style = one.strong ? "strong" : null;
    let at = left;
    for (const part of one.parts) {
      const length = px(Math.max(0, part.value));
      picture.append(
        described(
          svg("rect", {
            class: `bar-part ${part.class}${one.act ? " acts" : ""}`,
            x: at,
            y: y + drop,
            width: length,
            height: 19,
            ...(one.act ? { onclick: one.act } : {}),
          }),
          part.text,
        ),
      );
      at += length;
    }
    const name = svg(
      "text",
      { x: slim ? 0 : left - 10, y: y + 14, "text-anchor": slim ? "start" : "end", class: style },
      short(one.name, slim ? 22 : letters),
    );
    picture.append(
      one.about ? described(svg("g", { class: "explained" }, name), one.about) : name,
      svg(
        "text",
        { x: slim ? width : at + 8, y: y + 14, "text-anchor": slim ? "end" : "start", class: style },
        one.note,
      ),
    );
  });
  if (bound) {
    const x = left + px(bound.value);
    picture.append(
      svg("path", {
        class: "bound", // beside names and notes, not across them
        d: slim ? rows.map((_, i) => `M${x} ${2 + i * row + drop}v23`).join("") : `M${x} 0V${bottom}`,
      }),
      svg(
        "text",
        {
          class: "quiet",
          x,
          y: bottom + 13,
          "text-anchor": x < width * 0.3 ? "start" : x > width * 0.7 ? "end" : "middle",
        },
        bound.text,
      ),
    );
  }
  return picture;
}
