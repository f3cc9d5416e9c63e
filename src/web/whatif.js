// What if: sliders for the cluster, the device and the precision. Each change plans again.

// Sliders are logarithmic where factors matter; the number beside them is exact.
const CONTROLS = [
  { key: "workers", name: "workers", kinds: ["link"], low: 2, high: 2048, whole: true },
  { key: "alpha_s", name: "\u03b1, start-up of a transfer (s)", kinds: ["link"], around: true, show: seconds },
  { key: "beta_s_per_byte", name: "\u03b2, per byte (s)", kinds: ["link"], around: true, show: gigabits },
  { key: "a_s", name: "a, start-up of a message (s)", kinds: ["cost"], around: true, show: seconds },
  { key: "b_s_per_byte", name: "b, per byte (s)", kinds: ["cost"], around: true, show: gigabits },
  {
    key: "factor",
    name: "computation time, factor",
    kinds: ["link", "cost", "samples"],
    low: 0.02,
    high: 50,
  },
];

// Measurements of a kind only hold for the workers and the algorithm they were made with.
const asDerived = (cluster) =>
  cluster.collectives.map((one) => ({ ...one, given: false, sample_bytes: [], sample_seconds: [] }));

// A cost as in files: samples, or a and b.
const costOf = ({ a_s, b_s_per_byte, sample_bytes, sample_seconds }) =>
  sample_bytes.length
    ? { samples: Array.from(sample_bytes, (size, i) => ({ bytes: size, seconds: sample_seconds[i] })) }
    : { cost: { a_s, b_s_per_byte } };

class WhatIf {
  // `changed(settings)` is called after every change; settings = {cluster, factor, dtype, parameters}.
  constructor(panel, planner, changed) {
    this.panel = panel;
    this.planner = planner;
    this.changed = changed;
    this.pending = false;
  }

  start(trace, cluster) {
    this.trace = trace;
    this.origin = cluster;
    const parameters = trace.parameter_dtype === trace.gradient_dtype ? "" : trace.parameter_dtype;
    this.settings = { cluster: { ...cluster }, factor: 1, dtype: trace.gradient_dtype, parameters };
    this.build();
  }

  // A measured cluster can be interpreted as links under an algorithm, as in `mgwfbp fit --as`.
  setAlgorithm(algorithm) {
    const { workers } = this.settings.cluster;
    try {
      if (!algorithm) this.settings.cluster = { ...this.origin };
      else if (this.origin.kind === "link")
        this.settings.cluster = { ...this.settings.cluster, algorithm, collectives: asDerived(this.origin) };
      else
        this.settings.cluster = {
          ...this.origin,
          kind: "link",
          algorithm,
          sample_bytes: [],
          sample_seconds: [],
          collectives: asDerived(this.origin),
          ...this.planner.findLink(this.origin, algorithm),
        };
      if (algorithm && this.origin.kind === "link") this.settings.cluster.workers = workers;
      this.build();
      this.request();
    } catch (error) {
      this.say(error.message);
    }
  }

  build() {
    const { cluster, factor, dtype, parameters } = this.settings;
    const choice = (name, value, options, act) =>
      el(
        "label",
        {},
        el("span", { class: "name" }, name),
        el(
          "select",
          { "data-key": name, onchange: (event) => act(event.target.value) },
          options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)),
        ),
      );
    const measured = this.origin.kind === "link" ? [] : [["", "as measured"]];
    const values = { ...cluster, factor };
    this.message = el("p", { class: "notice bad", role: "alert", hidden: true });
    this.panel.replaceChildren(
      ...append(el("div"), [
        el("h2", {}, "What if"),
        el(
          "p",
          { class: "quiet" },
          "Updates as you change it, with the same planner as the command line.",
        ),
        choice(
          "algorithm",
          cluster.kind === "link" ? cluster.algorithm : "",
          [...measured, ...ALGORITHMS.map((name) => [name, name])],
          (value) => this.setAlgorithm(value),
        ),
        CONTROLS.filter((control) => control.kinds.includes(cluster.kind)).map((control) =>
          this.control(control, values[control.key]),
        ),
        cluster.kind === "link"
          ? null
          : el(
              "p",
              { class: "quiet" },
              `Measured with ${cluster.workers} workers. For other numbers, choose an algorithm; its links are derived from the measured cost.`,
            ),
        choice(
          "gradients as",
          dtype,
          DTYPES.map((name) => [name, name]),
          (value) => {
            this.settings.dtype = value;
            this.request();
          },
        ),
        choice(
          "parameters as",
          parameters,
          [["", "same as gradients"], ...DTYPES.map((name) => [name, name])],
          (value) => {
            this.settings.parameters = value;
            this.request();
          },
        ),
        this.message,
        el(
          "div",
          { class: "bar" },
          el(
            "button",
            {
              type: "button",
              onclick: () => {
                this.start(this.trace, this.origin);
                this.request();
              },
            },
            "reset",
          ),
          el(
            "button",
            {
              type: "button",
              onclick: () => download("cluster.json", "application/json", this.clusterFile()),
            },
            "save this cluster",
          ),
        ),
      ]).childNodes,
    );
    this.panel.hidden = false;
    byId("layout").classList.add("with-aside");
  }

  control(control, value) {
    const middle = this.origin[control.key] || value;
    const low = control.around ? middle / 100 : control.low,
      high = control.around ? middle * 100 : control.high;
    const toSlider = (number) => (1000 * Math.log(number / low)) / Math.log(high / low);
    const fromSlider = (at) => {
      const number = low * (high / low) ** (at / 1000);
      if (control.whole) return this.wholeWorkers(number);
      return Number(number.toPrecision(3));
    };
    const id = `what-${control.key}`;
    const range = el("input", {
      type: "range",
      min: 0,
      max: 1000,
      step: 1,
      value: toSlider(value),
      "aria-label": control.name,
      disabled: !(value > 0),
    });
    const number = el("input", {
      type: "number",
      id,
      min: control.whole ? 2 : 0,
      step: "any",
      value: compact(value),
    });
    const read = el("span", { class: "quiet" }, control.show ? control.show(value) : "");
    range.addEventListener("input", () => {
      const chosen = fromSlider(Number(range.value));
      number.value = compact(chosen);
      if (control.show) read.textContent = control.show(chosen);
      this.set(control, chosen);
    });
    number.addEventListener("input", () => {
      const chosen = Number(number.value);
      if (!(chosen > 0) || !isFinite(chosen)) return this.say(`${control.name}: must be a number above 0`);
      range.value = toSlider(chosen);
      if (control.show) read.textContent = control.show(chosen);
      this.set(control, control.whole ? Math.round(chosen) : chosen);
    });
    return el(
      "label",
      { for: id },
      el("span", { class: "name" }, el("span", {}, control.name), read),
      el("div", { class: "pair" }, range, number),
    );
  }

  // Halving algorithms need powers of two; the slider only offers these.
  wholeWorkers(number) {
    const any = ["ring", "parameter-server"].includes(this.settings.cluster.algorithm) && number < 16;
    return any ? Math.round(number) : 2 ** Math.round(Math.log2(number));
  }

  set(control, value) {
    if (control.key === "factor") this.settings.factor = value;
    else this.settings.cluster = { ...this.settings.cluster, [control.key]: value };
    if (control.key === "workers") this.settings.cluster.collectives = asDerived(this.origin);
    this.request();
  }

  // At most once per frame, however fast the slider moves.
  request() {
    if (this.pending) return;
    this.pending = true;
    requestAnimationFrame(() => {
      this.pending = false;
      try {
        this.say("");
        this.changed(this.settings);
      } catch (error) {
        this.say(error.message);
      }
    });
  }

  say(text) {
    this.message.textContent = text;
    this.message.hidden = !text;
  }

  // The cluster as a file, for the command.
  clusterFile() {
    const c = this.settings.cluster;
    const what =
      c.kind === "link"
        ? {
            link: {
              alpha_s: c.alpha_s,
              beta_s_per_byte: c.beta_s_per_byte,
              gamma_s_per_byte: c.gamma_s_per_byte,
            },
            algorithm: c.algorithm,
            ...(c.algorithm === "parameter-server" ? { servers: c.servers } : {}),
          }
        : costOf(c);
    const given = c.collectives.filter((one) => one.given);
    const others = Object.fromEntries(given.map((one) => [one.kind, costOf(one)]));
    const file = { format: "mgwfbp-cluster-1", name: c.name, workers: c.workers, ...what };
    if (given.length) file.collectives = others;
    if (c.beside_message > 1 || c.beside_compute > 1)
      file.beside = { message: c.beside_message, compute: c.beside_compute };
    return JSON.stringify(file, null, 2) + "\n";
  }
}
