// The sections of the page: each takes its data and returns an element, or null if there is nothing to show.

const INKS = {
  naive: "ink6",
  wfbp: "ink2",
  single: "ink3",
  mgwfbp: "ink1",
  optimal: "ink4",
  ddp: "ink5",
  overlap: "ink7",
};
const OURS = ["optimal", "overlap"]; // the best of their kind
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
// The bound for plans of whole all-reduces, or for any plan: the latter also bounds the former.
function boundOf(policies, whole) {
  const any = policies.filter((one) => one.overlaps_forward).map((one) => one.lower_bound_s);
  const own = policies.filter((one) => !one.overlaps_forward).map((one) => one.lower_bound_s);
  return greatest(whole || !any.length ? [...any, ...own] : any);
}
const sumOf = (plan) => plan.end_s.reduce((sum, end, m) => sum + (end - plan.start_s[m]), 0);

// ---- The answer in words ----

function wordsSection(current) {
  const { policies, trace, cluster } = current;
  const best = byName(policies, "optimal") || bestOf(policies);
  const usual = byName(policies, "ddp");
  const share = (value) => 100 * (1 - value / usual.iteration_s);
  const b = (text) => el("b", {}, text);
  const exposed = (value) => el("span", { class: "exposed" }, `${seconds(value)} exposed`);
  const saves = (plan, which) => {
    if (!(usual.iteration_s > 0)) return [];
    const saved = share(plan.iteration_s),
      most = Math.max(0, share(boundOf(policies, !plan.overlaps_forward)));
    return [
      " That ",
      saved >= -0.05 ? "saves " : "loses ",
      b(`${fixed(Math.abs(saved), 1)}%`),
      ` of the step; no plan${which} can save more than `,
      b(`${fixed(most, 1)}%`),
      ".",
    ];
  };
  const says = (plan, which) => [
    ` sends ${plural(plan.count.length, "message")}, ${seconds(sumOf(plan))} of communication, `,
    exposed(plan.exposed_s),
    ": ",
    b(`${seconds(plan.iteration_s)} per step`),
    `, ${percent(plan.iteration_s > 0 ? plan.compute_s / plan.iteration_s : 1)} of it computation.`,
    saves(plan, which),
  ];
  const overlap = byName(policies, "overlap");
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
      `. With the default buckets of PyTorch's DDP, its ${plural(trace.counts.length, "gradient")} take `,
      b(seconds(sumOf(usual))),
      " of communication, ",
      exposed(usual.exposed_s),
      `: ${seconds(usual.iteration_s)} per step.`,
    ),
    el("p", {}, `The best plan of whole all-reduces (${best.policy})`, says(best, " of whole all-reduces")),
    overlap &&
      el(
        "p",
        {},
        "With all-reduces split, where that is better, into a reduce-scatter during the backward pass and an all-gather during the next forward pass, the best plan (overlap)",
        says(overlap, ""),
      ),
  );
}

// ---- Policies ----

// Far slower than the best: their bars would make the others too short to compare. DDP is always shown, as the
// baseline.
const SLOW_FROM = 1.5;
function bySpeed(policies) {
  const most = SLOW_FROM * (policies.length ? bestOf(policies).iteration_s : 0);
  const near = policies.filter((one) => one.iteration_s <= most || one.policy === "ddp");
  return { near, slow: policies.filter((one) => !near.includes(one)) };
}
const slowTitle = (count) =>
  `${count} ${count === 1 ? "policy" : "policies"} more than ${SLOW_FROM} times as slow`;

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
  const lowest = boundOf(policies, false);
  const bound = (name, value) => [name, null, value, value - best.compute_s, null, null];
  rows.push(
    bound("lower bound, of whole all-reduces", boundOf(policies, true)),
    bound("lower bound", lowest),
  );
  const bars = (shown, label) => ({
    label,
    rows: shown.map((one) => ({
      name: one.policy,
      about: aboutPolicy(one.policy),
      strong: OURS.includes(one.policy),
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
    bound: { value: lowest, text: `no plan is faster than ${seconds(lowest)}` },
  });
  const { slow, near } = bySpeed(policies);
  const what = "computation and exposed communication";
  const picture = barPlot(bars(near, `The step under the policies close to the best: ${what}`));
  return section(
    "policies",
    "Policies",
    "A step under each policy: computation, and the communication that it does not hide. Point at a name to see what the policy does.",
    figure({ name: "policies", picture, columns, rows, chosen: (row) => OURS.includes(row[0]) }),
    slow.length > 0 &&
      el(
        "details",
        { class: "slow" },
        el("summary", {}, slowTitle(slow.length)),
        barPlot(bars(slow, `The step under slow policies: ${what}`)),
      ),
  );
}

// ---- The plan ----

function planSection(current, choose) {
  const { policies, names } = current;
  const plan = byName(policies, current.policy) || bestOf(policies);
  const row = rowOfPlan(plan, names, plan.policy, null);
  const columns = [
    ["message", "count"],
    ["kind", "text"],
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
    kindOf(plan.kind[m]),
    count,
    plan.bytes[m],
    plan.ready_s[m],
    plan.start_s[m],
    plan.end_s[m],
    plan.end_s[m] - plan.start_s[m],
    exposedPart(row, plan.start_s[m], plan.end_s[m]),
    names[plan.first[m]],
    names[plan.first[m] + count - 1],
  ]);
  const select = el(
    "select",
    { "aria-label": "policy", onchange: (event) => choose(event.target.value) },
    policies.map((one) =>
      el("option", { value: one.policy, selected: one === plan, title: aboutPolicy(one.policy) }, one.policy),
    ),
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
    stallTable(plan, names),
  );
}

// Where the next forward pass stalls.
function stallTable(plan, names) {
  if (!plan.overlaps_forward) return null;
  const begins = `The next forward pass begins at ${seconds(plan.compute_s)}`;
  if (!plan.stall_tensor.length) return el("p", { class: "quiet" }, `${begins} and does not wait.`);
  const columns = [
    ["waits for", "text"],
    ["from", "s"],
    ["to", "s"],
    ["waits", "s"],
  ];
  const rows = Array.from(plan.stall_tensor, (tensor, i) => [
    names[tensor],
    plan.stall_start_s[i],
    plan.stall_end_s[i],
    plan.stall_end_s[i] - plan.stall_start_s[i],
  ]);
  return el(
    "div",
    { class: "stalls" },
    el("p", { class: "quiet" }, `${begins}, and waits ${seconds(plan.exposed_s)} in all.`),
    tableOf(columns, rows),
  );
}
