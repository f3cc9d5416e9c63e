// The page: its selection, what it shows, and what a change redraws.

const ROWS_MOST = 128; // of timelines below each other
const REST_MS = 150; // after a change, before slow planning starts

class Page {
  constructor(data, planner) {
    this.planner = planner;
    this.efficiency = true; // otherwise curves show the speed-up
    this.timeline = new Timeline();
    this.showsSlow = false;
    this.slow = el("button", { type: "button", class: "slow", onclick: () => this.toggleSlow() });
    this.more = el("p", { class: "quiet" });
    this.key = el("ul", { class: "key" });
    this.whatIf = planner && new WhatIf(byId("whatif"), planner, (settings) => this.plan(settings));
    const redraw = () => this.timeline.draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    matchMedia("print").addEventListener("change", redraw);
    let width = chartWidth();
    new ResizeObserver(() => {
      if (width === chartWidth()) return;
      width = chartWidth();
      this.render();
    }).observe(byId("main"));
    this.use(data, 0);
  }

  // Shows other data; of several cases the given one.
  use(data, index) {
    this.data = data;
    POLICY_ABOUT = data.about;
    this.policy = "optimal";
    this.places = {};
    byId("main").replaceChildren();
    this.chooseCase(Math.min(index, data.cases.length - 1));
  }

  // ---- Which trace on which cluster ----

  chooseCase(index) {
    const { data } = this;
    const one = data.cases[index];
    const trace = one ? data.traces[one.trace] : data.traces[data.traces.length - 1];
    const cluster = one ? data.clusters[one.cluster] : data.clusters[data.clusters.length - 1];
    this.current = {
      index,
      trace,
      cluster,
      factor: 1,
      dtype: trace && trace.gradient_dtype,
      parameters: trace && trace.parameter_dtype,
      policies: one ? one.policies : [],
      scaling: one ? one.scaling : [],
      advice: one && one.advice,
    };
    if (this.whatIf && one) {
      this.planner.setTrace(trace, data.names[trace.names]);
      this.whatIf.start(trace, cluster);
    } else {
      byId("whatif").hidden = true;
      byId("layout").classList.remove("with-aside");
    }
    this.render();
  }

  plan({ cluster, factor, dtype, parameters }) {
    const gathered = parameters || dtype;
    const planned = this.planner.plan(cluster, factor, dtype, gathered);
    Object.assign(this.current, {
      cluster: { ...cluster, ...this.planner.lines(cluster) },
      factor,
      dtype,
      parameters: gathered,
      scaling: null,
      advice: null, // it only applies to the files
      ...planned,
    });
    this.render();
    clearTimeout(this.rest);
    this.rest = setTimeout(() => {
      try {
        this.renderScaling();
      } catch (error) {
        this.whatIf.say(error.message);
      }
    }, REST_MS);
  }

  // How the current case scales: planned on demand.
  scalingRows() {
    this.current.scaling = this.current.scaling || this.planner.scale();
    return this.current.scaling;
  }

  // ---- Showing it ----

  render() {
    const { current, data } = this;
    const show = {
      ...current,
      policy: this.policy,
      names: current.trace ? data.names[current.trace.names] : [],
    };
    const has = current.policies.length > 0;
    this.renderHead();
    this.put("answer", has && answerSection(show));
    this.put("cases", casesSection(data, current.index, (index) => this.chooseCase(index)));
    this.put("words", has && wordsSection(show));
    this.put("empty", !has && this.emptySection());
    this.put("advice", adviceSection(current.advice));
    this.renderTimeline(show);
    this.put("policies", has && policySection(show));
    this.put(
      "plan",
      has &&
        planSection(show, (policy) => {
          this.policy = policy;
          this.render();
        }),
    );
    if (!has || current.scaling) this.renderScaling();
    data.replays.forEach((replay, i) => this.put(`replay${i}`, replaySection(replay, i)));
    data.simulations.forEach((simulation, i) =>
      this.put(
        `simulation${i}`,
        scalingSection(
          i ? `simulation-${i + 1}` : "simulation",
          "Simulated scaling",
          `From ${short(simulation.origin)}.`,
          simulation.rows,
          this.efficiency,
          (efficiency) => {
            this.efficiency = efficiency;
            this.render();
          },
        ),
      ),
    );
    data.simulations.forEach((simulation, i) =>
      this.put(`outlook${i}`, outlookSection(i ? `outlook-${i + 1}` : "outlook", simulation)),
    );
    data.trainings.forEach((training, i) => this.put(`training${i}`, trainingSection(training, i)));
    this.put("cost", current.cluster && costSection(current.cluster));
    this.put("sizes", current.trace && sizesSection(current.trace, DTYPE_BYTES[current.dtype]));
  }

  // Replaces one section and leaves the others, and the scroll position, alone.
  put(name, fresh) {
    const old = this.places[name];
    const made = fresh || el("section", { hidden: true });
    if (old) {
      const open = old.querySelector("details[open]");
      old.replaceWith(made);
      const details = made.querySelector("details");
      if (open && details) details.open = true;
    } else byId("main").append(made);
    this.places[name] = made;
  }

  renderHead() {
    const { data, current } = this;
    const { trace, cluster } = current;
    const title =
      [trace && short(trace.model), cluster && short(cluster.name)].filter(Boolean).join(" on ") || "mgwfbp";
    byId("title").textContent = title;
    document.title = `${title} \u2013 mgwfbp report`;
    const about = [
      trace &&
        `batch ${trace.batch}, ${short(trace.precision)}, ${short(trace.device)}; gradients as ${current.dtype}${current.parameters === current.dtype ? "" : `, parameters as ${current.parameters}`}`,
      cluster && `${cluster.workers} workers${cluster.kind === "link" ? `, ${cluster.algorithm}` : ""}`,
      current.factor !== 1 && `computation \u00d7 ${exact(current.factor)}`,
    ]
      .filter(Boolean)
      .join(" \u00b7 ");
    const pick =
      data.cases.length > 1 &&
      el(
        "select",
        {
          id: "case",
          "aria-label": "model and cluster",
          onchange: (event) => this.chooseCase(Number(event.target.value)),
        },
        data.cases.map((one, i) =>
          el(
            "option",
            { value: i, selected: i === current.index },
            `${short(data.traces[one.trace].origin, 44)} on ${short(data.clusters[one.cluster].origin, 44)}`,
          ),
        ),
      );
    byId("subtitle").replaceChildren(
      ...[about, pick ? el("span", { class: "bar" }, pick) : ""].filter(Boolean),
    );
    byId("footer").textContent =
      `mgwfbp ${data.version}. ` +
      (this.planner
        ? "The planner inside this file computed everything; nothing is loaded from elsewhere."
        : "This page was made without the planner for browsers: its numbers come from the command and cannot be changed here.");
  }

  emptySection() {
    const { data } = this;
    const lacks = data.traces.length
      ? "a cluster as well"
      : data.clusters.length
        ? "a trace as well"
        : "a trace and a cluster";
    const something =
      data.plans.length ||
      data.runs.length ||
      data.replays.length ||
      data.simulations.length ||
      data.trainings.length;
    return something
      ? null
      : el("section", { id: "empty" }, el("p", {}, `To plan a step, add ${lacks}.`));
  }

  renderScaling() {
    this.put("scaling", this.current.policies.length > 0 && this.scaling(this.scalingRows()));
  }

  scaling(rows) {
    const { cluster } = this.current;
    const about =
      cluster.kind === "link"
        ? `With ${cluster.algorithm} on the same links; every worker computes the same batch.`
        : `The cluster was measured with ${cluster.workers} workers. For other numbers, a ring of links with the same cost is assumed.`;
    return scalingSection("scaling", "More workers", about, rows, this.efficiency, (efficiency) => {
      this.efficiency = efficiency;
      this.render();
    });
  }

  // ---- Timelines: planned, from plan files, and measured ----

  rows(show) {
    const { data } = this;
    const lane =
      show.trace && show.policies.length
        ? computeLane(show.trace, show.factor, DTYPE_BYTES[show.dtype])
        : null;
    const next = [...show.policies, ...data.plans].some((plan) => plan.overlaps_forward);
    const { slow, near } = bySpeed(show.policies);
    this.renderSlow(slow.length);
    return [
      ...(this.showsSlow ? show.policies : near).map((plan) => ({
        ...rowOfPlan(plan, show.names, plan.policy, lane, next),
        strong: OURS.includes(plan.policy),
      })),
      ...data.plans.map((plan) =>
        rowOfPlan(plan, data.names[plan.names], `${plan.policy} (${plan.origin})`, null, next),
      ),
      ...data.runs.flatMap((run) => run.timelines.map((timeline) => this.measured(timeline))),
    ];
  }

  // Slow policies make the others' bars too short to compare, so they are only shown on demand.
  renderSlow(count) {
    const { slow } = this;
    slow.hidden = !count;
    slow.textContent = slowTitle(count);
    slow.setAttribute("aria-pressed", String(this.showsSlow));
  }

  toggleSlow() {
    this.showsSlow = !this.showsSlow;
    this.render();
    this.timeline.reset();
  }

  // The spans of a file do not change: they are sorted into lanes once.
  measured(timeline) {
    timeline.row = timeline.row || rowOfTimeline(timeline, this.data.names[timeline.names]);
    return timeline.row;
  }

  renderTimeline(show) {
    const rows = this.rows(show);
    const { timeline } = this;
    if (rows.length && !this.places.timeline) {
      const button = (text, label, act) =>
        el("button", { type: "button", "aria-label": label, onclick: act }, text);
      const table = () => this.timelineTable();
      const details = el("details", {}, el("summary", {}, "Table"));
      details.addEventListener("toggle", () => {
        if (details.open) details.replaceChildren(details.firstChild, tableOf(...table()));
      });
      this.put(
        "timeline",
        section(
          "timeline",
          "Where the time goes",
          null,
          this.key,
          el(
            "div",
            { class: "bar" },
            button("+", "zoom in", () => timeline.zoom(0.6)),
            button("\u2212", "zoom out", () => timeline.zoom(1 / 0.6)),
            button("all", "show all", () => timeline.reset()),
            el(
              "span",
              { class: "quiet hint" },
              "ctrl + wheel zooms, dragging moves; keys: + \u2212 0 arrows",
            ),
            el("span", { class: "spread" }),
            el(
              "button",
              {
                type: "button",
                "data-export": "csv",
                onclick: () => download("timeline.csv", "text/csv", csvOf(...table())),
              },
              "CSV",
            ),
            el(
              "button",
              {
                type: "button",
                "data-export": "svg",
                onclick: () =>
                  download(
                    "timeline.svg",
                    "image/svg+xml",
                    onPaper(() => timeline.svgText()),
                  ),
              },
              "SVG",
            ),
            el(
              "button",
              {
                type: "button",
                "data-export": "chrome",
                onclick: () => download("timeline.json", "application/json", timeline.chromeText()),
              },
              "Chrome trace",
            ),
          ),
          timeline.canvas,
          el("p", {}, this.slow),
          this.more,
          timeline.said,
          details,
        ),
      );
    } else if (!this.places.timeline) this.put("timeline", null);
    if (rows.length) timeline.setRows(rows.slice(0, ROWS_MOST));
    this.renderKey(timeline.rows);
    this.more.textContent = [
      timeline.rows.some((row) => row.overlaps) &&
        "If operations overlap the next forward pass, a step runs from the end of one forward pass to the end of the next.",
      rows.length > ROWS_MOST && `The first ${ROWS_MOST} of ${rows.length} timelines.`,
    ]
      .filter(Boolean)
      .join(" ");
  }

  // The legend of the marks that are present.
  renderKey(rows) {
    const has = new Set(rows.flatMap((row) => [...row.messages.kind, ...row.next.kind]));
    const halves = [3, 4, 5, 6].some((kind) => has.has(kind));
    const marks = [
      ["forward", has.has(NEXT_FORWARD) ? "forward, of this step and the next" : "forward"],
      ["backward", "backward"],
      has.has(MESSAGE) && ["hidden", halves ? "all-reduce, hidden" : "communication, hidden"],
      has.has(3) && ["scatter", "reduce-scatter (upper half)"],
      has.has(4) && ["gather", "all-gather (lower half)"],
      has.has(5) && ["scatter", "push (upper half)"],
      has.has(6) && ["gather", "pull (lower half)"],
      has.has(STALL) && ["stall", "stall: the forward pass waits"],
      ["exposed", "communication, exposed"],
    ];
    this.key.replaceChildren(
      ...marks.filter(Boolean).map(([name, text]) => el("li", {}, el("i", { class: name }), text)),
    );
  }

  timelineTable() {
    const columns = [
      ["timeline", "text"],
      ["message", "count"],
      ["kind", "text"],
      ["tensors", "count"],
      ["size", "bytes"],
      ["ready", "s"],
      ["start", "s"],
      ["end", "s"],
      ["exposed", "s"],
      ["first tensor", "text"],
    ];
    const message = (row, i) => [
      row.label,
      i + 1,
      kindOf(row.messages.kind[i]),
      row.messages.count[i],
      row.messages.bytes[i],
      row.messages.ready_s[i],
      row.messages.start_s[i],
      row.messages.end_s[i],
      exposedPart(row, row.messages.start_s[i], row.messages.end_s[i]),
      row.names[row.messages.first[i]],
    ];
    const stall = (row, i) =>
      row.next.kind[i] === STALL && [
        row.label,
        null,
        "stall",
        1,
        null,
        null,
        row.next.start_s[i],
        row.next.end_s[i],
        row.next.end_s[i] - row.next.start_s[i],
        row.names[row.next.first[i]],
      ];
    const rows = this.timeline.rows.flatMap((row) => [
      ...Array.from(row.messages.start_s, (_, i) => message(row, i)),
      ...Array.from(row.next.start_s, (_, i) => stall(row, i)).filter(Boolean),
    ]);
    return [columns, rows];
  }
}

async function main() {
  const data = JSON.parse(byId("data").textContent),
    builtins = JSON.parse(byId("served").textContent);
  let planner = null;
  try {
    planner = await Planner.load(byId("planner").textContent.trim());
  } catch {
    planner = null; // an old browser: the page only shows the contents of the file
  }
  const page = new Page(data, planner);
  if (builtins) new Drop(byId("drop"), builtins, (fresh) => page.use(fresh, fresh.cases.length - 1));
  requestAnimationFrame(() => requestAnimationFrame(() => performance.mark("mgwfbp-drawn")));
  window.mgwfbp = { page, planner, format: { seconds, bytes, fixed } }; // for tests and debugging
}

main();
