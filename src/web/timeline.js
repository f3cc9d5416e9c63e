// The timelines on the screen: painted on a canvas, with zoom, pan, tooltips and export.

const LABEL_WIDTH = 215,
  ROW = 50,
  NARROW = 620,
  AXIS = 26;
const LANES = { compute: { y: 4, height: 14 }, messages: { y: 20, height: 22 } };
const PARTS = { upper: [0, 0.5], lower: [0.5, 1] }; // of a lane; otherwise all of it

class Timeline {
  constructor() {
    this.rows = [];
    this.from = 0;
    this.to = 1;
    this.full = 1;
    this.canvas = el("canvas", { tabindex: "0", role: "img" });
    this.said = el("p", { class: "said", role: "status", "aria-live": "polite" });
    this.cursor = { row: 0, message: -1 };
    this.pending = false;
    this.listen();
  }

  setRows(rows) {
    const whole = this.from === 0 && this.to === this.full;
    this.rows = rows;
    this.full =
      greatest(
        rows.map((row) => row.end_s),
        1e-9,
      ) * 1.02;
    if (whole || this.to > this.full) this.reset();
    this.canvas.setAttribute(
      "aria-label",
      `Timelines: ${rows
        .map(
          (row) =>
            `${short(row.label)} ${seconds(row.iteration_s)}, ${seconds(Math.max(0, row.iteration_s - row.compute_s))} exposed${row.overlaps ? ", overlaps the next forward pass" : ""}`,
        )
        .join("; ")}. ` +
        "Arrow keys move, plus and minus zoom, n and p step through messages; the tables show the same data.",
    );
    this.request();
  }

  reset() {
    this.from = 0;
    this.to = this.full;
    this.request();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    const width = Math.min(this.full, Math.max(this.full * 1e-6, (this.to - this.from) * factor));
    const share = (at - this.from) / (this.to - this.from);
    this.show(at - share * width, width);
  }

  show(from, width = this.to - this.from) {
    this.from = Math.min(Math.max(0, from), this.full - width);
    this.to = this.from + width;
    this.request();
  }

  request() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      this.draw();
    });
  }

  // ---- Painting ----

  layout(width) {
    const narrow = width < NARROW;
    return {
      width,
      narrow,
      left: narrow ? 4 : LABEL_WIDTH,
      right: width - 8,
      row: narrow ? ROW + 16 : ROW,
      lanes: narrow ? 18 : 0,
    };
  }

  draw() {
    const width = this.canvas.clientWidth;
    if (!width) return;
    const begun = performance.now();
    const at = this.layout(width);
    this.paint(new CanvasPainter(this.canvas, width, AXIS + this.rows.length * at.row + 4), at);
    this.frame_ms = performance.now() - begun;
  }

  paint(painter, at, titles) {
    const ink = {
      text: color("--text"),
      quiet: color("--quiet"),
      line: color("--line"),
      ground: color("--ground"),
      exposed: color("--accent"),
      kinds: SPANS.map(({ ink }) => color(ink)),
    };
    const px = (time) => at.left + ((time - this.from) / (this.to - this.from)) * (at.right - at.left);
    this.marks = 0;
    const step = niceStep(this.to - this.from, at.narrow ? 3 : 7);
    for (let k = Math.ceil(this.from / step); k * step <= this.to; k++) {
      painter.rect(px(k * step), AXIS - 6, 1, this.rows.length * at.row + 6, ink.line);
      const anchor =
        px(k * step) > at.right - 30 ? "end" : px(k * step) < at.left + 20 && at.narrow ? "start" : "middle";
      painter.text(px(k * step), AXIS - 10, k ? seconds(k * step) : "0", ink.quiet, { size: 11, anchor });
    }
    this.rows.forEach((row, r) => {
      const y = AXIS + r * at.row;
      this.paintLabel(painter, row, y, at, ink);
      const to = { painter, px, ink, titles, y: y + at.lanes };
      const plain = (lane) => (i) => ink.kinds[lane.kind[i]];
      for (const lane of [row.compute, row.next])
        this.paintSpans(to, row, lane, { low: -Infinity, high: Infinity, fill: plain(lane) });
      let hidden = -Infinity; // from then on
      for (const [low, high] of [...row.exposed, [Infinity, Infinity]]) {
        this.paintSpans(to, row, row.messages, { low: hidden, high: low, fill: plain(row.messages) });
        this.paintSpans(to, row, row.messages, { low, high, fill: () => ink.exposed });
        hidden = high;
      }
    });
  }

  paintLabel(painter, row, y, at, ink) {
    const exposed = Math.max(0, row.iteration_s - row.compute_s);
    const numbers = `${seconds(row.iteration_s)}, ${seconds(exposed)} exposed`;
    if (at.narrow) {
      painter.text(at.left, y + 14, short(row.label, 34), ink.text, { weight: 600, most: at.right * 0.45 });
      painter.text(at.right, y + 14, numbers, ink.quiet, { size: 11, anchor: "end" });
    } else {
      painter.text(0, y + 16, short(row.label, 40), ink.text, {
        weight: row.strong ? 700 : 500,
        most: LABEL_WIDTH - 12,
      });
      painter.text(0, y + 33, numbers, ink.quiet, { size: 11 });
    }
  }

  // Paints the spans of a lane that are in view, clipped to a time range. Spans narrower than a pixel
  // are merged with their neighbours: no screen shows more.
  paintSpans({ painter, px, ink, titles, y }, row, lane, { low, high, fill }) {
    const { y: down, height } = lane === row.messages ? LANES.messages : LANES.compute;
    const from = Math.max(this.from, low),
      to = Math.min(this.to, high);
    let runFrom = null,
      runTo = 0,
      runFill = null,
      runPart = null;
    const rect = (x, width, paint, part, title) => {
      const [top, bottom] = PARTS[part] || [0, 1];
      painter.rect(x, y + down + top * height, width, (bottom - top) * height, paint, title);
    };
    const flush = () => {
      if (runFrom !== null) rect(runFrom, Math.max(runTo - runFrom, 0.75), runFill, runPart);
      runFrom = null;
    };
    for (let i = firstEnding(lane, from); i < lane.start_s.length && lane.start_s[i] < to; i++) {
      const left = px(Math.max(lane.start_s[i], from)),
        right = px(Math.min(lane.end_s[i], to));
      const paint = fill(i),
        { part } = SPANS[lane.kind[i]];
      this.marks++;
      if (!titles && right - left < 1) {
        if (runFrom !== null && left - runTo < 1 && paint === runFill && part === runPart) runTo = right;
        else {
          flush();
          [runFrom, runTo, runFill, runPart] = [left, right, paint, part];
        }
        continue;
      }
      flush();
      const width = right - left;
      rect(
        left,
        Math.max(width - (width > 4 ? 1 : 0), 0.75),
        paint,
        part,
        titles && describeSpan(row, lane, i),
      );
      if (titles || lane !== row.messages || width <= 60 || lane.start_s[i] < low || lane.start_s[i] >= high)
        continue;
      painter.text(
        left + 5,
        y + down + (part ? (PARTS[part][0] + 0.4) * height : 14.5),
        `${i + 1}: ${bytes(lane.bytes[i])}`,
        paint === ink.exposed ? ink.ground : "#1d2329",
        { size: part ? 10 : 11, most: width - 8 },
      );
    }
    flush();
  }

  svgText() {
    const at = this.layout(960);
    const painter = new SvgPainter(at.width, AXIS + this.rows.length * at.row + 4);
    this.paint(painter, at, true);
    return painter.result;
  }

  // ---- Pointing ----

  find(x, y) {
    const at = this.layout(this.canvas.clientWidth);
    const r = Math.floor((y - AXIS) / at.row),
      row = this.rows[r];
    const inside = y - AXIS - r * at.row - at.lanes;
    const name = Object.keys(LANES).find(
      (one) => inside >= LANES[one].y && inside < LANES[one].y + LANES[one].height,
    );
    const time = this.from + ((x - at.left) / (at.right - at.left)) * (this.to - this.from);
    if (!row || !name || x < at.left) return null;
    const near = ((this.to - this.from) / (at.right - at.left)) * 0.75; // for spans too thin to hit
    for (const lane of name === "messages" ? [row.messages] : [row.next, row.compute]) {
      const i = firstEnding(lane, time - near);
      if (i < lane.start_s.length && lane.start_s[i] <= time + near) return { row, lane, i, time };
    }
    return null;
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const found = this.find(event.clientX - box.left, event.clientY - box.top);
    if (found)
      showTip(
        `${short(found.row.label)}\n${describeSpan(found.row, found.lane, found.i)}`,
        event.clientX,
        event.clientY,
      );
    else hideTip();
  }

  timeAt(event) {
    const at = this.layout(this.canvas.clientWidth);
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    return this.from + ((x - at.left) / (at.right - at.left)) * (this.to - this.from);
  }

  listen() {
    const canvas = this.canvas;
    let drag = null;
    canvas.addEventListener("pointermove", (event) => {
      if (!drag) return this.point(event);
      hideTip();
      const at = this.layout(canvas.clientWidth);
      this.show(drag.from - ((event.clientX - drag.x) / (at.right - at.left)) * (this.to - this.from));
    });
    canvas.addEventListener("pointerdown", (event) => {
      drag = { x: event.clientX, from: this.from };
      canvas.setPointerCapture(event.pointerId);
      this.point(event);
    });
    canvas.addEventListener("pointerup", () => {
      drag = null;
    });
    canvas.addEventListener("pointercancel", () => {
      drag = null;
    });
    canvas.addEventListener("pointerleave", hideTip);
    canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.timeAt(event)));
    canvas.addEventListener(
      "wheel",
      (event) => {
        if (!event.ctrlKey && !event.metaKey) return;
        event.preventDefault();
        this.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.01), this.timeAt(event));
      },
      { passive: false },
    );
    canvas.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.request()).observe(canvas);
  }

  key(event) {
    const width = this.to - this.from;
    const act = {
      "+": () => this.zoom(0.7),
      "=": () => this.zoom(0.7),
      "-": () => this.zoom(1 / 0.7),
      0: () => this.reset(),
      ArrowLeft: () => this.show(this.from - width * 0.2),
      ArrowRight: () => this.show(this.from + width * 0.2),
      n: () => this.step(0, 1),
      p: () => this.step(0, -1),
      ArrowDown: () => this.step(1, 0),
      ArrowUp: () => this.step(-1, 0),
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  }

  // Moves to another row, or to the next message of this one, which is read out.
  step(rows, messages) {
    const cursor = this.cursor;
    cursor.row = Math.min(Math.max(0, cursor.row + rows), this.rows.length - 1);
    const row = this.rows[cursor.row];
    if (rows) cursor.message = -1;
    cursor.message = Math.min(Math.max(0, cursor.message + messages), row.messages.start_s.length - 1);
    if (!row.messages.start_s.length) return;
    const start = row.messages.start_s[cursor.message];
    if (start < this.from || start > this.to) this.show(start - (this.to - this.from) * 0.2);
    const text = `${short(row.label)}\n${describeSpan(row, row.messages, cursor.message)}`;
    this.said.textContent = text;
    const at = this.layout(this.canvas.clientWidth),
      box = this.canvas.getBoundingClientRect();
    showTip(
      text,
      box.left + at.left + ((start - this.from) / (this.to - this.from)) * (at.right - at.left),
      box.top + AXIS + cursor.row * at.row + at.lanes + 30,
    );
  }

  // ---- For Perfetto: the format that `replay --chrome-trace` writes and `report` reads ----

  chromeText() {
    const events = [];
    let before = null;
    this.rows.forEach((row, r) => {
      const pid = r + 1,
        meta = (name, tid, args) => events.push({ name, ph: "M", pid, tid, args });
      meta("process_name", 0, {
        name: row.label,
        ...(row.overlaps ? { period_us: Number((row.iteration_s * 1e6).toFixed(3)) } : {}),
        ...(row.names === before ? {} : { tensors: row.names }),
      });
      meta("process_sort_index", 0, { sort_index: pid });
      before = row.names;
      ["compute", "messages"].forEach((name, lane) => {
        meta("thread_name", lane + 1, { name });
        meta("thread_sort_index", lane + 1, { sort_index: lane + 1 });
      });
      const us = (time) => Number((time * 1e6).toFixed(3));
      const add = (lane, i, name, cat, tid, args) =>
        events.push({
          name,
          cat,
          ph: "X",
          pid,
          tid,
          ts: us(lane.start_s[i]),
          dur: us(lane.end_s[i] - lane.start_s[i]),
          ...(args ? { args } : {}),
        });
      const which = (lane, i) => ({ index: lane.first[i], tensors: lane.count[i] });
      const name = (lane, i) => (lane.count[i] === 1 ? row.names[lane.first[i]] : null);
      const compute = (lane, i) => {
        const { name: kind } = SPANS[lane.kind[i]];
        const title = { backward: name(lane, i), stall: `wait for ${name(lane, i)}` }[kind] || kind;
        add(lane, i, title, kind, 1, kind === "backward" || kind === "stall" ? which(lane, i) : null);
      };
      for (const [lane, i] of inOrder(row.compute, row.beside ? NOTHING : row.next)) compute(lane, i);
      const m = row.messages;
      for (let i = 0; i < m.start_s.length; i++) {
        const { name: kind, title } = SPANS[m.kind[i]];
        add(m, i, `${title || kind} ${i + 1}`, kind, 2, {
          ...which(m, i),
          bytes: m.bytes[i],
          waited_us: Math.max(0, us(m.start_s[i] - m.ready_s[i])),
          first: row.names[m.first[i]],
          ...(m.count[i] > 1 ? { last: row.names[m.first[i] + m.count[i] - 1] } : {}),
        });
      }
    });
    const lines = events.map((event) => JSON.stringify(event)).join(",\n");
    return `{"format": "mgwfbp-timelines-1", "displayTimeUnit": "ms", "traceEvents": [\n${lines}\n]}\n`;
  }
}
