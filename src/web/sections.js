// The sections of the page: each takes what it shows and gives an element, or null if there is nothing.

const INKS = { naive: "ink6", wfbp: "ink2", single: "ink3", mgwfbp: "ink1", optimal: "ink4", ddp: "ink5" };
const inkOf = (policy, i) => INKS[policy.split(":")[0]] || `ink${(i % 7) + 1}`;

function section(id, title, about, ...children) {
  return el(
    "section",
    { id, "aria-labelledby": `${id}-title` },
    el("h2", { id: `${id}-title` }, title),
    about && el("p", { class: "quiet" }, about),
    children,
  );
}

const byName = (policies, name) => policies.find((one) => one.policy === name);
const bestOf = (policies) =>
  policies.reduce((best, one) => (one.iteration_s < best.iteration_s ? one : best));
const sumOf = (plan) => plan.end_s.reduce((sum, end, m) => sum + (end - plan.start_s[m]), 0);

// ---- The answer in words ----

function wordsSection(current) {
  const { policies, trace, cluster } = current;
  const best = byName(policies, "optimal") || bestOf(policies);
  const wfbp = byName(policies, "wfbp"),
    single = byName(policies, "single");
  const usual = wfbp.iteration_s < single.iteration_s ? wfbp : single;
  const share = (value) => 100 * (1 - value / usual.iteration_s);
  const b = (text) => el("b", {}, text);
  const exposed = (value) => el("span", { class: "exposed" }, `${seconds(value)} exposed`);
  const saved = share(best.iteration_s),
    most = Math.max(0, share(best.lower_bound_s));
  const saves =
    usual.iteration_s > 0
      ? [
          " That ",
          saved >= -0.05 ? "saves " : "loses ",
          b(`${fixed(Math.abs(saved), 1)}%`),
          " of the step; no plan can save more than ",
          b(`${fixed(most, 1)}%`),
          ".",
        ]
      : [];
  return el(
    "section",
    { id: "words", class: "words", "aria-label": "Summary" },
    el(
      "p",
      {},
      "On ",
      b(`${cluster.workers} workers`),
      ` of ${short(cluster.name)}, a step of ${short(trace.model)} computes for `,
      b(seconds(best.compute_s)),
      `. Sent the usual way (${usual.policy}, the better of wfbp and single), its ${plural(trace.counts.length, "gradient")} take `,
      b(seconds(sumOf(usual))),
      " of communication, ",
      exposed(usual.exposed_s),
      `: ${seconds(usual.iteration_s)} per step.`,
    ),
    el(
      "p",
      {},
      `The best plan (${best.policy}) sends ${plural(best.count.length, "message")}, ${seconds(sumOf(best))} of communication, `,
      exposed(best.exposed_s),
      ": ",
      b(`${seconds(best.iteration_s)} per step`),
      `, ${percent(best.iteration_s > 0 ? best.compute_s / best.iteration_s : 1)} of it computation.`,
      saves,
    ),
  );
}

// ---- Policies ----

function policySection(current) {
  const { policies } = current;
  const best = bestOf(policies);
  const columns = [
    ["policy", "text"],
    ["messages", "count"],
    ["iteration", "s"],
    ["exposed", "s"],
    ["efficiency", "percent"],
    ["slower than the best", "ratio"],
  ];
  const rows = policies.map((one) => [
    one.policy,
    one.count.length,
    one.iteration_s,
    one.exposed_s,
    one.iteration_s > 0 ? one.compute_s / one.iteration_s : 1,
    best.iteration_s > 0 ? one.iteration_s / best.iteration_s : 1,
  ]);
  rows.push(["lower bound", null, best.lower_bound_s, best.lower_bound_s - best.compute_s, null, null]);
  const picture = barPlot({
    label: "The step under every policy: computation and exposed communication",
    rows: policies.map((one) => ({
      name: one.policy,
      strong: one.policy === "optimal",
      note: `${seconds(one.iteration_s)}, ${plural(one.count.length, "message")}`,
      parts: [
        {
          value: one.compute_s,
          class: "backward",
          text: `${one.policy}: computation ${seconds(one.compute_s)}`,
        },
        {
          value: one.exposed_s,
          class: "exposed",
          text: `${one.policy}: exposed communication ${seconds(one.exposed_s)}`,
        },
      ],
    })),
    bound: { value: best.lower_bound_s, text: `no plan is faster than ${seconds(best.lower_bound_s)}` },
  });
  return section(
    "policies",
    "Policies",
    "A step under each: computation, and the communication that it does not hide.",
    figure({ name: "policies", picture, columns, rows, chosen: (row) => row[0] === "optimal" }),
  );
}

// ---- The plan ----

function planSection(current, choose) {
  const { policies, names } = current;
  const plan = byName(policies, current.policy) || bestOf(policies);
  const columns = [
    ["message", "count"],
    ["tensors", "count"],
    ["size", "bytes"],
    ["ready", "s"],
    ["start", "s"],
    ["end", "s"],
    ["takes", "s"],
    ["exposed", "s"],
    ["first tensor", "text"],
    ["last tensor", "text"],
  ];
  const rows = Array.from(plan.count, (count, m) => [
    m + 1,
    count,
    plan.bytes[m],
    plan.ready_s[m],
    plan.start_s[m],
    plan.end_s[m],
    plan.end_s[m] - plan.start_s[m],
    Math.max(0, plan.end_s[m] - Math.max(plan.start_s[m], plan.compute_s)),
    names[plan.first[m]],
    names[plan.first[m] + count - 1],
  ]);
  const select = el(
    "select",
    { "aria-label": "policy", onchange: (event) => choose(event.target.value) },
    policies.map((one) => el("option", { value: one.policy, selected: one === plan }, one.policy)),
  );
  return section(
    "plan",
    "The plan",
    "Messages in the order in which they are sent; times from the start of the forward pass.",
    el(
      "div",
      { class: "bar" },
      "policy",
      select,
      el("span", {}, plural(plan.count.length, "message")),
      el("span", { class: "spread" }),
      el(
        "button",
        {
          type: "button",
          "data-export": "csv",
          onclick: () => download(`plan-${plan.policy}.csv`, "text/csv", csvOf(columns, rows)),
        },
        "CSV",
      ),
    ),
    tableOf(columns, rows),
  );
}
