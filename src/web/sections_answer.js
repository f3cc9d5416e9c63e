// The main result: the gain over DDP, in one sentence and three bars; for several cases, all in one chart.

// One-line descriptions of policies: the command's own words, set by `use` of the page.
let POLICY_ABOUT = {};
const aboutPolicy = (name) => POLICY_ABOUT[String(name).split(":")[0]] || null;

const savedBy = (plan, usual) => (usual.iteration_s > 0 ? 1 - plan.iteration_s / usual.iteration_s : 0);

// "18.4%"; a share that rounds to 0 is 0.
const savedText = (share) => `${fixed(Math.abs(share) < 5e-4 ? 0 : 100 * share, 1)}%`;

// "12,300": integers from 100 on, three digits below.
function rate(value) {
  const rounded = value >= 100 ? Math.round(value) : Number(value.toPrecision(3));
  return String(rounded).replace(/\B(?=(\d{3})+$)/g, ",");
}

function answerWords({ usual, best, overlap, bound }) {
  const most = Math.max(savedBy(best, usual), overlap ? savedBy(overlap, usual) : 0);
  if (most < 0.005)
    return `DDP's buckets are as good as it gets here: no plan can save more than ${savedText(Math.max(0, 1 - bound / usual.iteration_s))} of a step.`;
  const others = overlap ? `; with forward overlap, ${savedText(savedBy(overlap, usual))}` : "";
  return `Better messages save ${savedText(savedBy(best, usual))} of every step compared with DDP's buckets${others}.`;
}

function answerSection({ policies, trace, cluster }) {
  const usual = byName(policies, "ddp");
  const best = byName(policies, "optimal") || bestOf(policies);
  const overlap = byName(policies, "overlap");
  if (!usual || !(usual.iteration_s > 0)) return null;
  const bound = boundOf(policies, !overlap);
  const samples = (plan) => rate((trace.batch * cluster.workers) / plan.iteration_s);
  const fastest = overlap || best;
  const bars = [
    ["DDP's buckets", usual],
    ["best messages", best],
    overlap && ["and forward overlap", overlap],
  ].filter(Boolean);
  const picture = barPlot({
    label: "The step with DDP's buckets and with better plans: computation and exposed communication",
    rows: bars.map(([name, plan]) => ({
      name,
      about: `${plan.policy}: ${aboutPolicy(plan.policy) || ""}`,
      strong: plan !== usual,
      note: plan === usual ? seconds(plan.iteration_s) : `${seconds(plan.iteration_s)}, ${savedText(savedBy(plan, usual))} saved`,
      parts: [
        { value: plan.compute_s, class: "backward", text: `${name}: computation ${seconds(plan.compute_s)}` },
        { value: plan.exposed_s, class: "exposed", text: `${name}: waiting for the network ${seconds(plan.exposed_s)}` },
      ],
    })),
    bound: { value: bound, text: `no plan is faster than ${seconds(bound)}` },
  });
  return el(
    "section",
    { id: "answer", "aria-label": "Answer" },
    el("p", { class: "headline" }, answerWords({ usual, best, overlap, bound })),
    el(
      "p",
      { class: "quiet" },
      `${cluster.workers} workers process ${samples(usual)} samples per second with DDP's buckets, ${samples(fastest)} with ${fastest.policy}. `,
      "Blue-grey is computation, red is waiting for the network.",
    ),
    el("figure", {}, picture),
  );
}

// ---- Several cases in one chart ----

const CASES_MOST = 24;

function casesSection(data, index, choose) {
  const cases = data.cases
    .map((one, i) => {
      const usual = byName(one.policies, "ddp"),
        best = byName(one.policies, "optimal"),
        overlap = byName(one.policies, "overlap");
      const name = `${short(data.traces[one.trace].model, 30)} on ${short(data.clusters[one.cluster].name, 30)}`;
      return usual && best && overlap && usual.iteration_s > 0 && { i, name, usual, best, overlap };
    })
    .filter(Boolean);
  if (cases.length < 2) return null;
  const share = (one, plan) => Math.max(0, savedBy(plan, one.usual));
  const sorted = [...cases].sort((a, b) => share(b, b.overlap) - share(a, a.overlap)).slice(0, CASES_MOST);
  const picture = barPlot({
    label: "Share of a step saved compared with DDP's buckets, for each model and cluster",
    letters: 34,
    rows: sorted.map((one) => ({
      name: one.name,
      about: one.name,
      strong: one.i === index,
      note: `${savedText(share(one, one.best))} / ${savedText(share(one, one.overlap))}`,
      act: () => choose(one.i),
      parts: [
        { value: share(one, one.best), class: "hidden-part", text: `${one.name}: better messages save ${savedText(share(one, one.best))}` },
        {
          value: Math.max(0, share(one, one.overlap) - share(one, one.best)),
          class: "gather-part",
          text: `${one.name}: forward overlap saves ${savedText(share(one, one.overlap))} in all`,
        },
      ],
    })),
  });
  const columns = [
    ["model and cluster", "text"],
    ["DDP", "s"],
    ["optimal", "s"],
    ["overlap", "s"],
    ["saved by optimal", "percent"],
    ["saved by overlap", "percent"],
  ];
  const rows = cases.map((one) => [
    one.name,
    one.usual.iteration_s,
    one.best.iteration_s,
    one.overlap.iteration_s,
    savedBy(one.best, one.usual),
    savedBy(one.overlap, one.usual),
  ]);
  const rest = cases.length > CASES_MOST ? ` The first ${CASES_MOST} of ${cases.length}.` : "";
  return section(
    "cases",
    "All cases",
    `Share of a step saved compared with DDP's buckets: by better messages / with forward overlap.${rest} Click on a bar to see its case.`,
    figure({ name: "cases", picture, columns, rows, chosen: (row) => row[0] === (cases.find((one) => one.i === index) || {}).name }),
  );
}
